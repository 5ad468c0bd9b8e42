"""What users said and a policy denied or rewrote does not come back with a later call of the conversation."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import langchain.agents
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel
from scripted import ModelServer, Witness, at, calls, deny, make_governor, says

from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Action, Decision, Effect, Point
from lgov_langchain import LgovMiddleware, instrument, uninstrument

HOW = pytest.mark.parametrize("how", ["invoke", "ainvoke"])
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


class Answer(BaseModel):
    text: str


@tool
def look(path: str) -> str:
    """Looks."""
    return "seen"


def no_secrets(action: Action) -> Decision | None:
    return deny("no secrets") if "secret" in (action.text or "") else None


def mask(action: Action) -> Decision | None:
    text = action.text or ""
    return Decision(Effect.TRANSFORM, "mask", text=text.replace("secret", "***")) if "secret" in text else None


def asked(runnable: Any, how: str, said: Any, config: Any = None) -> Any:
    return runnable.invoke(said, config) if how == "invoke" else asyncio.run(runnable.ainvoke(said, config))


@HOW
@pytest.mark.parametrize("way", ["middleware", "instrumented"])
def test_a_denied_text_is_withheld_from_later_calls_of_an_agent(
    how: str, way: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    governor = make_governor(at(Point.INPUT, no_secrets), witness=witness)
    model_server.play(says("fine"), says("fine"))
    config = {"configurable": {"thread_id": "one"}}
    if way == "instrumented":
        instrument(governor)
    try:
        middleware = [] if way == "instrumented" else [LgovMiddleware(governor)]
        agent = langchain.agents.create_agent(chat, [look], middleware=middleware, checkpointer=InMemorySaver())
        first = asked(
            agent, how, {"messages": [HumanMessage([{"type": "text", "text": "my secret"}, PICTURE])]}, config
        )
        asked(agent, how, {"messages": [("user", "go on")]}, config)
        with enter_scope(RolloutScope("another")):
            asked(agent, how, {"messages": [("user", "and on")]}, config)
    finally:
        uninstrument()
    assert "no secrets" in first["messages"][-1].text
    messages = model_server.bodies[0]["messages"]
    assert "secret" not in json.dumps(messages).replace("no secrets", "")
    assert "image_url" not in json.dumps(messages), "the message was denied as a whole"
    assert [one["role"] for one in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"] == messages[1]["content"]
    assert len(witness.decisions(Point.INPUT)) == 3, "each text once"


@HOW
def test_a_rewritten_text_stays_rewritten_in_a_hand_made_graph(
    how: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    model_server.play(calls(("c1", "look", {"path": "x"})), says("done"))
    instrument(make_governor(at(Point.INPUT, mask), witness=witness))
    try:
        bound = chat.bind_tools([look])

        def ask_model(state: MessagesState) -> dict[str, Any]:
            return {"messages": [bound.invoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", ask_model)
        graph.add_node("tools", ToolNode([look]))
        graph.set_entry_point("model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        said = HumanMessage([{"type": "text", "text": "my secret"}, PICTURE])
        asked(graph.compile(), how, {"messages": [said]})
    finally:
        uninstrument()
    for body in model_server.bodies:
        assert body["messages"][0]["content"] == [{"type": "text", "text": "my ***"}, PICTURE]


def test_a_text_that_is_allowed_by_now_is_sent(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    verdicts = iter([deny("not yet"), None])
    model_server.play(says("fine"))
    instrument(make_governor(at(Point.INPUT, lambda action: next(verdicts)), witness=witness))
    try:
        transcript: list[Any] = [HumanMessage("do it")]
        transcript += [chat.invoke(transcript), HumanMessage("do it")]
        chat.invoke(transcript)
    finally:
        uninstrument()
    told = "DENIED by policy test/no: not yet. It was not run; do not repeat it."
    assert [one["content"] for one in model_server.bodies[0]["messages"]] == [told, told, "do it"]


@HOW
@pytest.mark.parametrize("point", [Point.POST_MODEL_CALL, Point.OUTPUT])
def test_what_is_parsed_from_a_rewritten_reply_is_rewritten(
    how: str, point: Point, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    model_server.play(says('{"text": "the secret"}'))
    instrument(make_governor(at(point, mask), witness=witness))
    try:
        answer = asked(chat.with_structured_output(Answer), how, "what is it?")
    finally:
        uninstrument()
    assert answer == Answer(text="the ***")


def test_what_was_parsed_goes_where_the_new_text_does_not_fit() -> None:
    from lgov_langchain.messages import with_text

    reply = AIMessage("{}", additional_kwargs={"parsed": Answer(text="secret"), "refusal": None})
    assert with_text(reply, "***").additional_kwargs == {"refusal": None}


@pytest.mark.parametrize(
    "reply",
    [
        AIMessage("so", additional_kwargs={"refusal": "not the secret"}),
        AIMessage([{"type": "text", "text": "so"}, {"type": "refusal", "refusal": "not the secret"}]),
        AIMessage("", additional_kwargs={"refusal": "not the secret"}),
    ],
)
def test_a_refusal_is_read_and_replaced_with_the_text(reply: AIMessage) -> None:
    from lgov_langchain.messages import model_reading, text_of, with_text

    assert model_reading(reply).text == "\n".join([*(["so"] if reply.content else []), "not the secret"])
    changed = with_text(reply, "not the ***")
    assert text_of(changed) == "not the ***"
    assert "secret" not in changed.model_dump_json()
