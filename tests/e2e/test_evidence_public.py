"""Public tasks as evidence: sets of reasoning-gym through their real frameworks, scored by the package's own functions."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.slow import slow

NEEDED = "torch transformers pyarrow matplotlib starlette langchain agents autogen_agentchat"
for needed in NEEDED.split():
    pytest.importorskip(needed, reason="needs the extras all")
pytest.importorskip("reasoning_gym", reason="needs reasoning-gym: pip install --group evidence")

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "evidence"
#: Of each set the agent that is trained, its framework, and the module of the agent.
SETS = {
    "legs": ("solver", "autogen-agentchat", "settings/maths/agent.py"),
    "equations": ("algebraist", "openai-agents", "public/equation_agent.py"),
    "paths": ("walker", "langchain", "public/path_agent.py"),
}
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}
CLEAN |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes"),
    pytest.mark.timeout(1200),  # the first test waits for the run of all three
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One short run of all three sets, as a user starts it."""
    folder = tmp_path_factory.mktemp("public")
    command = [sys.executable, str(EVIDENCE / "main.py"), "public", "--quick", "--model", "tiny"]
    done = subprocess.run(
        [*command, "--folder", str(folder)], cwd=folder, env=CLEAN, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of the evidence, importable for one test."""
    from agents import set_tracing_disabled

    monkeypatch.syspath_prepend(str(EVIDENCE))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("settings", "public"):
            del sys.modules[name]
    set_tracing_disabled(False)  # the agent of the equations switches it off in its process


@slow
@pytest.mark.parametrize("name", SETS)
def test_the_agent_of_a_set_is_trained_through_its_framework(ran: Path, name: str) -> None:
    agent, framework, _ = SETS[name]
    result = json.loads((ran / f"public_{name}.json").read_text())
    (run,) = result["runs"]
    assert result["framework"] == framework
    assert {framework, "reasoning-gym", "torch", "lgov"} <= result["versions"].keys()
    assert result["command"] == f"python evidence/main.py public --setting {name} --quick --model tiny --seed 0"
    assert set(run["calls"]) == {agent}
    assert run["trained_transitions"][agent] > 0
    assert run["interruptions"] == 0
    plan = result["plan"]
    for moment in ("before", "after"):
        assert list(run[moment]) == ["train", "seeds"]
        assert run[moment]["seeds"]["rollouts"] == plan["held_out_tasks"] * plan["held_out_group"]
        assert run[moment]["seeds"]["infrastructure"] == 0
    assert 0 <= result["shown"] < 0.1
    assert (ran / f"public_{name}.png").read_bytes().startswith(b"\x89PNG")


@slow
@pytest.mark.parametrize("name", SETS)
def test_the_log_shows_the_model_what_the_framework_of_the_set_will_ask(
    ran: Path, name: str, inside: None, tmp_path: Path
) -> None:
    from public.known import SETS as KNOWN

    from lgov_core.store import open_store

    def shape(messages: Any, tools: Any) -> str:
        described = [(one["function"]["name"], sorted(one["function"]["parameters"]["properties"])) for one in tools]
        return repr((messages[0]["role"].replace("developer", "system"), messages[0]["content"], described))

    world = KNOWN[name].make_world(tmp_path, 0, {})
    (conversation,) = world.draw_log(random.Random(1))
    logged = shape(conversation.messages, conversation.tools)
    (store_file,) = ran.glob(f"{name}/seed0-1/store.sqlite")
    store = open_store(store_file)
    requests = [captured.request for captured in store.calls()]
    store.close()
    assert {shape(request["messages"], request.get("tools") or []) for request in requests} == {logged}


@slow
def test_a_run_that_was_killed_is_continued_and_makes_no_update_twice(tmp_path: Path) -> None:
    program = tmp_path / "run.py"
    program.write_text(
        f"import json, sys; sys.path.insert(0, {str(EVIDENCE)!r})\n"
        "from pathlib import Path\n"
        "from lgov_core.demo.run import Display\n"
        "from public.known import SETS\n"
        "from settings.plan import plan_for\n"
        "from settings.run import run_seed\n"
        "setting = SETS['legs']\n"
        "plan = plan_for(setting, 'tiny', quick=True, updates=4)\n"
        f"print(json.dumps(run_seed(setting, plan, 0, Path({str(tmp_path)!r}) / 'seed0-1', Display(), {{}})))\n"
    )
    first = subprocess.Popen([sys.executable, str(program)], cwd=tmp_path, env=CLEAN, start_new_session=True)
    metrics = tmp_path / "seed0-1" / "metrics.jsonl"
    ends = time.monotonic() + 600
    while not (metrics.exists() and '"train"' in metrics.read_text()):
        assert first.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < ends
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=CLEAN, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = json.loads(done.stdout.splitlines()[-1])
    assert run["interruptions"] == 1
    assert [point["updates"] for point in run["training"]] == [1, 2, 3, 4]
    assert run["before"]["seeds"]["rollouts"] == run["after"]["seeds"]["rollouts"] == 6


def test_a_begun_folder_is_continued_for_the_same_code_and_plan_only(inside: None, tmp_path: Path) -> None:
    from settings.piece import folder_of

    key = {"commit": "abc", "plan": {"updates": 3}}
    begun = folder_of(tmp_path, 0, key)
    assert folder_of(tmp_path, 0, key) == begun
    assert folder_of(tmp_path, 1, key) != begun
    other = folder_of(tmp_path, 0, {**key, "plan": {"updates": 4}})
    assert other != begun
    changed = {**key, "commit": "abc-changed"}
    assert folder_of(tmp_path, 2, changed) != folder_of(tmp_path, 2, changed), "nobody knows what the code was"


@pytest.mark.parametrize("name", SETS)
def test_the_agents_of_public_tasks_know_nothing_of_lgov(name: str) -> None:
    text = (EVIDENCE / SETS[name][2]).read_text()
    assert "import lgov" not in text
    assert "from lgov" not in text


def test_no_entry_is_in_two_splits_and_tasks_come_from_their_own(inside: None, tmp_path: Path) -> None:
    from public.known import SETS as KNOWN
    from public.tasks import NUMBERS

    spans = sorted((first, first + count) for first, count in NUMBERS.values())
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    chance = random.Random(2)
    for setting in KNOWN.values():
        world = setting.make_world(tmp_path, 0, {})
        for split, (first, count) in NUMBERS.items():
            for _ in range(20):
                assert first <= world.draw_task(chance, split)["number"] < first + count


@pytest.mark.parametrize("name", SETS)
def test_a_solved_example_is_what_the_tools_answer_and_the_package_scores_one(
    inside: None, tmp_path: Path, name: str
) -> None:
    from public.known import SETS as KNOWN
    from public.tasks import NUMBERS, answered, entry

    from lgov_core.policies import load_policy_file
    from lgov_core.types import Action, Point

    world = KNOWN[name].make_world(tmp_path, 0, {})
    policy = load_policy_file(KNOWN[name].policy)
    solved = 0
    for number in range(NUMBERS["train"][0], NUMBERS["train"][0] + 60):
        asked = entry(name, number)
        for conversation in world.solved(asked):
            solved += 1
            assert asked.score(answered(conversation.messages[-1]["content"])) == 1.0
            made = [call for message in conversation.messages for call in message.get("tool_calls", ())]
            calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in made]
            shown = [message["content"] for message in conversation.messages if message["role"] == "tool"]
            assert answers(name, asked, calls) == shown
            for tool, arguments in calls:
                assert not policy.judge(Action(Point.PRE_TOOL_CALL, tool, arguments=arguments)).blocks
    assert solved >= 55


def answers(name: str, asked: Any, calls: list[tuple[str, Mapping[str, str]]]) -> list[str]:
    """What the agents' own tools answer to these calls."""
    if name != "paths":
        calculator = importlib.import_module("public.episodes").Calculator()
        return [asyncio.run(calculator.calculate(arguments["expression"])) for _, arguments in calls]
    walk = importlib.import_module("public.path_agent").Walk(asked.metadata["matrix"])
    return [walk.seen() if tool == "look" else walk.step(arguments["direction"]) for tool, arguments in calls]


def test_answers_are_scored_by_the_package(inside: None) -> None:
    from public.tasks import NUMBERS, answered, entry

    first = NUMBERS["seeds"][0]
    legs = entry("legs", first)
    assert legs.score(answered(f"Answer: {legs.answer}")) == 1.0
    assert legs.score(answered(f"I think {legs.answer}")) == 0.0, "nothing was answered"
    assert legs.score(answered(f"Answer: {int(legs.answer) + 1}")) == 0.0
    path = next(
        found for number in range(first, first + 50) if len((found := entry("paths", number)).answer.split()) > 1
    )
    there = {"up": "down", "down": "up", "left": "right", "right": "left"}
    step = path.answer.split()[0]
    assert path.score(f"{step} {there[step]} {path.answer}") == 0.5, "a longer way"
    assert path.score("infeasible") == 0.0


def test_a_walk_stops_at_walls_and_says_where_the_goal_is(inside: None) -> None:
    from public.path_agent import Walk

    walk = Walk(["*X", "O#"])
    assert walk.seen() == "# is 1 down 1 right, open: down"
    assert walk.step("right") == walk.step("up") == walk.step("north") == "blocked"
    assert walk.step("down") == "# is 1 right, open: up right"
    assert walk.step("right") == "at #"
    assert walk.taken == ["down", "right"]


def test_a_failure_on_public_tasks_is_classed_by_what_the_agent_did(inside: None) -> None:
    from public.episodes import Calculator, failed_calculation, failed_walk
    from public.tasks import NUMBERS, entry

    calculator = Calculator()
    assert failed_calculation(calculator, "Answer: 3", 6) == "early stop"
    asyncio.run(calculator.calculate("1 + 1"))
    assert failed_calculation(calculator, "Answer: 3", 6) == "copying"
    assert failed_calculation(calculator, "Answer: 2", 6) == "operator"
    assert failed_calculation(calculator, "two", 6) == "format"
    assert failed_calculation(calculator, "", 1) == "late stop"
    first = NUMBERS["seeds"][0]
    path = next(
        found for number in range(first, first + 50) if len((found := entry("paths", number)).answer.split()) > 1
    )
    way = path.answer.split()
    assert failed_walk(way, "Answer: infeasible", path, 12) == "relation"
    assert failed_walk(way[:-1], f"Answer: {path.answer}", path, 12) == "copying"
    assert failed_walk(way[:-1], f"Answer: {' '.join(way[:-1])}", path, 12) == "early stop"
    assert failed_walk(["up"] * 10, "", path, 12) == "late stop"
    assert failed_walk([], "", path, 12) == "format"
