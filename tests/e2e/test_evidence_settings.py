"""The documents' three settings, each through its real framework: a short run of the command, and what it writes down."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slow import slow

for needed in (
    "torch",
    "transformers",
    "pyarrow",
    "matplotlib",
    "starlette",
    "langchain",
    "agents",
    "autogen_agentchat",
):
    pytest.importorskip(needed, reason="needs the extras all")

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "examples" / "05_evidence"
AGENTS = {
    "sql": ({"writer", "rewriter"}, {"checker"}, "langchain"),
    "retrieval": ({"reader"}, set[str](), "openai-agents"),
    "maths": ({"solver"}, set[str](), "autogen-agentchat"),
}

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes"),
    pytest.mark.timeout(1200),  # the first test waits for the run of all three
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One short run of all three settings, as a user starts it."""
    folder = tmp_path_factory.mktemp("settings")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_"))}
    command = [sys.executable, str(EVIDENCE / "main.py"), "settings", "--quick", "--folder", str(folder)]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of the example, importable for one test."""
    monkeypatch.syspath_prepend(str(EVIDENCE))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name == "settings" or name.startswith("settings."):
            del sys.modules[name]


def read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"settings_{name}.json").read_text())


@slow
@pytest.mark.parametrize("name", AGENTS)
def test_the_right_agents_are_trained_through_the_real_framework(ran: Path, name: str) -> None:
    trained, frozen, framework = AGENTS[name]
    result = read(ran, name)
    (run,) = result["runs"]
    assert result["framework"] == framework
    assert set(run["calls"]) == trained | frozen, "every call is recorded under its agent"
    assert {agent for agent, count in run["trained_transitions"].items() if count} <= trained
    assert run["trained_transitions"][sorted(trained)[-1]] > 0
    assert run["largest_weight_change"] > 0
    for agent in trained:
        assert run["calls"][agent]["models"] == ["tiny"]
        assert run["calls"][agent]["weights_versions"] > 1
    for agent in frozen:
        assert run["calls"][agent]["models"] == ["frozen"]
        assert run["calls"][agent]["weights_versions"] == 1
        assert run["trained_transitions"].get(agent, 0) == 0


@slow
@pytest.mark.parametrize("name", AGENTS)
def test_the_result_says_what_was_run_and_what_came_of_it(ran: Path, name: str) -> None:
    result = read(ran, name)
    assert {"command", "seeds", "commit", "versions", "plan", "score", "summary"} <= result.keys()
    assert result["command"] == "python examples/05_evidence/main.py settings --quick"
    assert {result["framework"], "torch", "lgov"} <= result["versions"].keys()
    (run,) = result["runs"]
    updates = result["plan"]["updates"]
    assert [point["updates"] for point in run["training"]] == list(range(1, updates + 1))
    assert run["held_out"][0]["updates"] == 0
    assert run["held_out"][-1]["updates"] == updates
    for point in (*run["training"], *run["held_out"]):
        assert 0 <= point["interval"][0] <= point["score"] <= point["interval"][1] <= 1
        assert point["rollouts"] > 0
        assert point["infrastructure"] == 0
    assert all(point["logprob_drift"] < 1e-3 for point in run["training"])
    before, after = run["held_out"][0]["score"], run["held_out"][-1]["score"]
    assert math.isclose(result["summary"]["gain"]["mean"], after - before, abs_tol=1e-3)
    assert (ran / f"settings_{name}.png").read_bytes().startswith(b"\x89PNG")


@slow
@pytest.mark.parametrize("name", AGENTS)
def test_the_log_shows_the_model_what_the_framework_will_ask(
    ran: Path, name: str, inside: None, tmp_path: Path
) -> None:
    """The prompts of the warm start are, message by message, those that the framework sends to the endpoint."""
    from settings.known import SETTINGS

    from lgov_core.store import open_store

    def shape(messages: Any) -> list[tuple[str, str]]:
        roles = [(message["role"].replace("developer", "system"), str(message.get("content"))) for message in messages]
        return [roles[0], *((role, "") for role, _ in roles[1:2])]

    world = SETTINGS[name].make_world(tmp_path, 0, {})
    chance = random.Random(0)
    logged = {}
    for conversation in (one for _ in range(30) for one in world.draw_log(chance)):
        first = shape(conversation.messages)
        tools = [
            (tool["function"]["name"], sorted(tool["function"]["parameters"]["properties"]))
            for tool in conversation.tools
        ]
        logged[repr(first)] = tools
    asked = {}
    (store_file,) = ran.glob(f"{name}/seed0-1/store.sqlite")
    store = open_store(store_file)
    for call in store.calls():
        tools = call.request.get("tools") or []
        described = [(tool["function"]["name"], sorted(tool["function"]["parameters"]["properties"])) for tool in tools]
        asked[repr(shape(call.request["messages"]))] = described
    store.close()
    assert asked.items() <= logged.items()


@pytest.mark.parametrize("name", AGENTS)
def test_the_agents_know_nothing_of_lgov(name: str) -> None:
    assert "import lgov" not in (EVIDENCE / "settings" / name / "agent.py").read_text()
    assert "from lgov" not in (EVIDENCE / "settings" / name / "agent.py").read_text()


def test_training_and_held_out_tasks_are_disjoint(inside: None) -> None:
    from settings.maths.tasks import HELD_OUT_FORMS, draw_problem
    from settings.retrieval.tasks import draw_question as draw_hops
    from settings.sql.tasks import draw_question

    chance = random.Random(3)
    for draw in (
        lambda split: draw_question(chance, split).text,
        lambda split: draw_hops(chance, split)[0].text,
        lambda split: draw_problem(chance, split).text,
    ):
        assert not {draw("train") for _ in range(400)} & {draw("held_out") for _ in range(400)}
    assert not {draw_problem(chance, "train").form for _ in range(400)} & HELD_OUT_FORMS


def test_the_answers_of_the_tasks_are_right(inside: None) -> None:
    from settings.maths.tasks import draw_problem
    from settings.retrieval.library import Library, f1
    from settings.retrieval.tasks import build_world, chain_of, draw_question

    chance = random.Random(4)
    for _ in range(200):
        problem = draw_problem(chance, "held_out")
        value: float = problem.boxes
        for operator, number in problem.operations():
            value = {"+": value + number, "-": value - number, "*": value * number, "/": value / number}[operator]
        assert value == problem.answer > 0
        question, seed = draw_question(chance, "train")
        world = build_world(seed)
        for query, found in chain_of(question, world.facts):
            assert any(found in passage for passage in Library(world.passages).best(query)[:1]), query
    assert f1("the Ada Berg", "Ada Berg") == 1.0
    assert f1("Berg", "Ada Berg") == pytest.approx(2 / 3)
    assert f1("Lund", "Ada Berg") == 0.0
