"""Slow, retried, cancelled and concurrent calls, and their spans."""

from __future__ import annotations

import asyncio
import socket
import threading
from functools import partial
from typing import Any

import httpx2
import openai
import pytest

from lgov_core.governor import Governor
from lgov_core.instrumentation.model_call import was_refused
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, ModelCallFailed, Point
from lgov_openai import govern_client
from tests.cells import asks, live_span, says
from tests.openai import openai_programs as programs
from tests.openai.rules import USER, chat


def test_a_slow_policy_denies_and_the_model_reads_it(seen):
    class Slow:
        name = "slow"

        def judge(self, action: Action) -> Decision | None:
            if action.point is Point.PRE_TOOL_CALL:
                released.wait(30)
            return None

    released = threading.Event()
    slow = Governor([Slow()], plugins=[seen], timeout_s=0.05)
    with ScriptedModelServer([asks(("c1", "look", {})), says("no")]) as server:
        assert chat(govern_client(programs.client(server.base_url), slow)).content == "no"
    released.set()
    slow.close()
    assert "did not answer within" in server.requests[1].body["messages"][-1]["content"]


def test_a_retried_call_is_evaluated_and_recorded_once(governor, seen):
    busy = ScriptedReply("busy", status=503)
    script = [busy, asks(("c1", "look", {}), ("c2", "erase_file", {})), busy, busy, says("ok")]
    with ScriptedModelServer(script) as server:
        client = govern_client(programs.client(server.base_url, max_retries=3), governor)
        message = chat(client)
        chat(client, USER, message, {"role": "tool", "tool_call_id": "c1", "content": "seen"})
    assert [outcome.action.call_id for outcome in seen.outcomes] == ["c2", "c1"]
    assert len(seen.decisions(Point.INPUT)) == 1
    assert len(seen.decisions(Point.POST_TOOL_CALL)) == 1
    failed = [event for event in seen.events if isinstance(event, ModelCallFailed)]
    assert [one.refused for one in failed] == [True] * 3
    assert server.requests[4].body == server.requests[3].body == server.requests[2].body


def test_an_error_of_the_connection_says_whether_the_model_may_have_run():
    """To openai it is the same whether no connection was made or it broke after the request was sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hangs_up() -> None:
            connection = server.accept()[0]
            connection.recv(65_536)
            connection.close()

        threading.Thread(target=hangs_up).start()
        client = programs.client(f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        with pytest.raises(openai.APIConnectionError) as broken:
            chat(client)
    with pytest.raises(openai.APIConnectionError) as unmade:
        chat(client)
    assert (was_refused(broken.value), was_refused(unmade.value)) == (False, True)


@pytest.mark.parametrize(("status", "refused"), [(200, False), (429, True), (500, True), (504, False)])
def test_a_status_says_whether_a_call_was_refused(status: int, refused: bool):
    response = httpx2.Response(status, request=httpx2.Request("POST", "http://127.0.0.1:1/v1"))
    error = openai.APIResponseValidationError if status == 200 else partial(openai.APIStatusError, "no")
    assert was_refused(error(response=response, body=None)) is refused


async def test_a_cancelled_call_leaves_no_open_span(governor, seen):
    gate = threading.Event()
    with ScriptedModelServer([ScriptedReply("late", gate=gate)]) as server:
        client = govern_client(programs.aclient(server.base_url), governor)
        asking = asyncio.create_task(client.chat.completions.create(model="m", messages=[USER]))
        while not server.requests:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        gate.set()
        await client.close()
    (span,) = seen.spans
    assert (span.attributes[semconv.OPERATION], span.attributes["error.type"]) == ("chat", "CancelledError")
    assert [type(event) for event in seen.events if isinstance(event, ModelCallFailed)] == [ModelCallFailed]


async def test_one_client_in_a_hundred_rollouts_at_once(governor, seen):
    def script(body: Any) -> ScriptedReply:
        (name,) = {one["content"] for one in body["messages"] if one["role"] == "user"}
        if body["messages"][-1]["role"] == "user":
            return asks((f"{name}-e", "erase_file", {}), (f"{name}-l", "look", {"path": name}))
        return says(f"{name} done")

    async def run(name: str, client: openai.AsyncOpenAI) -> str:
        with enter_scope(RolloutScope(name)):
            messages: list[Any] = [{"role": "user", "content": name}]
            reply = await client.chat.completions.create(model="m", messages=messages)
            messages.append(reply.choices[0].message)
            for call in reply.choices[0].message.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": call.function.arguments})
            return (await client.chat.completions.create(model="m", messages=messages)).choices[0].message.content or ""

    names = [f"r{number}" for number in range(100)]
    with ScriptedModelServer(script) as server:
        async with govern_client(programs.aclient(server.base_url), governor) as client:
            answers = await asyncio.gather(*(run(name, client) for name in names))
    assert answers == [f"{name} done" for name in names]
    found = sorted((outcome.action.rollout_id, outcome.action.call_id, outcome.status) for outcome in seen.outcomes)
    assert found == sorted(
        (name, f"{name}-{end}", status) for name in names for end, status in (("e", "denied"), ("l", "ok"))
    )
    assert {span.rollout_id for span in seen.spans} == set(names)
    assert all(span.ended_at is not None for span in seen.spans)


def test_only_the_endpoint_gets_the_rollout_headers(governor, monkeypatch):
    with ScriptedModelServer([says("a"), says("b")]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        with enter_scope(RolloutScope("r-7", 2)):
            monkeypatch.setenv("LGOV_ENDPOINT", server.base_url.removesuffix("/v1"))
            chat(client)
            monkeypatch.setenv("LGOV_ENDPOINT", "http://127.0.0.1:1")
            chat(client)
    assert [server.requests[0].headers[name] for name in ("x-lgov-rollout-id", "x-lgov-attempt")] == ["r-7", "2"]
    assert not any(name.startswith("x-lgov") for name in server.requests[1].headers)


def test_spans_are_children_of_the_program_s_span(governor, seen):
    with ScriptedModelServer([asks(("c1", "look", {})), says("ok")]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        with live_span(governor, semconv.INVOKE_AGENT, "clerk"):
            message = chat(client)
            chat(client, USER, message, {"role": "tool", "tool_call_id": "c1", "content": "secret"})
    (agent,) = [span for span in seen.spans if span.attributes[semconv.OPERATION] == semconv.INVOKE_AGENT]
    others = [span for span in seen.spans if span is not agent]
    assert sorted(span.name for span in others) == ["chat m", "chat m", "execute_tool look"]
    assert {span.parent_id for span in others} == {agent.span_id}
    assert "secret" not in str(seen.spans), "content is on a span although nobody asked for it"


def test_a_message_inside_a_tool_names_the_tool_as_parent(governor, seen):
    with ScriptedModelServer([says("a")]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        with live_span(governor, semconv.EXECUTE_TOOL, "ask_expert") as tool:
            chat(client)
    (heard,) = seen.decisions(Point.INPUT)
    assert heard.action.parent_id == tool.span_id
