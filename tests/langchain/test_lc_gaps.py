"""The known gaps of the adapter are shown to be there."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import langchain.agents
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from scripted import Judging, ModelServer, Witness, calls, deny, make_governor, says

from lgov_core.types import Point
from lgov_langchain import instrument, uninstrument
from lgov_langchain.instrumentor import lgov_framework

ran: list[str] = []


@tool
def note(text: str) -> str:
    """Notes."""
    ran.append(text)
    return f"{text} gamma"


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
