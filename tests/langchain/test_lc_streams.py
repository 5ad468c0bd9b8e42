"""Streamed replies of bare models: what is withheld until the reply is evaluated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from lc_agents import instrumented
from scripted import Judging, ModelServer, Witness, allow, calls, deny, make_governor

from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import register
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Effect, Point
from lgov_langchain import instrument, uninstrument

STREAMS = ["stream", "astream"]


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@pytest.mark.parametrize("how", STREAMS)
def test_tool_calls_are_withheld_until_the_reply_is_evaluated(
    how: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    from lgov_core.testing import ScriptedCall, ScriptedReply

    def reply() -> ScriptedReply:
        asked = [ScriptedCall("add", {"a": 1, "b": 2}, "c1")]
        return ScriptedReply("let me add", tool_calls=asked, headers={"connection": "close"})

    seen: list[tuple[str, bool]] = []
    with instrumented(witness):
        for denied in (False, True):
            model_server.play(reply())
            if denied:
                uninstrument()
                instrument(
                    make_governor(
                        Judging(lambda a: deny("no") if a.point is Point.POST_MODEL_CALL else None), witness=witness
                    )
                )
            chunks = _chunks(chat.bind_tools([add]), how)
            seen.append(("".join(chunk.text for chunk in chunks), any(chunk.tool_call_chunks for chunk in chunks)))
    assert seen[0] == ("let me add", True)
    assert seen[1][0].startswith("let me add\nDENIED")
    assert not seen[1][1]


@pytest.mark.parametrize("how", STREAMS)
@pytest.mark.parametrize("point", ["pre_tool_call", "post_model_call"])
def test_tool_calls_are_withheld_at_whatever_point_is_evaluated(
    point: str, how: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    class Plugin:
        """Evaluates at one point."""

    setattr(Plugin, f"lgov_{point}", hookimpl(specname=f"lgov_{point}")(lambda self, action: allow()))
    governor = make_governor(witness=witness)
    register(governor.manager, Plugin())
    model_server.play(calls(("c1", "add", {"a": 1, "b": 2})))
    ended: list[bool] = []

    def note(chunk: Any) -> None:
        if chunk.tool_call_chunks:
            ended.append(bool(witness.spans))

    instrument(governor)
    try:
        for chunk in _chunks(chat.bind_tools([add]), how, note):
            assert chunk is not None
    finally:
        uninstrument()
    assert ended[0], "what is withheld comes after the call's span has ended"
    assert [one.attributes.get(semconv.ERROR_TYPE) for one in witness.spans] == [None]


def _chunks(model: Any, how: str, note: Callable[[Any], None] = lambda chunk: None) -> list[Any]:
    async def aread() -> list[Any]:
        return [note(chunk) or chunk async for chunk in model.astream("hello")]

    return [note(chunk) or chunk for chunk in model.stream("hello")] if how == "stream" else asyncio.run(aread())


def test_the_whole_reply_of_a_stream_is_withheld(witness: Witness) -> None:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Whole(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "whole"

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=AIMessage("the secret"))])

    def mask(action: Action) -> Decision | None:
        if action.point is Point.POST_MODEL_CALL and "secret" in (action.text or ""):
            return Decision(Effect.TRANSFORM, "mask", text="the ******")
        return None

    with instrumented(witness, mask):
        assert [chunk.text for chunk in Whole().stream("hi")] == ["the ******"]
    assert len(witness.decisions(Point.PRE_MODEL_CALL)) == 1
