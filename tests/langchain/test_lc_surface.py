"""What the adapter declares it can do is what it does, flag by flag; and its known gaps are shown to be there."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import langchain.agents
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from scripted import Judging, ModelServer, Witness, allow, calls, deny, make_governor, says

from lgov_core.instrumentation.framework import MODES, SHAPES, Surface
from lgov_core.types import Action, Decision, Effect, Point
from lgov_langchain import instrument, uninstrument
from lgov_langchain.instrumentor import INSTRUMENTOR, lgov_framework

ran: list[str] = []

#: At which action of each point a policy has its say, and what it makes of it.
MARKS = {
    Point.INPUT: "alpha",
    Point.PRE_MODEL_CALL: "alpha",
    Point.POST_MODEL_CALL: "omega",
    Point.PRE_TOOL_CALL: "beta",
    Point.POST_TOOL_CALL: "gamma",
    Point.OUTPUT: "omega",
}


@tool
def note(text: str) -> str:
    """Notes."""
    ran.append(text)
    return f"{text} gamma"


def changed(action: Action) -> Decision:
    if action.point in (Point.PRE_MODEL_CALL, Point.PRE_TOOL_CALL):
        arguments: Any = dict(action.arguments)
        if action.point is Point.PRE_TOOL_CALL:
            arguments["text"] = "BETA"
        else:
            arguments["messages"] = [{**arguments["messages"][0], "content": "ALPHA"}, *arguments["messages"][1:]]
        return Decision(Effect.TRANSFORM, "t", arguments=arguments)
    mark = MARKS[action.point]
    return Decision(Effect.TRANSFORM, "t", text=(action.text or "").replace(mark, mark.upper()))


def run(mode: str, effect: str, point: Point, server: ModelServer, chat: Any, witness: Witness) -> str:
    """Runs an instrumented agent whose policy has its say at ``point``; gives everything that the caller saw."""

    def judge(action: Action) -> Decision | None:
        about = f"{action.text} {action.arguments.get('messages', '')} {action.arguments.get('text', '')}"
        if action.point is point and MARKS[point] in about:
            return deny("not that") if effect == "deny" else changed(action)
        return allow() if action.point is Point.PRE_TOOL_CALL else None

    ran.clear()
    witness.events.clear()
    server.play(calls(("c1", "note", {"text": "beta"})), says("omega"))
    chat.streaming = mode == "streaming"
    instrument(make_governor(Judging(judge), witness=witness))
    try:
        agent = langchain.agents.create_agent(chat, [note])
        question: Any = {"messages": [("user", "alpha")]}
        if mode == "sync":
            return str(agent.invoke(question)["messages"])
        if mode == "async":
            return str(asyncio.run(agent.ainvoke(question))["messages"])
        texts = [message.text for message, _ in agent.stream(question, stream_mode="messages")]
        return "".join(texts)
    finally:
        uninstrument()


def works(mode: str, point: Point, server: ModelServer, chat: Any, witness: Witness) -> Surface:
    """What can be done at ``point`` in this mode, found out by doing it."""
    found = {"observe": False, "block": False, "tell": False, "transform": False}
    seen = run(mode, "deny", point, server, chat, witness)
    found["observe"] = any(MARKS[point] in str(one.action) for one in witness.decisions(point))
    bodies = list(server.bodies)
    last = str(bodies[-1]["messages"]) if bodies else ""
    found["tell"] = "not that" in last
    before = len(bodies)
    found["block"] = {
        Point.INPUT: before == 0,
        Point.PRE_MODEL_CALL: before == 0,
        Point.PRE_TOOL_CALL: not ran,
        Point.POST_TOOL_CALL: "gamma" not in last,
        Point.POST_MODEL_CALL: "omega" not in seen,
        Point.OUTPUT: "omega" not in seen,
    }[point]
    seen = run(mode, "transform", point, server, chat, witness)
    sent = str(server.bodies[before:])
    found["transform"] = {
        Point.INPUT: "ALPHA" in sent and "alpha" not in sent,
        Point.PRE_MODEL_CALL: "ALPHA" in sent and "alpha" not in sent,
        Point.PRE_TOOL_CALL: ran == ["BETA"],
        Point.POST_TOOL_CALL: "GAMMA" in sent and "gamma" not in sent,
        Point.POST_MODEL_CALL: "OMEGA" in seen and "omega" not in seen,
        Point.OUTPUT: "OMEGA" in seen and "omega" not in seen,
    }[point]
    return Surface(**found)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=pytest.mark.surface("langchain", point.value, *abilities), id=point.value)
        for point, abilities in {
            Point.INPUT: ("observe", "block", "transform", "stream", "sync"),
            Point.PRE_MODEL_CALL: ("observe", "block", "transform", "stream", "sync"),
            Point.POST_MODEL_CALL: ("observe", "block", "transform", "sync"),
            Point.PRE_TOOL_CALL: ("observe", "block", "tell", "transform", "stream", "sync"),
            Point.POST_TOOL_CALL: ("observe", "block", "tell", "transform", "stream", "sync"),
            Point.OUTPUT: ("observe", "block", "transform", "sync"),
        }.items()
    ],
)
def test_what_is_declared_is_what_can_be_done(
    point: Point, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    by_mode: dict[str, Surface] = {}
    for mode in MODES:
        model_server.forget()
        by_mode[mode] = works(mode, point, model_server, chat, witness)
    found = dataclasses.replace(
        by_mode["async"],
        sync=by_mode["sync"] == by_mode["async"],
        stream=by_mode["streaming"] == by_mode["async"],
    )
    assert found == INSTRUMENTOR.surface[point]


def test_no_cell_is_left_out() -> None:
    """All cells of the table are supported, so each has a test that is marked as it."""
    assert lgov_framework().unsupported == {}
    text = (Path(__file__).parent / "test_lc_cells.py").read_text()
    assert all(f'@modes("{shape}")' in text for shape in SHAPES)


# ---------------------------------------------------------------------- known gaps


@pytest.fixture
def denying(witness: Witness) -> Any:
    """An instrumented process in which everything is denied."""
    ran.clear()
    governor = make_governor(Judging(lambda action: deny("no")), witness=witness)
    instrument(governor)
    yield governor
    uninstrument()


def gap(name: str) -> Any:
    return next(one for one in lgov_framework().gaps if one.name == name)


@pytest.mark.gap("langchain", "tool.func")
def test_gap_the_function_behind_a_tool(denying: Any) -> None:
    assert gap("tool.func").calls
    assert note.func("beta") == "beta gamma"  # type: ignore[attr-defined]
    assert "DENIED" in note.invoke({"text": "again"})
    assert ran == ["beta"]


class OwnRun(BaseTool):
    """A tool that goes its own way."""

    name: str = "own"
    description: str = "Goes its own way."

    def _run(self, text: str) -> str:
        return note.func(text)  # type: ignore[attr-defined]

    def run(self, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        return self._run(**tool_input)


@pytest.mark.gap("langchain", "a tool class with its own run")
def test_gap_a_tool_class_with_its_own_run(denying: Any, model_server: ModelServer, chat: Any) -> None:
    assert gap("a tool class with its own run")
    assert OwnRun().invoke({"text": "beta"}) == "beta gamma"
    ran.clear()
    uninstrument()
    instrument(
        make_governor(Judging(lambda a: deny("no") if a.point is Point.PRE_TOOL_CALL else None), witness=Witness())
    )
    model_server.play(calls(("c1", "own", {"text": "beta"})), says("done"))
    langchain.agents.create_agent(chat, [OwnRun()]).invoke({"messages": [("user", "go")]})
    assert ran == [], "in an agent it is judged all the same"


@pytest.mark.gap("langchain", "a model class with its own generate")
def test_gap_a_model_class_with_its_own_generate(denying: Any) -> None:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.outputs import ChatGeneration, ChatResult, LLMResult

    class OwnGenerate(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "own"

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=AIMessage("answered"))])

        def generate(self, messages: Any, *args: Any, **kwargs: Any) -> LLMResult:
            return LLMResult(generations=[list(self._generate(messages[0]).generations)])

    assert gap("a model class with its own generate")
    assert OwnGenerate().invoke("hi").text == "answered"


@pytest.mark.filterwarnings("ignore:.*beta.*")
@pytest.mark.gap("langchain", "event streams of a bare model")
def test_gap_event_streams_of_a_bare_model(
    denying: Any, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    assert gap("event streams of a bare model")
    model_server.play(says("answered"))
    assert chat.stream_events("hi", version="v3").output.text == "answered"
    assert witness.decisions(Point.PRE_MODEL_CALL) == []
    (span,) = witness.spans
    assert span.name == "chat scripted"


@pytest.mark.gap("langchain", "plain text models")
def test_gap_plain_text_models(denying: Any, witness: Witness) -> None:
    from langchain_core.language_models import FakeListLLM

    assert gap("plain text models")
    assert FakeListLLM(responses=["answered"]).invoke("hi") == "answered"
    assert [span.name.split()[0] for span in witness.spans] == ["chat"]


@pytest.mark.gap("langchain", "streamed text")
def test_gap_streamed_text(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    assert gap("streamed text")
    model_server.play(says("the secret is out"))
    instrument(
        make_governor(Judging(lambda a: deny("no") if a.point is Point.POST_MODEL_CALL else None), witness=witness)
    )
    try:
        text = "".join(chunk.text for chunk in chat.stream([HumanMessage("hi")]))
    finally:
        uninstrument()
    assert text.startswith("the secret is out\nDENIED")


@pytest.mark.gap("langchain", "other processes")
def test_gap_other_processes(denying: Any) -> None:
    assert gap("other processes")
    program = (
        "from langchain_core.tools import tool\n@tool\ndef t(x: str) -> str:\n 'T.'\n return x\nprint(t.invoke('ran'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "ran\n"


def test_every_gap_has_its_test() -> None:
    text = Path(__file__).read_text()
    assert all(f'gap("{one.name}")' in text for one in lgov_framework().gaps)
