"""Edges: slow policies, cancelled and retried calls, streams that break off, other adapters beside, the known gaps."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from lgov_core.errors import InstrumentationError, PolicyDenied
from lgov_core.governor import Governor
from lgov_core.instrumentation import Step
from lgov_core.policies.base import BoundedPolicy
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, ModelCallFailed, Point
from lgov_openai import govern_client, instrument, uninstrument
from lgov_openai import instrumentor as instrumentation
from lgov_openai.plugin import GAPS, lgov_framework
from tests.cells import ANSWER, NoErasing, Seen, asks, live_span, open_cell, says
from tests.openai import openai_programs as programs

USER = {"role": "user", "content": "go"}


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def governor(seen: Seen) -> Iterator[Governor]:
    made = Governor([NoErasing(["erase_file"])], plugins=[seen], timeout_s=0.2)
    yield made
    made.close()


@pytest.fixture
def instrumented(governor: Governor) -> Iterator[Governor]:
    instrument(governor)
    yield governor
    uninstrument()


def chat(client: openai.OpenAI, *messages: Any, **asked: Any) -> Any:
    return client.chat.completions.create(model="m", messages=list(messages) or [USER], **asked).choices[0].message


# ---------------------------------------------------------------------- time, failure, retries


def test_a_policy_that_is_too_slow_denies_and_the_model_reads_it(seen):
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


def test_a_retried_call_is_judged_and_recorded_once(governor, seen):
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


async def test_a_call_that_is_cancelled_leaves_no_open_span(governor, seen):
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


@pytest.mark.parametrize("cut_at", [1, 3])
def test_a_stream_that_breaks_off_brings_nothing_of_what_it_said(governor, cut_at: int):
    with ScriptedModelServer([ScriptedReply("one two", cut_at=cut_at)]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        with pytest.raises(openai.APIConnectionError):
            client.chat.completions.create(model="m", messages=[USER], stream=True)


def test_a_stream_that_ends_without_an_end_is_withheld(governor):
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    open_end = {**chunk, "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    body = f"data: {json.dumps(open_end)}\n\ndata: [DONE]\n\n".encode()
    failing = f"data: {json.dumps(open_end)}\n\n".encode() + b'data: {"error": {"message": "overloaded"}}\n\n'
    streams = [ScriptedReply(body=one, content_type="text/event-stream") for one in (body, failing)]
    with ScriptedModelServer([*streams, ScriptedReply(body=b"[1]"), ScriptedReply(body=b"<html>")]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        with pytest.raises(PolicyDenied, match="cannot be read"):
            client.chat.completions.create(model="m", messages=[USER], stream=True)
        with pytest.raises(openai.APIError, match="overloaded"):
            list(client.chat.completions.create(model="m", messages=[USER], stream=True))
        for _ in range(2):
            with pytest.raises(PolicyDenied, match="cannot be read"):
                chat(client)


def test_the_calls_of_a_stream_are_those_that_were_judged(governor):
    """What was judged and what the program assembles must be one thing, however a server cuts its chunks."""
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def part(**delta: Any) -> dict[str, Any]:
        return {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": delta.pop("end", None)}]}

    pieces = [
        part(role="assistant", tool_calls=[{"index": 0, "id": "c1", "type": "function",
                                            "function": {"name": "lo", "arguments": ""}}]),
        part(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "ok", "arguments": '{"pa'}}]),
        part(tool_calls=[{"index": 0, "function": {"arguments": 'th": "x"}'}}]),
        part(end="tool_calls"),
    ]  # fmt: skip
    body = "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces).encode() + b"data: [DONE]\n\n"
    with ScriptedModelServer([ScriptedReply(body=body, content_type="text/event-stream")]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        message = programs.assembled(client.chat.completions.create(model="m", messages=[USER], stream=True))
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path": "x"}'}}
    ]


def test_a_stream_whose_events_disagree_brings_only_what_was_judged(governor):
    """A server whose finished item is another call than the response it ends with."""
    judged_item = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"}
    other = {**judged_item, "name": "erase_file"}
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed",
                "output": [judged_item], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    events = [
        {"type": "response.created", "sequence_number": 0, "response": {**response, "output": []}},
        {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": other},
        {"type": "response.output_item.done", "sequence_number": 2, "output_index": 0, "item": other},
        {"type": "response.completed", "sequence_number": 3, "response": response},
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    with ScriptedModelServer([ScriptedReply(body=body, content_type="text/event-stream")]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        given = list(client.responses.create(model="m", input="go", stream=True))
    assert "erase_file" not in str(given)
    assert [event.item.name for event in given if event.type == "response.output_item.done"] == ["look"]


# ---------------------------------------------------------------------- many at once


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


def test_the_endpoint_learns_the_rollout_and_nobody_else_does(governor, monkeypatch):
    with ScriptedModelServer([says("a"), says("b")]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        with enter_scope(RolloutScope("r-7", 2)):
            monkeypatch.setenv("LGOV_ENDPOINT", server.base_url.removesuffix("/v1"))
            chat(client)
            monkeypatch.setenv("LGOV_ENDPOINT", "http://127.0.0.1:1")
            chat(client)
    assert [server.requests[0].headers[name] for name in ("x-lgov-rollout-id", "x-lgov-attempt")] == ["r-7", "2"]
    assert not any(name.startswith("x-lgov") for name in server.requests[1].headers)


def test_spans_stand_under_what_the_program_opened(governor, seen):
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


def test_a_text_that_a_tool_says_is_not_the_users(governor, seen):
    with ScriptedModelServer([says("a")]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        with live_span(governor, semconv.EXECUTE_TOOL, "ask_expert") as tool:
            chat(client)
    (heard,) = seen.decisions(Point.INPUT)
    assert heard.action.parent_id == tool.span_id


# ---------------------------------------------------------------------- beside other adapters


def judged(seen: Seen) -> list[tuple[str, str, str | None]]:
    return [
        (event.action.point.value, event.action.name, event.action.framework)
        for event in seen.events
        if type(event).__name__ == "ObservedDecision"
    ]


@pytest.mark.parametrize("way", ["create_agent", "graph", "loop", "stream", "ainvoke"])
def test_beside_langchain_nothing_is_judged_twice(way: str, tmp_path: Path):
    pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool

    import lgov_langchain

    @tool
    def erase_file(path: str) -> str:
        """Erases."""
        return cell.erase(path)

    path = str(tmp_path / "precious.txt")
    with open_cell(tmp_path, asks(("c1", "erase_file", {"path": path})), says(ANSWER)) as cell:
        lgov_langchain.instrument(cell.governor)
        instrument(cell.governor)
        try:
            from langchain_openai import ChatOpenAI

            model = ChatOpenAI(model="m", base_url=cell.base_url, api_key="k", max_retries=0)
            answer = _langchain_run(way, model, erase_file, HumanMessage("Erase it."))
        finally:
            uninstrument()
            lgov_langchain.uninstrument()
        assert answer == ANSWER
        assert {one[2] for one in judged(cell.seen)} == {"langchain"}
        counted = [one for one in judged(cell.seen) if one[0] in ("pre_tool_call", "pre_model_call", "input")]
        assert sorted(point for point, *_ in counted) == ["input", "pre_model_call", "pre_model_call", "pre_tool_call"]
        chats = [span for span in cell.seen.spans if span.attributes[semconv.OPERATION] == semconv.CHAT]
        assert len(chats) == 2
        assert len(cell.server.requests) == 2
        assert Path(path).exists()


def _langchain_run(way: str, model: Any, erase_file: Any, question: Any) -> str:
    from langchain.agents import create_agent
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    if way in ("create_agent", "stream", "ainvoke"):
        agent = create_agent(model, [erase_file])
        asked = {"messages": [question]}
        if way == "ainvoke":
            return asyncio.run(agent.ainvoke(asked))["messages"][-1].text
        if way == "stream":
            *_, last = agent.stream(asked, stream_mode="values")
            return last["messages"][-1].text
        return agent.invoke(asked)["messages"][-1].text
    bound = model.bind_tools([erase_file])
    if way == "graph":
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode([erase_file]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        return graph.compile().invoke({"messages": [question]})["messages"][-1].text
    messages = [question]
    while True:
        reply = bound.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            return reply.text
        messages += [erase_file.invoke(call) for call in reply.tool_calls]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_beside_the_agents_sdk_nothing_is_judged_twice(api: str, streamed: bool, tmp_path: Path):
    agents = pytest.importorskip("agents")
    import lgov_openai_agents

    def erase_file(path: str) -> str:
        return cell.erase(path)

    path = str(tmp_path / "precious.txt")
    with open_cell(tmp_path, asks(("c1", "erase_file", {"path": path})), says(ANSWER)) as cell:
        lgov_openai_agents.instrument(cell.governor)
        instrument(cell.governor)
        try:
            client = programs.aclient(cell.base_url)
            kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
            agent = agents.Agent(
                name="clerk", model=kind(model="m", openai_client=client), tools=[agents.function_tool(erase_file)]
            )
            if streamed:
                run = agents.Runner.run_streamed(agent, "Erase it.")
                async for _ in run.stream_events():
                    pass
            else:
                run = await agents.Runner.run(agent, "Erase it.")
            answer = run.final_output
            await client.close()
        finally:
            uninstrument()
            lgov_openai_agents.uninstrument()
        _check_judged_once(cell, answer)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_beside_autogen_nothing_is_judged_twice(streamed: bool, tmp_path: Path):
    pytest.importorskip("autogen_ext")
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    import lgov_autogen

    async def erase_file(path: str) -> str:
        """Erases."""
        return cell.erase(path)

    info: Any = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown",
                 "structured_output": False}  # fmt: skip
    path = str(tmp_path / "precious.txt")
    with open_cell(tmp_path, asks(("c1", "erase_file", {"path": path})), says(ANSWER)) as cell:
        lgov_autogen.instrument(cell.governor)
        instrument(cell.governor)
        try:
            model = OpenAIChatCompletionClient(model="m", base_url=cell.base_url, api_key="k", model_info=info)
            agent = AssistantAgent(
                "clerk", model, tools=[erase_file], max_tool_iterations=5, model_client_stream=streamed
            )
            answer = (await agent.run(task="Erase it.")).messages[-1].to_text()
            await model.close()
        finally:
            uninstrument()
            lgov_autogen.uninstrument()
        _check_judged_once(cell, answer)


def _check_judged_once(cell: Any, answer: str) -> None:
    assert answer == ANSWER
    assert "openai" not in {one[2] for one in judged(cell.seen)}
    counted = [one[0] for one in judged(cell.seen) if one[0] in ("pre_tool_call", "pre_model_call", "input")]
    assert sorted(counted) == ["input", "pre_model_call", "pre_model_call", "pre_tool_call"]
    assert len([span for span in cell.seen.spans if span.attributes[semconv.OPERATION] == semconv.CHAT]) == 2
    assert len(cell.server.requests) == 2
    assert cell.file.exists()


def test_instrumented_and_by_the_line_with_one_governor_judges_once_with_two_both_have_their_say(instrumented, seen):
    class Other(BoundedPolicy):
        name = "other"

        def judge(self, action: Action) -> Decision | None:
            if action.point is Point.PRE_TOOL_CALL:
                return self.deny("mine", "not for me") if action.name == "look" else self.allow("fine")
            return None

    other = Governor([Other()])
    script = [asks(("c1", "look", {}), ("c2", "erase_file", {}), ("c3", "add", {})), says("ok")]
    with ScriptedModelServer([*script, script[0]]) as server:
        message = chat(govern_client(programs.client(server.base_url), instrumented))
        assert [call.id for call in message.tool_calls] == ["c1", "c3"]
        assert len(seen.decisions()) == 3
        chat(programs.client(server.base_url), {"role": "user", "content": "other"})
        both = chat(govern_client(programs.client(server.base_url), other), {"role": "user", "content": "more"})
        assert [call.id for call in both.tool_calls] == ["c3"]
    other.close()


# ---------------------------------------------------------------------- instrumentation


def test_instrumentation_covers_clients_made_before_subclasses_and_azure(governor):
    with ScriptedModelServer([asks(("c1", "erase_file", {})), says("no")] * 3) as server:

        class Own(openai.OpenAI):
            pass

        before = programs.client(server.base_url)
        instrument(governor)
        try:
            azure = openai.AzureOpenAI(
                azure_endpoint=server.base_url.removesuffix("/v1"), api_key="k", api_version="2024-10-21", max_retries=0
            )
            own = Own(base_url=server.base_url, api_key="k")
            assert [chat(client).content for client in (before, own, azure)] == ["no"] * 3
        finally:
            uninstrument()
    assert "/deployments/m/chat/completions" in server.requests[-1].path
    with ScriptedModelServer([asks(("c1", "erase_file", {}))]) as server:
        assert chat(before.with_options(base_url=server.base_url)).tool_calls, "uninstrumented, it still judges"


@pytest.mark.parametrize("what", ["text", [7], [None], {"a": 1}])
def test_a_request_that_cannot_be_read_is_denied(governor, what):
    with ScriptedModelServer([]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        with pytest.raises(PolicyDenied, match="unreadable-request"):
            client.chat.completions.create(model="m", messages=what)
        if what != "text":  # which is a question there
            with pytest.raises(PolicyDenied, match="unreadable-request"):
                client.responses.create(model="m", input=what)
    assert server.requests == []


def test_instrumentation_refuses_where_a_probe_gets_through(governor, monkeypatch):
    from lgov_openai import interceptor

    def passes_on(self, request, send):
        return (yield Step(lambda: send(request)))

    monkeypatch.setattr(interceptor.Interceptor, "steps", passes_on)
    with pytest.raises(
        InstrumentationError, match=r"reached the program.*chat\.completions\.create.*responses\.create"
    ):
        instrument(governor)
    assert openai.OpenAI.request.__qualname__ == "SyncAPIClient.request"


async def test_instrumentation_inside_a_running_loop(governor):
    instrument(governor)
    uninstrument()


def test_a_version_outside_the_range_is_told_and_one_governor_excludes_another(governor, monkeypatch):
    monkeypatch.setitem(instrumentation.TESTED, "openai", ">=99")
    with pytest.warns(UserWarning, match=r"openai 3\.\S+ is outside the range lgov was tested with \(>=99\)"):
        instrument(governor)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            instrument(governor)
        other = Governor([])
        with pytest.raises(InstrumentationError, match="already governed"):
            instrument(other)
        other.close()
    finally:
        uninstrument()


def test_without_openai_the_adapter_says_so():
    program = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "openai":
            raise ModuleNotFoundError("No module named 'openai'", name="openai")
sys.meta_path.insert(0, Gone())
from lgov_core.errors import InstrumentationError
from lgov_core.governor import Governor
from lgov_core.instrumentation import Step
from lgov_openai.plugin import lgov_framework
try:
    lgov_framework().instrument(Governor([]))
except InstrumentationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "openai cannot be governed here: ModuleNotFoundError" in done.stdout


# ---------------------------------------------------------------------- the known gaps


@pytest.mark.gap("openai", "calls the model did not propose")
def test_what_the_program_does_of_itself_is_not_seen(instrumented, seen, tmp_path):
    """The gap: the loop erases other files than the model asked for. Nobody judges that."""
    file = tmp_path / "precious.txt"
    file.write_text("precious")
    with ScriptedModelServer([asks(("c1", "look", {"path": str(file)}))]) as server:
        for _ in chat(programs.client(server.base_url)).tool_calls:
            file.unlink()
    assert not file.exists()
    assert [one.action.name for one in seen.decisions()] == ["look"]
    assert GAPS[0].name == "calls the model did not propose"


@pytest.mark.gap("openai", "other ways to a model")
def test_a_request_that_does_not_go_through_the_client_is_not_seen(instrumented, seen):
    import httpx

    with ScriptedModelServer([asks(("c1", "erase_file", {}))]) as server:
        reply = httpx.post(f"{server.base_url}/chat/completions", json={"model": "m", "messages": [USER]}).json()
    assert reply["choices"][0]["message"]["tool_calls"]
    assert seen.events == []


@pytest.mark.gap("openai", "hosted tools")
def test_a_hosted_tool_has_run_when_the_reply_comes(instrumented, seen):
    item = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
    body = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [item],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    with ScriptedModelServer([ScriptedReply(body=json.dumps(body).encode())]) as server:
        response = programs.client(server.base_url).responses.create(model="m", input="go")
    assert [one.type for one in response.output] == ["web_search_call"]
    assert seen.decisions() == []


def test_the_adapter_declares_what_it_is():
    adapter = lgov_framework()
    assert (adapter.name, adapter.modules, adapter.installed()) == ("openai", ("openai",), True)
    assert set(adapter.surface) == {
        point for point in Point if point not in (Point.AGENT_STARTUP, Point.AGENT_SHUTDOWN)
    }
    assert all(adapter.unsupported[mode, shape] for mode in ("sync", "async", "streaming")
               for shape in ("hand-off", "agent-as-tool"))  # fmt: skip
