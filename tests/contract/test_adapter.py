"""What every adapter does, over four frameworks: each case is one ordinary agent against a scripted model.

What is particular to a framework (its own ways to call a model, its hooks, its teams, its copies) is tested beside it, in
``tests/langchain``, ``tests/autogen``, ``tests/openai`` and ``tests/openai_agents``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lgov_core.errors import InstrumentationError, PolicyDenied
from lgov_core.governor import Governor
from lgov_core.instrumentation.framework import MODES as DECLARED_MODES
from lgov_core.instrumentation.framework import SHAPES, Surface, outside_tested_range
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Action, Decision, Point
from tests import surfaces
from tests.cells import ANSWER, Seen, asks, open_cell, says
from tests.contract import agents_sdk_driver, autogen_driver, langchain_driver, openai_driver
from tests.contract.adapter_driver import Driver, Program

pytestmark = pytest.mark.filterwarnings("ignore")

SETUPS = [setup for of in (langchain_driver, autogen_driver, openai_driver, agents_sdk_driver) for setup in of.SETUPS]
DRIVERS = list({driver.name: driver for driver, _ in SETUPS}.values())
each_driver = pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)


def declared_mode(mode: str) -> str:
    """The mode of the table of denials: a stream is one however it is read."""
    return "streaming" if "streaming" in mode else mode


def one_of_each(modes: Sequence[str]) -> list[str]:
    """The first of the ways of each declared mode."""
    return list({declared_mode(mode): mode for mode in reversed(modes)}.values())


def setups(shape: str | None = None, *, handoffs: bool = False, streams: bool = False, withheld: bool = False) -> Any:
    """Every driver, way of governing and mode; with ``shape`` each is marked as the cell that it shows.

    ``withheld``: only frameworks whose adapter withholds a streamed reply until it is judged.
    """
    return pytest.mark.parametrize(
        ("driver", "way", "mode"),
        [
            pytest.param(
                driver,
                way,
                mode,
                id=f"{driver.name}-{way}-{mode}",
                marks=[pytest.mark.cell(driver.name, declared_mode(mode), shape)] if shape else [],
            )
            for driver, way in SETUPS
            for mode in driver.modes
            if (driver.agents or not handoffs) and ("streaming" in mode or not streams)
            if driver.instrumentor.surface[Point.POST_MODEL_CALL].stream or not withheld
        ],
    )


class Judge(BoundedPolicy):
    """Says at one point what a function says; allows calls."""

    name = "contract"

    def __init__(self, point: Point, say: Any) -> None:
        self.point, self.say = point, say

    def judge(self, action: Action) -> Decision | None:
        decision = self.say(self, action) if action.point is self.point else None
        return self.allow("fine") if decision is None and action.point is Point.PRE_TOOL_CALL else decision


@contextmanager
def playing(
    driver: Driver, way: str, policy: Any, *replies: Any
) -> Iterator[tuple[ScriptedModelServer, Governor, Seen]]:
    seen = Seen()
    governor = Governor([policy], plugins=[seen], capture_content=True)
    try:
        with ScriptedModelServer(list(replies)) as server, driver.governed(way, governor):
            yield server, governor, seen
    finally:
        governor.close()


def look(path: str) -> str:
    """Looks at a file."""
    return f"looked at {path}"


# ---------------------------------------------------------------------- the table of denials


@setups("tool")
def test_a_denied_tool(tmp_path: Path, driver: Driver, way: str, mode: str) -> None:
    path = str(tmp_path / "precious.txt")
    with open_cell(tmp_path, asks(("c1", "erase_file", {"path": path})), says(ANSWER)) as cell:

        def erase_file(path: str) -> str:
            """Erases a file."""
            return cell.erase(path)

        program = Program(cell.base_url, cell.governor, way, mode, [erase_file])
        with driver.governed(way, cell.governor):
            answer = driver.run(program).answer
        if driver.agents:
            assert {event.action.agent for event in cell.seen.decisions()} == {"clerk"}
        assert {event.action.framework for event in cell.seen.decisions()} == {driver.name}
        cell.check(answer, agent_span=driver.has_agent_span(program))


@setups("parallel tools")
def test_of_parallel_tools_one_is_denied(tmp_path: Path, driver: Driver, way: str, mode: str) -> None:
    path = str(tmp_path / "precious.txt")
    calls = asks(("c1", "look", {"path": path}), ("c2", "erase_file", {"path": path}), ("c3", "look", {"path": "x"}))
    with open_cell(tmp_path, calls, says(ANSWER)) as cell:

        def erase_file(path: str) -> str:
            """Erases a file."""
            return cell.erase(path)

        program = Program(cell.base_url, cell.governor, way, mode, [erase_file, look])
        with driver.governed(way, cell.governor):
            answer = driver.run(program).answer
        assert {one.action.call_id: one.status for one in cell.seen.outcomes} == {
            "c1": "ok",
            "c2": "denied",
            "c3": "ok",
        }
        read = results_read(cell.server.requests[-1].body)
        assert (read["c1"], read["c3"]) == (f"looked at {path}", "looked at x")
        assert "DENIED" in read["c2"]
        cell.check(answer, agent_span=driver.has_agent_span(program))


def results_read(body: Any) -> dict[str, str]:
    """The results of tools that the model reads in a request, by call id."""
    messages = body.get("messages")
    if messages is not None:
        return {turn["tool_call_id"]: turn["content"] for turn in messages if turn["role"] == "tool"}
    return {item["call_id"]: item["output"] for item in body["input"] if item.get("type") == "function_call_output"}


@setups("hand-off", handoffs=True)
def test_a_denied_hand_off(tmp_path: Path, driver: Driver, way: str, mode: str) -> None:
    """The other agent would erase the file; it never gets the word."""
    replies = asks(("c1", "transfer_to_eraser", {})), says(ANSWER)
    with open_cell(tmp_path, *replies, denied=["transfer_to_eraser"]) as cell:

        def erase_file(path: str) -> str:
            """Erases a file."""
            return cell.erase(str(cell.file))

        program = Program(cell.base_url, cell.governor, way, mode, eraser=erase_file)
        with driver.governed(way, cell.governor):
            answer = driver.run(program).answer
        (denied,) = [one for one in cell.seen.outcomes if one.status == "denied"]
        assert denied.action.kind == "handoff"
        assert denied.action.agent == "clerk"
        cell.check(answer, agent_span=driver.has_agent_span(program))


@setups(handoffs=True)
def test_after_a_denied_hand_off_the_model_still_reads_it(tmp_path: Path, driver: Driver, way: str, mode: str) -> None:
    """Where the framework never saw the turn, the adapter puts it into each later request, once and in its place."""
    replies = (
        asks(("c1", "transfer_to_eraser", {})),
        asks(("c2", "look", {"path": "x"})),
        asks(("c3", "look", {"path": "y"})),
    )
    with open_cell(tmp_path, *replies, says(ANSWER), denied=["transfer_to_eraser"]) as cell:

        def erase_file(path: str) -> str:
            """Erases a file."""
            return cell.erase(str(cell.file))

        program = Program(cell.base_url, cell.governor, way, mode, [look], eraser=erase_file)
        with driver.governed(way, cell.governor):
            assert ANSWER in driver.run(program).answer
        bodies = [request.body for request in cell.server.requests]
    assert [called(body) for body in bodies] == [[], ["c1"], ["c1", "c2"], ["c1", "c2", "c3"]]
    for body in bodies[1:]:
        assert "DENIED by policy cells/no-erasing" in results_read(body)["c1"]
    assert results_read(bodies[-1])["c2"] == "looked at x"


def called(body: Any) -> list[str]:
    """The ids of the calls among the turns of a request, in order."""
    messages = body.get("messages")
    if messages is not None:
        return [call["id"] for turn in messages for call in turn.get("tool_calls") or ()]
    return [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]


# ---------------------------------------------------------------------- what an adapter declares it can do


def point_cases() -> Any:
    """One case for each point, driver and mode, marked as what it shows: a mode of streaming shows ``stream`` and so on."""
    cases: list[Any] = []
    for driver, way in SETUPS:
        for point in surfaces.WORDS:
            for mode in one_of_each(driver.modes):
                surface = driver.instrumentor.surface[point]
                shown = {"sync": ("sync",), "streaming": ("stream",) if surface.stream else ()}
                abilities = shown.get(declared_mode(mode), surfaces.ABILITIES[point])
                marks = [pytest.mark.surface(driver.name, point.value, *abilities)] if abilities else []
                cases.append(
                    pytest.param(driver, way, mode, point, id=f"{driver.name}-{way}-{mode}-{point.value}", marks=marks)
                )
    return pytest.mark.parametrize(("driver", "way", "mode", "point"), cases)


@point_cases()
def test_what_is_declared_is_what_can_be_done(driver: Driver, way: str, mode: str, point: Point) -> None:
    runs: list[surfaces.Ran] = []
    for effect in ("deny", "change"):
        ran = surfaces.Ran()
        with playing(driver, way, surfaces.AtPoint(point, effect), *surfaces.script()) as (server, governor, seen):
            program = Program(server.base_url, governor, way, mode, [tool_of(ran)], question=surfaces.QUESTION)
            ran.shown, ran.seen = driver.run(program).shown, seen
        ran.sent = [json.dumps(request.body) for request in server.requests]
        runs.append(ran)
    declared = driver.instrumentor.surface[point]
    held = declared.stream or declared_mode(mode) != "streaming"
    assert (surfaces.found(point, *runs) == surfaces.of(point)) is held


def tool_of(ran: surfaces.Ran) -> Any:
    def note(text: str) -> str:
        """Notes."""
        return ran.note(text)

    return note


@each_driver
def test_the_declaration_is_whole(driver: Driver) -> None:
    adapter = driver.instrumentor.lgov_framework()
    assert adapter.installed()
    assert set(adapter.surface) == set(surfaces.WORDS) == set(Point) - {Point.AGENT_STARTUP, Point.AGENT_SHUTDOWN}
    for point, surface in adapter.surface.items():
        abilities = dict.fromkeys(surfaces.ABILITIES[point], True)
        assert surface == Surface(**abilities, stream=surface.stream, sync="sync" in driver.modes)
    cells = {(mode, shape) for mode in DECLARED_MODES for shape in SHAPES}
    assert set(adapter.unsupported) <= cells
    assert outside_tested_range(adapter.tested) == []


# ---------------------------------------------------------------------- streams and endings


@pytest.mark.parametrize("reads", [False, True], ids=["no policy reads it", "a policy reads it"])
@setups(streams=True)
def test_an_allowed_stream_keeps_every_piece(driver: Driver, way: str, mode: str, reads: bool) -> None:
    """Passed on as it comes, or withheld until it is judged: the reader gets each piece once, in order."""
    text = "one two three four five"
    policy = Judge(Point.INPUT, lambda judge, action: None)
    policy.reads_replies = reads
    with playing(driver, way, policy, asks(("c1", "look", {"path": "x"})), says(text)) as (server, governor, _):
        outcome = driver.run(Program(server.base_url, governor, way, mode, [look]))
    assert all(request.body["stream"] is True for request in server.requests)
    assert len(outcome.pieces) > 1
    assert "".join(outcome.pieces) == outcome.answer == text


@setups(streams=True, withheld=True)
def test_a_rewritten_answer_has_no_piece_of_the_old_one(driver: Driver, way: str, mode: str) -> None:
    def hide(judge: Judge, action: Action) -> Decision:
        return judge.transform("hide", "hidden", text=(action.text or "").replace("sesame", "****"))

    with playing(driver, way, Judge(Point.POST_MODEL_CALL, hide), says("the pin is sesame")) as (server, governor, _):
        outcome = driver.run(Program(server.base_url, governor, way, mode, [look]))
    assert "sesame" not in outcome.shown
    assert "".join(outcome.pieces) == outcome.answer == "the pin is ****"


@setups()
def test_abort_ends_the_run(driver: Driver, way: str, mode: str) -> None:
    """The denial is raised, or is the cause of what the framework raises; the tool has not run, and nothing stays open."""
    ran: list[str] = []

    def act(path: str) -> str:
        """Acts."""
        ran.append(path)
        return "acted"

    policy = Judge(Point.PRE_TOOL_CALL, lambda judge, action: replace(judge.deny("no", "stop at once"), abort=True))
    replies = asks(("c1", "act", {"path": "x"})), says(ANSWER)
    with (
        playing(driver, way, policy, *replies) as (server, governor, seen),
        pytest.raises(Exception, match="stop at once") as raised,
    ):
        driver.run(Program(server.base_url, governor, way, mode, [act]))
    causes = [raised.value, raised.value.__cause__]
    assert any(isinstance(cause, PolicyDenied) for cause in causes), causes
    assert ran == []
    assert len(server.requests) == 1
    assert [outcome.status for outcome in seen.outcomes] == ["denied"]
    assert all(span.ended_at is not None for span in seen.spans)


# ---------------------------------------------------------------------- instrumentation


@pytest.fixture
def governor() -> Iterator[Governor]:
    governor = Governor([Judge(Point.INPUT, lambda judge, action: None)])
    yield governor
    governor.close()


@each_driver
def test_instrumentation_is_repeated_and_undone(driver: Driver, governor: Governor) -> None:
    before = driver.patched()
    with driver.governed("instrumented", governor):
        patched = driver.patched()
        assert all(new is not old for new, old in zip(patched, before, strict=True))
        driver.instrumentor.instrument(governor)
        assert driver.patched() == patched
        other = Governor([])
        with pytest.raises(InstrumentationError, match="another governor"):
            driver.instrumentor.instrument(other)
        other.close()
        assert driver.patched() == patched
        assert driver.instrumentor.governor is governor
    assert driver.patched() == before
    assert driver.instrumentor.governor is None
    driver.instrumentor.uninstrument()


@each_driver
def test_a_probe_that_gets_through_refuses(driver: Driver, governor: Governor, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no patch had an effect in some other version of the framework: then nothing stays patched."""
    before = driver.patched()
    monkeypatch.setattr(type(driver.instrumentor), "governor", None)
    with pytest.raises(InstrumentationError, match="cannot be governed here"):
        driver.instrumentor.instrument(governor)
    assert driver.patched() == before


