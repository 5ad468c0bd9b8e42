"""Hand-offs: allowed, denied, and what later requests hold."""

from __future__ import annotations

from typing import Any

import pytest
from agents import (
    Agent,
    ModelSettings,
    RunConfig,
    function_tool,
    handoff,
)
from cells import ANSWER, Seen, asks, says
from cells_agents import (
    chat_model,
    denying,
    instrumented,
    make_governor,
    responses_model,
    run,
)

from lgov_core.testing import ScriptedModelServer
from lgov_core.trace import semconv
from lgov_openai_agents import LgovRunner

CONFIG = RunConfig(tracing_disabled=True)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def erase(ran: list[str]) -> Any:
    @function_tool
    def erase(path: str) -> str:
        """Erases."""
        ran.append(path)
        return f"erased {path}"

    return erase


def test_a_hand_off_whose_arguments_are_read_differently_does_not_happen(seen: Seen) -> None:
    text = '{"why": "a", "why": "b"}'
    with (
        ScriptedModelServer([asks(("c1", "transfer_to_eraser", text)), says(ANSWER)]) as server,
        instrumented(make_governor(lambda action: None, seen)),
    ):
        other = Agent(name="eraser", model=chat_model(server))
        result = run("async", Agent(name="first", model=chat_model(server), handoffs=[other]), "go")
        assert "the arguments of transfer_to_eraser cannot be judged" in str(server.requests[-1].body)
    assert result.last_agent.name == "first"
    (outcome,) = seen.outcomes
    assert (outcome.status, outcome.decision.rule) == ("invalid_args", "unreadable-arguments")
    assert [event.decision for event in seen.decisions()] == [outcome.decision]


@pytest.mark.parametrize("mode", ["sync", "streaming"])
def test_an_allowed_hand_off_goes_on_with_the_other_agent(mode: str, erase: Any, ran: list[str], seen: Seen) -> None:
    replies = [asks(("c1", "transfer_to_eraser", {})), asks(("c2", "erase", {"path": "x"})), says(ANSWER)]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(lambda action: None, seen)):
        other = Agent(name="eraser", model=chat_model(server), tools=[erase])
        first = Agent(name="first", model=chat_model(server), handoffs=[other])
        result = run(mode, first, "go")
    assert result.last_agent is other
    assert ran == ["x"]
    spans = {span.span_id: span for span in seen.spans}
    agents = {span.attributes[semconv.AGENT_NAME]: span for span in seen.spans if span.name.startswith("invoke_agent")}
    assert set(agents) == {"first", "eraser"}
    assert agents["eraser"].parent_id == agents["first"].span_id
    (tool,) = [span for span in seen.spans if span.name == "execute_tool erase"]
    assert spans[tool.parent_id or ""] is agents["eraser"]
    assert tool.attributes[semconv.AGENT_NAME] == "eraser"
    assert [span.attributes[semconv.AGENT_NAME] for span in seen.spans if span.name.startswith("chat")] == [
        "first",
        "eraser",
        "eraser",
    ]
    assert [outcome.action.kind for outcome in seen.outcomes] == ["handoff", "function"]


@pytest.mark.parametrize("way", ["instrumented", "runner"])
@pytest.mark.parametrize("form", ["agent", "handoff"])
def test_the_tools_of_the_next_agent_are_governed(way: str, form: str, erase: Any, ran: list[str]) -> None:
    replies = [asks(("c1", "transfer_to_eraser", {})), asks(("c2", "erase", {"path": "x"})), says(ANSWER)]
    governor = make_governor(denying("erase"))
    with ScriptedModelServer(replies) as server:
        other = Agent(name="eraser", model=chat_model(server), tools=[erase])
        first = Agent(name="first", model=chat_model(server), handoffs=[other if form == "agent" else handoff(other)])
        other.handoffs = [first]  # in a circle
        if way == "instrumented":
            with instrumented(governor):
                result = run("sync", first, "go")
        else:
            result = LgovRunner(governor).run_sync(first, "go", run_config=CONFIG)
        assert "DENIED by policy judging/no" in str(server.requests[-1].body)
    assert result.last_agent.name == "eraser"
    assert ran == []
    assert other.tools == [erase]


