"""The documents' three settings, each through its real framework: a short run of the command, and what it writes down."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.slow import slow

NEEDED = "torch transformers pyarrow matplotlib starlette langchain agents autogen_agentchat"
for needed in NEEDED.split():
    pytest.importorskip(needed, reason="needs the extras all")

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "evidence"
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
    from agents import set_tracing_disabled

    monkeypatch.syspath_prepend(str(EVIDENCE))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name == "settings" or name.startswith("settings."):
            del sys.modules[name]
    set_tracing_disabled(False)  # the retrieval agent switches it off in its process


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
    command = f"python evidence/main.py settings --setting {name} --quick --seed 0"
    assert result["command"] == command
    assert {result["framework"], "torch", "lgov"} <= result["versions"].keys()
    (run,) = result["runs"]
    plan = result["plan"]
    assert [point["updates"] for point in run["training"]] == list(range(1, plan["updates"] + 1))
    for point in run["training"]:
        assert {"alike", "groups_informative", "groups_alike", "clip_fraction", "logprob_drift"} <= point.keys()
        assert point["rollouts"] == plan["tasks"] * plan["group"]
    for moment in ("before", "after"):
        assert list(run[moment]) == ["train", "values", "forms"]
        for split, found in run[moment].items():
            tasks, group = ("fixed_tasks", "fixed_group") if split == "train" else ("held_out_tasks", "held_out_group")
            assert len(found["scores"]) == plan[tasks]
            assert found["rollouts"] == plan[tasks] * plan[group]
            assert found["infrastructure"] == 0
            assert sum(found["failures"].values()) == round((1 - found["solved"]) * found["rollouts"])
    for split, found in result["summary"].items():
        assert split in ("train", "held_out", "values", "forms")
        assert found["gain"]["low"] <= found["gain"]["mean"] <= found["gain"]["high"]
        assert math.isclose(found["gain"]["mean"], found["after"]["mean"] - found["before"]["mean"], abs_tol=1e-3)
    assert run["seconds"] > 0 < run["cpu_seconds"]
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
def test_a_committed_result_shows_a_gain_of_each_seed_on_fixed_and_held_out_questions(inside: None, name: str) -> None:
    from settings import report

    result = read(EVIDENCE / "results", name)
    assert result["quick"] is False
    assert not result["commit"].endswith("-changed")
    assert result["plan"]["updates"] * result["plan"]["tasks"] * result["plan"]["group"] >= 1280
    for run in result["runs"]:
        found = report.summary([run])
        assert run["gate"]["passed"]
        assert found["train"]["gain"]["low"] > 0.1
        assert found["held_out"]["gain"]["low"] > 0.1
        assert report.executed(run) == 0


@pytest.mark.parametrize("name", AGENTS)
def test_the_agents_know_nothing_of_lgov(name: str) -> None:
    assert "import lgov" not in (EVIDENCE / "settings" / name / "agent.py").read_text()
    assert "from lgov" not in (EVIDENCE / "settings" / name / "agent.py").read_text()


def forms_of(name: str) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """All forms of a setting as sequences of their parts, those that are judged, and those of development."""
    module = importlib.import_module(f"settings.{name}.tasks")

    def parts(form: Any) -> tuple[str, ...]:
        """A form in the order of its words, with its beginning and end."""
        if name == "sql":
            table, operation, column, comparison = form
            other = next(one for one in module.TABLES[table] if one != column)
            form = (operation, column, table, *((other, comparison) if comparison else ()))
        return ("^", *form, "$")

    return tuple(  # type: ignore[return-value]
        [parts(form) for form in forms] for forms in (module.FORMS, module.HELD_OUT_FORMS, module.DEVELOPMENT_FORMS)
    )


@pytest.mark.parametrize("name", AGENTS)
def test_adjacent_parts_of_new_forms_all_occur_in_forms_of_training(inside: None, name: str) -> None:
    every, judged, development = forms_of(name)
    known = {pair for form in every if form not in (*judged, *development) for pair in itertools.pairwise(form)}
    for form in (*judged, *development):
        assert form in every
        assert set(itertools.pairwise(form)) <= known
    assert not set(judged) & set(development)
    # Not all orders of the same parts are held out.
    for form in judged:
        assert (
            any(sorted(one) == sorted(form) for one in every if one not in (*judged, *development)) or name != "maths"
        )


def test_questions_of_different_splits_differ_in_form_and_values(inside: None) -> None:
    from settings.maths import tasks as maths
    from settings.retrieval import tasks as retrieval
    from settings.setting import SPLITS
    from settings.sql import tasks as sql

    chance = random.Random(3)
    for module, draw, form, value in (
        (
            sql,
            sql.draw_question,
            lambda one: (one.table, one.operation, one.column, one.comparison),
            lambda one: one.number,
        ),
        (
            retrieval,
            lambda chance, split: retrieval.draw_question(chance, split)[0],
            lambda one: one.relations,
            lambda one: one.company,
        ),
        (maths, maths.draw_problem, lambda one: one.form, lambda one: (one.boxes + one.each) % 6),
    ):
        drawn = {split: [draw(chance, split) for _ in range(400)] for split in SPLITS}
        forms = {split: {form(one) for one in found} for split, found in drawn.items()}
        values = {split: {value(one) for one in found} - {None} for split, found in drawn.items()}
        assert forms["forms"] == set(module.HELD_OUT_FORMS)
        assert forms["values"] <= forms["train"]
        assert not forms["train"] & {*module.HELD_OUT_FORMS, *module.DEVELOPMENT_FORMS}
        assert not forms["development"] & forms["forms"]
        assert not values["train"] & (values["values"] | values["forms"] | values["development"])
        assert not values["development"] & (values["values"] | values["forms"])


def test_a_failure_is_classed_by_the_first_step_that_is_wrong(inside: None) -> None:
    from settings.failures import failed_expressions, failed_query, failed_searches

    right = ["3 * 4", "12 + 5"]
    for made, said, expected in (
        (["3 * 4", "12 - 5"], "Answer: 7", "operator"),
        (["3 * 4", "12 + 6"], "Answer: 18", "copying"),
        (["3 * 4"], "Answer: 12", "early stop"),
        ([*right, "17 + 1"], "Answer: 18", "late stop"),
        (right, "Answer: 16", "copying"),
        (right, "", "format"),
        (["three"], "Answer: 3", "format"),
    ):
        assert failed_expressions(right, made, said) == expected
    assert failed_searches(["seat of Red Fox"], ["owner of Red Fox"], "x") == "relation"
    assert failed_searches(["seat of Red Fox"], ["seat of Red Owl"], "x") == "copying"
    query = "SELECT SUM(pay) FROM staff WHERE dept = 'sales' AND bonus > 30"
    assert failed_query(query, query.replace("SUM", "MAX")) == "operator"
    assert failed_query(query, query.replace("> 30", "> 31")) == "copying"
    assert failed_query(query, query.replace("staff", "projects")) == "relation"
    assert failed_query(query, query.partition(" AND")[0]) == "early stop"
    assert failed_query(query, "none") == "format"
    assert failed_query("SELECT 1", query) == failed_expressions((), ["1 + 2"], "3") == "unknown", (
        "nobody knows what was right"
    )


def test_a_failure_class_is_found_for_every_task_of_every_setting(inside: None, tmp_path: Path) -> None:
    """The reference steps of a task are in the form in which failures are looked for."""
    from settings.failures import failed_expressions, failed_query, failed_searches
    from settings.known import SETTINGS
    from settings.sql.tasks import Question

    chance = random.Random(5)
    for name, setting in SETTINGS.items():
        world = setting.make_world(tmp_path, 0, {})
        for split in ("train", "values", "forms", "development"):
            task = world.draw_task(chance, split)
            if name == "sql":
                query = Question(**task["question"]).query()
                assert failed_query(query, query.replace("SELECT ", "SELECT X")) == "operator"
            else:
                failed = failed_searches if name == "retrieval" else failed_expressions
                assert failed(task["steps"], task["steps"][:-1], "Answer: x") == "early stop"


def figures(scores: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """What `measure` says of rollouts with these scores, task by task; None: the machine failed."""
    from settings.measure import measure

    from lgov_core.types import Attempt, Outcome

    return measure(
        [
            Attempt(
                *(f"{task}-{n}", 1, 0.0, 1.0, Outcome.INFRASTRUCTURE if score is None else Outcome.FAILED),
                result={"score": score, "failure": "copying"},
                task_id=str(task),
            )
            for task, found in enumerate(scores)
            for n, score in enumerate(found)
        ]
    )


def test_the_measure_counts_tasks_and_leaves_out_what_the_machine_lost(inside: None) -> None:
    found = figures([[1.0, 0.0], [0.5, None], [None, None], [0.0, 0.0]])
    assert found["scores"] == [0.5, 0.5, None, 0.0]
    assert (found["rollouts"], found["infrastructure"]) == (5, 3)
    assert (found["score"], found["solved"]) == (0.3, 0.2)
    assert found["solved_any"] == pytest.approx(1 / 3)
    assert found["alike"] == pytest.approx(2 / 3)
    assert found["failures"]["copying"] == 4


@pytest.mark.parametrize(
    ("train", "held_out", "passes"),
    [
        ([[1.0, 0.0]] * 10, [[1.0, 0.0, 0.0, 0.0]] * 4, True),
        ([[1.0, 0.0]] * 8 + [[0.0, 0.0]] * 2, [[1.0, 0.0]] * 4, False),  # one task in five is never solved
        ([[1.0, 0.0]] * 10, [[1.0, 0.0, 0.0, 0.0, 0.0]] * 4, False),  # held-out tasks less than half as often
    ],
)
def test_the_gate_lets_only_a_good_warm_start_pass(
    inside: None, train: list[list[float]], held_out: list[list[float]], passes: bool
) -> None:
    from settings.measure import gate, gate_text

    before = {"train": figures(train), "values": figures(train), "forms": figures(held_out)}
    found = gate(before)
    assert found["passed"] is passes
    assert "failures, forms: copying" in gate_text(found, before)


def test_a_warm_start_is_reused_for_the_same_plan_and_code_only(inside: None, tmp_path: Path) -> None:
    from settings.known import SETTINGS
    from settings.plan import TINY
    from settings.warm import warm_key, warm_model

    source = tmp_path / "code" / "tasks.py"
    source.parent.mkdir()
    source.write_text("one = 1")
    plan = replace(TINY, warm_steps=1, warm_batch=2, layers=1)
    world = SETTINGS["maths"].make_world(tmp_path, 0, {})
    steps: list[int] = []

    def make(plan: Any) -> None:
        warm_model(world, plan, tmp_path, [source.parent], lambda step, _steps, _loss: steps.append(step))

    make(plan)
    make(replace(plan, updates=99))  # nothing that the warm start depends on
    assert steps == [1]
    make(replace(plan, warm_batch=3))
    assert steps == [1, 1]
    before = warm_key(plan, [source.parent])
    source.write_text("one = 2")
    assert warm_key(plan, [source.parent]) != before
    make(plan)
    assert steps == [1, 1, 1]


def test_a_finished_seed_is_kept_for_the_same_code_and_plan_only(inside: None, tmp_path: Path) -> None:
    from settings.piece import _kept_seeds

    key = {"commit": "abc", "plan": {"updates": 3}}
    (tmp_path / "seed1.json").write_text(json.dumps({"key": key, "run": {"seed": 1}}))
    assert _kept_seeds(tmp_path, key) == {1: {"seed": 1}}
    assert _kept_seeds(tmp_path, {**key, "commit": "abd"}) == {}
    assert _kept_seeds(tmp_path, {**key, "plan": {"updates": 4}}) == {}
    changed = {**key, "commit": "abc-changed"}
    (tmp_path / "seed1.json").write_text(json.dumps({"key": changed, "run": {"seed": 1}}))
    assert _kept_seeds(tmp_path, changed) == {}


def test_fixed_questions_are_each_asked_once(inside: None) -> None:
    from settings.run import _different_tasks

    class Few:
        def draw_task(self, chance: random.Random, split: str) -> Any:
            return {"question": chance.randrange(5)}

    few: Any = Few()
    assert sorted(task["question"] for task in _different_tasks(few, random.Random(1), "values", 64)) == [0, 1, 2, 3, 4]
    assert len(_different_tasks(few, random.Random(1), "values", 3)) == 3


def test_a_private_file_that_is_found_is_seen_whatever_was_searched_for(inside: None) -> None:
    from settings.retrieval.episodes import _Reader
    from settings.retrieval.library import Library
    from settings.retrieval.tasks import PRIVATE_FILE, build_world

    reader = _Reader(Library(build_world(3).passages))
    name = (
        next(one for one in reader.library.passages if one.startswith(PRIVATE_FILE)).split(" of ")[1].split(" is ")[0]
    )
    reader.best(f"closed {name}")
    assert any(one.startswith(PRIVATE_FILE) for one in reader.passages)


def test_a_wrong_number_or_condition_often_has_the_right_result(inside: None, tmp_path: Path) -> None:
    # evidence/results/README.md says so, with these shares.
    from settings.sql.tasks import NUMBERS, VALUES, Question, build_database, draw_task, run_query

    trained = [number for number in NUMBERS if number % 7 not in VALUES]
    chance = random.Random(0)
    right = {"nearest": 0, "dropped": 0}
    asked = 0
    for number in range(288):
        task = draw_task(chance, "values")
        question = Question(**task["question"])
        if question.number is None:
            continue
        asked += 1
        path = tmp_path / f"{number}.db"
        build_database(path, seed=task["figures_seed"])
        expected = run_query(path, question.query())
        nearest = min(trained, key=lambda one, asked_for=question.number: abs(one - asked_for))
        right["nearest"] += run_query(path, replace(question, number=nearest).query()) == expected
        right["dropped"] += run_query(path, replace(question, comparison=None, number=None).query()) == expected
    assert right["nearest"] / asked == pytest.approx(0.99, abs=0.02)
    assert right["dropped"] / asked == pytest.approx(0.27, abs=0.06)


def test_the_log_seldom_shows_what_is_held_out(inside: None, tmp_path: Path) -> None:
    # evidence/results/README.md says so: some of the log's mistakes are held-out forms of other questions.
    from settings.known import SETTINGS
    from settings.maths import tasks as maths
    from settings.retrieval import tasks as retrieval
    from settings.sql import tasks as sql

    def shares(name: str, held_out: Any) -> float:
        world, chance = SETTINGS[name].make_world(tmp_path, 0, {}), random.Random("log/0")
        drawn = [one for _ in range(2000) for one in world.draw_log(chance)]
        return sum(held_out(_calls(one)) for one in drawn) / sum(bool(_calls(one)) for one in drawn)

    operators = {tuple(["*", *(maths.STEPS[step][1] for step in form)]) for form in maths.HELD_OUT_FORMS}
    assert 0 < shares("maths", lambda made: tuple(one.split()[1] for one in made if " " in one) in operators) < 0.02
    chains = set(retrieval.HELD_OUT_FORMS)
    assert 0 < shares("retrieval", lambda made: tuple(one.split(" of ")[0] for one in made) in chains) < 0.04
    queries = [
        sql.Question(table, operation, column, department, comparison, number).query()
        for table, operation, column, comparison in sql.HELD_OUT_FORMS
        for department in sql.DEPARTMENTS
        for number in sql.NUMBERS
    ]
    assert 0 < shares("sql", lambda made: any(one in queries for one in made)) < 0.03


def _calls(conversation: Any) -> list[str]:
    """The arguments of the tool calls of a logged conversation."""
    made = [call for message in conversation.messages for call in message.get("tool_calls", ())]
    return [next(iter(json.loads(call["function"]["arguments"]).values())) for call in made]


def test_the_answers_of_the_tasks_are_right(inside: None) -> None:
    from settings.maths.tasks import draw_problem
    from settings.retrieval.library import Library, f1
    from settings.retrieval.tasks import build_world, chain_of, draw_question

    chance = random.Random(4)
    for _ in range(200):
        problem = draw_problem(chance, "forms")
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
