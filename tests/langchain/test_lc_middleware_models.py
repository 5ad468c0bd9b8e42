"""Model calls of agents with the middleware."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from lc_agents import COUNT, DROP, Database, ask
from scripted import ModelServer, Witness, at, calls, deny, make_governor, says

from lgov_core.governor import Governor
from lgov_core.types import Action, Decision, Effect, Point
from lgov_langchain import LgovMiddleware


def no_drop(action: Action) -> Decision | None:
    return deny("tables stay") if "DROP" in action.arguments.get("query", "") else None


@pytest.fixture
def governor(witness: Witness) -> Governor:
    return make_governor(at(Point.PRE_TOOL_CALL, no_drop), witness=witness)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("point", [Point.INPUT, Point.PRE_MODEL_CALL])
def test_a_denied_question_never_reaches_the_model(
    point: Point, how: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    governor = make_governor(at(point, lambda action: deny("not that")), witness=witness)
    messages = ask(create_agent(chat, [], middleware=[LgovMiddleware(governor)]), how, "something bad")
    assert model_server.bodies == []
    assert "not that" in messages[-1].text
    (seen,) = witness.decisions(point)
    said = seen.action.text if point is Point.INPUT else seen.action.arguments["messages"][-1]["content"]
    assert said == "something bad"


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_denied_reply_proposes_nothing(
    how: str, model_server: ModelServer, chat: Any, database: Database, witness: Witness
) -> None:
    def judge(action: Action) -> Decision | None:
        return deny("no drops") if "DROP" in str(action.arguments["tool_calls"]) else None

    governor = make_governor(at(Point.POST_MODEL_CALL, judge), witness=witness)
    model_server.play(calls(DROP))
    messages = ask(create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)]), how)
    assert database.rows == 3
    assert isinstance(messages[-1], AIMessage)
    assert messages[-1].tool_calls == []
    assert "no drops" in messages[-1].text
    assert witness.decisions() == []


@pytest.mark.parametrize("point", [Point.POST_MODEL_CALL, Point.OUTPUT])
def test_the_answer_can_be_rewritten(point: Point, model_server: ModelServer, chat: Any, witness: Witness) -> None:
    def judge(action: Action) -> Decision | None:
        if action.text and "42" in action.text:
            return Decision(Effect.TRANSFORM, policy="redact", text=action.text.replace("42", "**"))
        return None

    model_server.play(says("it is 42"))
    agent = create_agent(chat, [], middleware=[LgovMiddleware(make_governor(at(point, judge), witness=witness))])
    assert ask(agent, "invoke")[-1].text == "it is **"


@pytest.mark.surface("langchain", "input", "observe", "transform", "sync")
def test_rewritten_user_text_stays_rewritten(
    model_server: ModelServer, chat: Any, database: Database, witness: Witness
) -> None:
    def judge(action: Action) -> Decision | None:
        if action.text and "1234" in action.text:
            return Decision(Effect.TRANSFORM, policy="redact", text=action.text.replace("1234", "****"))
        return None

    governor = make_governor(at(Point.INPUT, judge), witness=witness)
    model_server.play(calls(COUNT), says("done"))
    agent = create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)])
    messages = ask(agent, "invoke", "my pin is 1234")
    assert [body["messages"][0]["content"] for body in model_server.bodies] == ["my pin is ****"] * 2
    assert messages[0].content == "my pin is ****"
    assert len(witness.decisions(Point.INPUT)) == 1


@pytest.mark.surface("langchain", "pre_model_call", "transform", "sync")
def test_messages_rewritten_before_the_call_are_what_is_sent(
    model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    def judge(action: Action) -> Decision | None:
        said = action.arguments["messages"]
        if said[0]["content"] == "be safe":
            return None
        return Decision(
            Effect.TRANSFORM, policy="frame", arguments={"messages": [{"role": "system", "content": "be safe"}, *said]}
        )

    model_server.play(says("ok"))
    governor = make_governor(at(Point.PRE_MODEL_CALL, judge), witness=witness)
    ask(create_agent(chat, [], middleware=[LgovMiddleware(governor)]), "invoke", "hello")
    sent = [(message["role"], message["content"]) for message in model_server.bodies[0]["messages"]]
    assert sent == [("system", "be safe"), ("user", "hello")]


def test_a_denied_structured_answer_is_not_returned(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    from langchain.agents.structured_output import ToolStrategy
    from pydantic import BaseModel

    class Answer(BaseModel):
        """The answer."""

        number: int

    def judge(action: Action) -> Decision | None:
        return deny("no numbers") if "42" in (action.text or "") else None

    governor = make_governor(at(Point.OUTPUT, judge), witness=witness)
    model_server.play(calls(("c1", "Answer", {"number": 42})))
    agent = create_agent(chat, [], response_format=ToolStrategy(Answer), middleware=[LgovMiddleware(governor)])
    state = agent.invoke({"messages": [("user", "how many?")]})
    assert state.get("structured_response") is None
    assert "no numbers" in state["messages"][-1].text