def test_a_tool_beside_a_denied_hand_off_is_asked_for_again(erase: Any, ran: list[str]) -> None:
    both = asks(("c1", "transfer_to_other", {}), ("c2", "erase", {"path": "x"}))
    replies = [both, asks(("c3", "erase", {"path": "x"})), says(ANSWER)]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(denying("transfer_to_other"))):
        other = Agent(name="other", model=chat_model(server))
        result = run("sync", Agent(name="a", model=chat_model(server), tools=[erase], handoffs=[other]), "go")
        assert "NOT RUN: another call of the same reply was denied" in str(server.requests[1].body)
        assert result.context_wrapper.usage.requests == 3
    assert result.final_output == ANSWER
    assert ran == ["x"]


@pytest.mark.parametrize("mode", ["sync", "streaming"])
def test_later_turns_still_know_of_a_denied_hand_off(mode: str, erase: Any, ran: list[str]) -> None:
    """The SDK's history has no place for it, so it is put back where it was: the prompts extend one another."""
    replies = [asks(("c1", "transfer_to_other", {})), asks(("c2", "erase", {"path": "x"})), says(ANSWER)]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(denying("transfer_to_other"))):
        other = Agent(name="other", model=chat_model(server))
        run(mode, Agent(name="a", model=chat_model(server), tools=[erase], handoffs=[other]), "go")
        first, second, third = (request.body["messages"] for request in server.requests)
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert "DENIED by policy judging/no" in str(third)
    assert ran == ["x"]


@pytest.mark.parametrize("mode", ["sync", "streaming"])
@pytest.mark.parametrize("kept_in", [{"conversation_id": "conv_1"}, {"previous_response_id": "resp_0"}])
def test_a_transcript_on_the_server_gets_the_denial_and_goes_on(
    mode: str, kept_in: dict[str, str], erase: Any, ran: list[str]
) -> None:
    """A server waits for an answer to each call that it has, and refuses everything else until then."""
    replies = [asks(("c1", "transfer_to_other", {})), asks(("c2", "erase", {"path": "x"})), says(ANSWER)]
    insisting = [asks((f"d{n}", "transfer_to_other", {})) for n in range(4)]
    with (
        ScriptedModelServer([*replies, *insisting, says("fine")]) as server,
        instrumented(make_governor(denying("transfer_to_other"))),
    ):
        model = responses_model(server)
        agent = Agent(name="a", model=model, tools=[erase], handoffs=[Agent(name="other", model=model)])
        agent.model_settings = ModelSettings(tool_choice="transfer_to_other")
        assert run(mode, agent, "go", **kept_in).final_output == ANSWER
        insisted = run(mode, agent, "again", **kept_in)
        further = {"previous_response_id": insisted.last_response_id} if "previous_response_id" in kept_in else kept_in
        assert run(mode, agent, "so?", **further).final_output == "fine"
        bodies = [request.body for request in server.requests]
    sent = [[item.get("call_id") for item in body["input"]] for body in bodies]
    assert sent == [[None], ["c1"], ["c2"], [None], ["d0"], ["d1"], ["d2"], ["d3", None]]
    assert "DENIED" in bodies[1]["input"][0]["output"]
    assert [body.get("tool_choice") for body in bodies[:2]] == [
        {"type": "function", "name": "transfer_to_other"},
        None,
    ], "a model that is made to ask for it can ask for nothing else"
    assert ran == ["x"]


def test_a_model_that_insists_gets_the_denial_as_its_answer(seen: Seen) -> None:
    replies = [asks((f"c{n}", "transfer_to_other", {})) for n in range(4)]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(denying("transfer_to_other"), seen)):
        other = Agent(name="other", model=chat_model(server))
        result = run("sync", Agent(name="a", model=chat_model(server), handoffs=[other]), "go")
    assert "DENIED by policy judging/no" in result.final_output
    assert [outcome.status for outcome in seen.outcomes] == ["denied"] * 4
