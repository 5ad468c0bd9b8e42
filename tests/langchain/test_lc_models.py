"""Model calls of an instrumented process: each is judged once, whoever makes it and however."""

from __future__ import annotations

import asyncio
from typing import Any

import langchain.agents
import pytest
from langchain.agents import create_agent as create_agent_from_before
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from lc_agents import instrumented
from scripted import ModelServer, Witness, calls, deny, says

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation.live_span import model_call_covered
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedCall, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Effect, ModelCallFailed, Point

WAYS = ["invoke", "ainvoke", "stream", "astream", "batch", "abatch", "generate", "agenerate"]
STREAMS = ["stream", "astream"]
POINTS = [Point.INPUT, Point.PRE_MODEL_CALL, Point.POST_MODEL_CALL, Point.OUTPUT]


def ask(model: Any, how: str, said: Any = "hello") -> AIMessage:
    """Asks the model in one of LangChain's ways."""
    if how in ("invoke", "batch", "generate", "stream"):
        if how == "generate":
            return model.generate([[HumanMessage(said)]]).generations[0][0].message
        if how == "stream":
            first, *rest = list(model.stream(said))
            return first + rest if rest else first
        return model.invoke(said) if how == "invoke" else model.batch([said])[0]

    async def later() -> Any:
        if how == "agenerate":
            return (await model.agenerate([[HumanMessage(said)]])).generations[0][0].message
        if how == "astream":
            first, *rest = [chunk async for chunk in model.astream(said)]
            return first + rest if rest else first
        return await model.ainvoke(said) if how == "ainvoke" else (await model.abatch([said]))[0]

    return asyncio.run(later())


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@pytest.mark.parametrize("how", WAYS)
def test_every_way_of_asking_is_judged_once(how: str, model_server: ModelServer, chat: Any, witness: Witness) -> None:
    model_server.play(says("hello you"))
    with instrumented(witness):
        assert ask(chat, how).text == "hello you"
    assert [len(witness.decisions(point)) for point in POINTS] == [1, 1, 1, 1]
    (chat_span,) = witness.spans
    assert chat_span.name == "chat scripted"
    (reply,) = witness.decisions(Point.POST_MODEL_CALL)
    assert chat_span.attributes[semconv.RESPONSE_ID] == reply.action.call_id
    assert str(reply.action.call_id).startswith("chatcmpl")
    assert {seen.action.span_id for seen in witness.decisions(Point.PRE_MODEL_CALL)} == {chat_span.span_id}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(Point.INPUT, marks=pytest.mark.surface("langchain", "input", "block")),
        pytest.param(Point.PRE_MODEL_CALL, marks=pytest.mark.surface("langchain", "pre_model_call", "block")),
    ],
)
def test_a_denied_call_is_not_sent(
    point: Point, how: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    with instrumented(witness, lambda action: deny("not that") if action.point is point else None):
        reply = ask(chat, how)
    assert model_server.bodies == []
    assert "not that" in reply.text
    assert witness.spans[0].attributes[semconv.ERROR_TYPE] == "denied"


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("point", [Point.POST_MODEL_CALL, Point.OUTPUT])
def test_a_denied_reply_asks_for_nothing(
    point: Point, how: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    model_server.play(says("bad words") if point is Point.OUTPUT else calls(("c1", "add", {"a": 1, "b": 2})))
    with instrumented(witness, lambda action: deny("not that") if action.point is point else None):
        reply = ask(chat.bind_tools([add]), how) if how not in ("generate", "agenerate") else ask(chat, how)
    assert reply.tool_calls == []
    assert "DENIED" in reply.text
    assert "not that" in reply.text
    assert ("bad words" in reply.text) == (point is Point.OUTPUT and how in STREAMS), "only what was streamed is out"


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.surface("langchain", "input", "transform")
def test_what_the_user_said_can_be_rewritten(how: str, model_server: ModelServer, chat: Any, witness: Witness) -> None:
    def mask(action: Action) -> Decision | None:
        if action.point is Point.INPUT and "1234" in (action.text or ""):
            return Decision(Effect.TRANSFORM, "mask", text=(action.text or "").replace("1234", "****"))
        return None

    model_server.play(says("ok"))
    with instrumented(witness, mask):
        ask(chat, how, "my pin is 1234")
    assert model_server.bodies[0]["messages"][0]["content"] == "my pin is ****"


@pytest.mark.parametrize("how", [way for way in WAYS if way not in STREAMS])
@pytest.mark.surface("langchain", "output", "transform")
def test_the_answer_can_be_rewritten(how: str, model_server: ModelServer, chat: Any, witness: Witness) -> None:
    def mask(action: Action) -> Decision | None:
        if action.point is Point.OUTPUT and "42" in (action.text or ""):
            return Decision(Effect.TRANSFORM, "mask", text="it is **")
        return None

    model_server.play(says("it is 42"))
    with instrumented(witness, mask):
        assert ask(chat, how).text == "it is **"


@pytest.mark.parametrize("how", WAYS)
def test_abort_is_raised(how: str, model_server: ModelServer, chat: Any, witness: Witness) -> None:
    stop = deny("stop", abort=True)
    with (
        instrumented(witness, lambda action: stop if action.point is Point.PRE_MODEL_CALL else None),
        pytest.raises(PolicyDenied, match="stop"),
    ):
        ask(chat, how)
    assert model_server.bodies == []
    assert all(span.ended_at is not None for span in witness.spans)


def test_several_prompts_are_several_calls(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    model_server.play(says("one"), says("two"))
    prompts = [[HumanMessage("a")], [HumanMessage("forbidden")], [HumanMessage("c")]]
    with instrumented(witness, lambda action: deny("no") if action.text == "forbidden" else None):
        for result in (chat.generate(prompts), None):
            if result is None:
                model_server.play(says("one"), says("two"))
                result = asyncio.run(chat.agenerate(prompts))
            texts = [generation[0].text for generation in result.generations]
            assert len(texts) == 3
            assert "DENIED" in texts[1]
            assert result.llm_output["token_usage"]["total_tokens"] > 0
    assert len(model_server.bodies) == 4


def test_every_one_of_several_replies_is_judged(model_server: ModelServer, witness: Witness) -> None:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Twofold(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "twofold"

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=AIMessage(one)) for one in ("good", "bad")])

    def judge(action: Action) -> Decision | None:
        return deny("bad word") if action.point is Point.POST_MODEL_CALL and action.text == "bad" else None

    with instrumented(witness, judge):
        (both,) = Twofold().generate([[HumanMessage("hi")]]).generations
    assert both[0].text == "good"
    assert "bad word" in both[1].text


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream"])
def test_the_model_calls_of_an_earlier_agent_are_evaluated(
    how: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    model_server.play(calls(("c1", "add", {"a": 1, "b": 2})), says("three"))
    agent = create_agent_from_before(chat, [add], name="clerk")
    with instrumented(witness):
        _run(agent, how)
    _is_one_judged_run(witness, "invoke_agent clerk")


@pytest.mark.filterwarnings("ignore:.*create_react_agent.*")
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream"])
def test_the_prebuilt_react_agent_is_governed(how: str, model_server: ModelServer, chat: Any, witness: Witness) -> None:
    from langgraph.prebuilt import create_react_agent

    model_server.play(calls(("c1", "add", {"a": 1, "b": 2})), says("three"))
    with instrumented(witness):
        _run(create_react_agent(chat, [add], name="clerk"), how)
    _is_one_judged_run(witness, "invoke_agent clerk")


def _run(agent: Any, how: str) -> None:
    question: Any = {"messages": [("user", "1 + 2?")]}
    if how == "ainvoke":
        asyncio.run(agent.ainvoke(question))
    else:
        _ = agent.invoke(question) if how == "invoke" else list(agent.stream(question))


def _is_one_judged_run(witness: Witness, agent: str) -> None:
    assert [len(witness.decisions(point)) for point in POINTS] == [1, 2, 2, 1]
    assert len(witness.decisions(Point.PRE_TOOL_CALL)) == 1
    assert sorted(span.name for span in witness.spans) == ["chat scripted", "chat scripted", "execute_tool add", agent]
    (top,) = [span for span in witness.spans if span.parent_id is None]
    assert top.name == agent
    assert {span.parent_id for span in witness.spans if span is not top} == {top.span_id}


def test_a_model_call_by_an_agents_middleware_is_another_one(
    model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    class Summarizing(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            chat.invoke("summarize: secret")
            return handler(request)

    model_server.play(says("a summary"), says("done"))
    with instrumented(witness):
        langchain.agents.create_agent(chat, [], middleware=[Summarizing()]).invoke({"messages": [("user", "hi")]})
    said = [seen.action.arguments["messages"][-1]["content"] for seen in witness.decisions(Point.PRE_MODEL_CALL)]
    assert said == ["hi", "summarize: secret"]


def test_a_prompt_that_middleware_changes_is_evaluated(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    class Rewriting(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(messages=[HumanMessage("forbidden")]))

    def judge(action: Action) -> Decision | None:
        return deny("no") if "forbidden" in str(action.arguments.get("messages")) else None

    with instrumented(witness, judge):
        agent = langchain.agents.create_agent(chat, [], middleware=[Rewriting()])
        state = agent.invoke({"messages": [("user", "hi")]})
    assert model_server.bodies == []
    assert "DENIED" in state["messages"][-1].text


def test_the_text_of_a_nested_agent_is_not_the_users(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    with instrumented(witness):
        inner = langchain.agents.create_agent(chat, [], name="inner")

        @tool
        def delegate(task: str) -> str:
            """Delegates."""
            return inner.invoke({"messages": [("user", task)]})["messages"][-1].text

        model_server.play(calls(("c1", "delegate", {"task": "sub"})), says("sub done"), says("done"))
        langchain.agents.create_agent(chat, [delegate], name="outer").invoke({"messages": [("user", "hi")]})
    said = {seen.action.text: seen.action.parent_id for seen in witness.decisions(Point.INPUT)}
    (inner_span,) = [span for span in witness.spans if span.name == "invoke_agent inner"]
    assert said == {"hi": None, "sub": inner_span.span_id}


def test_the_client_behind_a_judged_call_is_told_so(
    model_server: ModelServer, chat: Any, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the adapter of the plain client asks before it judges: whether this call has been judged already."""
    covered: list[bool] = []
    convert = type(chat)._get_request_payload

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        covered.append(model_call_covered(governor))
        return convert(self, *args, **kwargs)

    monkeypatch.setattr(type(chat), "_get_request_payload", noting)
    with instrumented(witness) as governor:
        for how in WAYS:
            model_server.play(says("x"))
            ask(chat, how)
    assert len(covered) >= len(WAYS)
    assert all(covered)


@pytest.mark.parametrize("how", WAYS)
def test_a_failed_call_is_noted_and_raised(how: str, model_server: ModelServer, chat: Any, witness: Witness) -> None:
    from lgov_core.testing import ScriptedReply

    model_server.play(ScriptedReply("overloaded", status=503, headers={"connection": "close"}))
    with instrumented(witness), pytest.raises(Exception, match="overloaded"):
        ask(chat, how)
    (failure,) = [event for event in witness.events if isinstance(event, ModelCallFailed)]
    assert failure.refused
    assert all(span.ended_at is not None for span in witness.spans)


@pytest.mark.parametrize("how", WAYS)
def test_bare_calls_to_our_endpoint_carry_the_rollout(
    how: str, model_server: ModelServer, chat: Any, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LGOV_ENDPOINT", model_server.url)
    model_server.play(says("x"))
    with instrumented(witness), enter_scope(RolloutScope("r-9", 3)):
        ask(chat, how)
    assert (model_server.headers[0]["x-lgov-rollout-id"], model_server.headers[0]["x-lgov-attempt"]) == ("r-9", "3")
    assert witness.spans[0].rollout_id == "r-9"


def test_policies_get_the_tools_that_the_model_gets(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    model_server.play(says("hello you"), says("hello you"))
    with instrumented(witness):
        chat.bind_tools([add]).invoke("hello")
        langchain.agents.create_agent(chat, [add]).invoke({"messages": [("user", "hello")]})
    for seen, body in zip(witness.decisions(Point.PRE_MODEL_CALL), model_server.bodies, strict=True):
        assert seen.action.context["tools"] == body["tools"]
        assert "Adds." in str(seen.action.context["tools"])


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("ids", [("c1", "c1"), ("c1", "")])
def test_calls_without_clear_ids_get_them(
    how: str, ids: tuple[str, str], model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    model_server.play(
        ScriptedReply(tool_calls=[ScriptedCall("add", {"a": at, "b": 1}, one) for at, one in enumerate(ids)])
    )
    with instrumented(witness):
        reply = ask(chat, how)
    (read,) = witness.decisions(Point.POST_MODEL_CALL)
    assert [call["id"] for call in reply.tool_calls] == [call["id"] for call in read.action.arguments["tool_calls"]]
    assert reply.tool_calls[0]["id"] == "c1"
    assert reply.tool_calls[1]["id"] not in ("", "c1")