@each_driver
def test_without_the_framework_instrumentation_says_so(
    driver: Driver, governor: Governor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in driver.instrumentor.modules:
            monkeypatch.setitem(sys.modules, name, None)
    for name in driver.instrumentor.modules:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, driver.instrumentor.patching, raising=False)
    assert not driver.instrumentor.lgov_framework().installed()
    with pytest.raises(
        InstrumentationError, match=f"{driver.instrumentor.title} cannot be governed here: ModuleNotFound"
    ):
        driver.instrumentor.instrument(governor)
    assert driver.instrumentor.governor is None


@each_driver
def test_a_version_outside_the_tested_range_is_warned_of(
    driver: Driver, governor: Governor, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(driver.instrumentor.tested))
    monkeypatch.setattr(driver.instrumentor, "tested", {name: ">=99"})
    with pytest.warns(UserWarning, match=rf"{name} \S+ is outside the range lgov was tested with \(>=99\)"):
        driver.instrumentor.instrument(governor)
    driver.instrumentor.uninstrument()


async def test_instrumentation_inside_a_running_loop(governor: Governor) -> None:
    for driver in DRIVERS:
        with driver.governed("instrumented", governor):
            assert driver.instrumentor.governor is governor


NAMES_FIRST = """
from lgov_langchain import LgovMiddleware
from lgov_autogen import GovernedWorkbench
from lgov_openai import govern_client
from lgov_openai_agents import LgovRunner
import importlib
packages = ("lgov_langchain", "lgov_autogen", "lgov_openai", "lgov_openai_agents")
print([importlib.import_module(f"{package}.instrumentor").INSTRUMENTOR.governor is not None for package in packages])
"""


def test_a_governed_program_may_import_an_adapters_names_before_its_framework(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("version: 1\nrules:\n  - {name: all, tools: [look], use: allow}\n")
    (tmp_path / "agent.py").write_text(NAMES_FIRST)
    command = [sys.executable, "-m", "lgov_core", "run", "--policy", "policy.yaml", "--", sys.executable, "agent.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "[True, True, True, True]" in done.stdout, done.stdout + done.stderr


@each_driver
def test_agents_without_a_policy_run_as_they_would(driver: Driver) -> None:
    """The cells test something: the same agent without lgov does it."""
    ran: list[str] = []

    def erase_file(path: str) -> str:
        """Erases a file."""
        ran.append(path)
        return "erased"

    with ScriptedModelServer([asks(("c1", "erase_file", {"path": "x"})), says("done")]) as server:
        program = Program(server.base_url, Governor([]), "none", driver.modes[0], [erase_file])
        assert driver.run(program).answer == "done"
    assert ran == ["x"]
