"""Small programs of every framework and of the endpoint, run against a scripted model under one policy after the other.

`CASES` are what policies do to them, `PROGRAMS` how they are run. `run_case` gives what was decided and shown on the way, what
the model read, and what the program got, as JSON that `test_governed_programs` compares with ``==``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pluggy

from lgov_core import hookspecs
from lgov_core.errors import PolicyDenied
from lgov_core.governor import Governor
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.types import Action, Decision, Effect, Point
from tests.cells import Seen, asks, says
from tests.golden.call_record import recording, unordered

QUESTIONS = ("Tidy up.", "And now?")


class Rules:
    """A policy out of a function; acts that it says nothing about are allowed."""

    name = "golden"
    bounded = True

    def __init__(self, judge: Callable[[Action], Decision | None]) -> None:
        self._judge = judge

    def judge(self, action: Action) -> Decision | None:
        decision = self._judge(action)
        if decision is None and action.point is Point.PRE_TOOL_CALL:
            return Decision(Effect.ALLOW, "golden", "fine", "fine")
        return decision


@dataclass(frozen=True, slots=True)
class Case:
    """What a policy decides, and what the model replies; with ``asked`` questions, one after the other."""

    judge: Callable[[Action], Decision | None]
    replies: Sequence[ScriptedReply]
    asked: int = 1
    ordered: bool = True
    handoff: bool = False


def deny(effect: Effect = Effect.DENY, **fields: Any) -> Decision:
    return Decision(effect, "golden", "no", "not here", **fields)


def change(**fields: Any) -> Decision:
    return Decision(Effect.TRANSFORM, "golden", "change", "changed", **fields)


def at(point: Point, decision: Decision, *names: str, word: str = "") -> Callable[[Action], Decision | None]:
    """``decision`` at one point: for tools of these names, or texts with this word."""

    def judge(action: Action) -> Decision | None:
        if action.point is not point or (names and action.name not in names):
            return None
        return decision if word in (action.text or "") else None

    return judge


def request(new: Callable[[list[dict[str, Any]]], list[Any]]) -> Callable[[Action], Decision | None]:
    """Rewrites the messages of each model call, once: of the new form it says nothing."""

    def judge(action: Action) -> Decision | None:
        if action.point is not Point.PRE_MODEL_CALL or any("seen" in str(one) for one in action.arguments["messages"]):
            return None
        messages = new([dict(message) for message in action.arguments["messages"]])
        return change(arguments={**action.arguments, "messages": messages})

    return judge


def hidden(messages: list[dict[str, Any]]) -> list[Any]:
    return [{**message, "content": message["content"].replace("Tidy", "seen")} for message in messages]


def other_arguments(messages: list[dict[str, Any]]) -> list[Any]:
    """The arguments of every call as "seen.txt"."""
    for message in messages:
        if message.get("tool_calls"):
            message["tool_calls"] = [{**call, "args": {"path": "seen.txt"}} for call in message["tool_calls"]]
    return messages


ERASE = ("c1", "erase_file", {"path": "a.txt"})
LOOK = ("c2", "look", {"path": "b.txt"})
DONE = says("It is done.")
THEN = says("Nothing more.")
_TOOL, _RESULT = Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL
_REPLY, _OUTPUT, _REQUEST = Point.POST_MODEL_CALL, Point.OUTPUT, Point.PRE_MODEL_CALL
_HANDOFF = asks(("c1", "transfer_to_eraser", {}))

CASES: dict[str, Case] = {
    "allowed": Case(lambda action: None, [asks(ERASE), DONE, THEN], asked=2),
    "tool denied": Case(at(_TOOL, deny(), "erase_file"), [asks(ERASE), DONE, asks(LOOK), THEN], asked=2),
    "one of two tools denied": Case(
        at(_TOOL, deny(), "erase_file"), [asks(ERASE, LOOK), DONE, THEN], asked=2, ordered=False
    ),
    "both tools denied": Case(at(_TOOL, deny()), [asks(ERASE, LOOK), DONE], ordered=False),
    "tool denied again and again": Case(at(_TOOL, deny()), [asks((f"c{n}", "look", {"path": "x"})) for n in range(9)]),
    "tool changed": Case(at(_TOOL, change(arguments={"path": "c.txt"}), "erase_file"), [asks(ERASE), DONE]),
    "tool escalated": Case(at(_TOOL, deny(Effect.ESCALATE), "erase_file"), [asks(ERASE), DONE]),
    "tool aborted": Case(at(_TOOL, deny(abort=True), "erase_file"), [asks(ERASE), DONE]),
    "question denied": Case(at(Point.INPUT, deny(), word="Tidy"), [DONE, THEN], asked=2),
    "question changed": Case(at(Point.INPUT, change(text="Wait."), word="Tidy"), [DONE, THEN], asked=2),
    "question aborted": Case(at(Point.INPUT, deny(abort=True), word="Tidy"), [DONE]),
    "request denied": Case(at(_REQUEST, deny()), [DONE]),
    "request aborted": Case(at(_REQUEST, deny(abort=True)), [DONE]),
    "request with other words": Case(request(hidden), [asks(ERASE), DONE, THEN], asked=2),
    "request with other arguments": Case(request(other_arguments), [asks(ERASE), DONE]),
    "request with a message more": Case(
        request(lambda messages: [*messages, {"role": "user", "content": "Be seen."}]), [DONE]
    ),
    "request with what is no message": Case(
        request(lambda messages: [*messages, {"role": "weird", "content": "seen", "much": 1}]), [DONE]
    ),
    "request without messages": Case(request(lambda messages: ["seen", 5]), [DONE]),
    "reply denied": Case(at(_REPLY, deny(), word="done"), [DONE, THEN], asked=2),
    "reply with calls denied": Case(at(_REPLY, deny()), [asks(ERASE), DONE]),
    "reply aborted": Case(at(_REPLY, deny(abort=True)), [DONE]),
    "reply changed": Case(at(_REPLY, change(text="It is hidden."), word="done"), [DONE, THEN], asked=2),
    "reply with calls changed": Case(
        at(_REPLY, change(text="I hid it."), word="Let"),
        [ScriptedReply("Let me.", asks(ERASE).tool_calls, headers=DONE.headers), DONE],
    ),
    "output denied": Case(at(_OUTPUT, deny(), word="done"), [DONE, THEN], asked=2),
    "output changed": Case(at(_OUTPUT, change(text="It is hidden."), word="done"), [DONE, THEN], asked=2),
    "result denied": Case(at(_RESULT, deny(), "erase_file"), [asks(ERASE), DONE, THEN], asked=2),
    "result changed": Case(at(_RESULT, change(text="hidden"), "erase_file"), [asks(ERASE), DONE, THEN], asked=2),
    "no reply": Case(lambda action: None, [ScriptedReply("broken", status=500, headers=DONE.headers)]),
    "two calls of one id": Case(lambda action: None, [asks(ERASE, ("c1", "look", {"path": "b.txt"})), DONE]),
    "hand-off allowed": Case(lambda action: None, [_HANDOFF, DONE], handoff=True),
    "hand-off denied": Case(at(_TOOL, deny(), "transfer_to_eraser"), [_HANDOFF, DONE], handoff=True),
    "hand-off denied again and again": Case(
        at(_TOOL, deny(), "transfer_to_eraser"),
        [asks((f"c{n}", "transfer_to_eraser", {})) for n in range(9)],
        handoff=True,
    ),
}  # fmt: skip


def run_case(case: Case, program: Callable[[Governor, str, Case], Iterator[str]]) -> Any:
    """Everything that can be seen of ``program`` under the policy of ``case``."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    governor = Governor([Rules(case.judge)], plugins=[Seen()], manager=manager, capture_content=True)
    got: list[str] = []
    replies = iter(case.replies)
    server = ScriptedModelServer(lambda body: next(replies, None) or says("The script is at its end."))
    with recording() as record, server:
        try:
            for answer in program(governor, server.base_url, case):
                got.append(answer)
        except PolicyDenied as denied:
            got.append(f"PolicyDenied: {denied}")
        except Exception as error:
            got.append(f"{type(error).__name__}")
        sent = [record.plain(_transcript(one.body)) for one in server.requests]
    governor.close()
    events = record.events if case.ordered else unordered(record.events)
    return json.loads(json.dumps({"events": events, "sent": sent, "got": [record.plain(one) for one in got]}))


def _transcript(body: Any) -> Any:
    return body.get("messages") or [body.get("instructions"), body.get("input"), body.get("previous_response_id")]


def erase_file(path: str) -> str:
    """Erases a file."""
    return f"erased {path}"


def look(path: str) -> str:
    """Looks at a file."""
    return f"{path} is there"


# ---------------------------------------------------------------------- LangChain


def langchain(way: str, mode: str) -> Callable[[Governor, str, Case], Iterator[str]]:
    def program(governor: Governor, base_url: str, case: Case) -> Iterator[str]:
        from langchain.agents import create_agent
        from langchain_core.messages import HumanMessage
        from langchain_core.tools import tool
        from langchain_openai import ChatOpenAI
        from langgraph.graph import END, MessagesState, StateGraph
        from langgraph.types import Command

        import lgov_langchain

        @tool
        def transfer_to_eraser() -> Any:
            """Hands over."""
            return Command(goto="eraser", graph=Command.PARENT)

        streamed: Any = {"streaming": True, "stream_usage": True} if mode == "streaming" else {}
        model = ChatOpenAI(model="scripted", base_url=base_url, api_key="none", max_retries=0, **streamed)  # type: ignore[arg-type]
        middleware: Any = [lgov_langchain.LgovMiddleware(governor)] if way == "explicit" else []
        tools: Any = [transfer_to_eraser] if case.handoff else [tool(erase_file), tool(look)]
        agent: Any = create_agent(model, tools, name="clerk", middleware=middleware)
        if case.handoff:
            graph = StateGraph(MessagesState)
            graph.add_node("clerk", agent, destinations=("eraser", END))
            graph.add_node("eraser", lambda state: {"messages": [HumanMessage("the eraser came")]})
            graph.set_entry_point("clerk")
            agent = graph.compile(name="office")
        if way == "instrumented":
            lgov_langchain.instrument(governor)
        messages: list[Any] = []
        config: Any = {"recursion_limit": 24}
        try:
            for question in QUESTIONS[: case.asked]:
                state: Any = {"messages": [*messages, ("user", question)]}
                if mode == "sync":
                    messages = agent.invoke(state, config)["messages"]
                elif mode == "async":
                    messages = asyncio.run(agent.ainvoke(state, config))["messages"]
                else:
                    parts = list(agent.stream(state, config, stream_mode=["messages", "values"]))
                    messages = [part for kind, part in parts if kind == "values"][-1]["messages"]
                yield messages[-1].text
        finally:
            lgov_langchain.uninstrument()

    return program


# ---------------------------------------------------------------------- AutoGen


def autogen(way: str, mode: str) -> Callable[[Governor, str, Case], Iterator[str]]:
    def program(governor: Governor, base_url: str, case: Case) -> Iterator[str]:
        from autogen_agentchat.conditions import MaxMessageTermination
        from autogen_agentchat.teams import Swarm

        from tests.autogen.autogen_parts import answer_of, governed

        stream = mode == "streaming"
        with asyncio.Runner() as runner, governed(way, governor, base_url) as parts:
            if case.handoff:
                clerk = parts.agent("clerk", stream=stream, handoffs=["eraser"])
                other = parts.agent("eraser", [erase_file], stream=stream)
                agent: Any = Swarm([clerk, other], termination_condition=MaxMessageTermination(4))
            else:
                agent = parts.agent("clerk", [erase_file, look], stream=stream, reflect_on_tool_use=False)
            for question in QUESTIONS[: case.asked]:
                yield runner.run(answer_of(agent, question, stream=stream))

    return program


# ---------------------------------------------------------------------- OpenAI Agents SDK


def openai_agents(way: str, mode: str, api: str) -> Callable[[Governor, str, Case], Iterator[str]]:
    def program(governor: Governor, base_url: str, case: Case) -> Iterator[str]:
        from agents import (
            Agent,
            OpenAIChatCompletionsModel,
            OpenAIResponsesModel,
            RunConfig,
            Runner,
            function_tool,
            handoff,
        )
        from openai import AsyncOpenAI

        from lgov_openai_agents import LgovRunner, instrument, uninstrument

        kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel

        def model() -> Any:
            return kind("scripted", AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0))

        other = Agent(name="eraser", model=model())
        tools: Any = [] if case.handoff else [function_tool(erase_file), function_tool(look)]
        agent = Agent(name="clerk", model=model(), tools=tools, handoffs=[handoff(other)] if case.handoff else [])
        runner: Any = Runner if way == "instrumented" else LgovRunner(governor)
        config = RunConfig(tracing_disabled=True)

        async def streamed(given: Any) -> Any:
            result = runner.run_streamed(agent, given, run_config=config, max_turns=12)
            async for _ in result.stream_events():
                pass
            return result

        if way == "instrumented":
            instrument(governor)
        given: Any = []
        try:
            with asyncio.Runner() as loop:
                for question in QUESTIONS[: case.asked]:
                    given = [*given, {"role": "user", "content": question}]
                    if mode == "async":
                        result = loop.run(runner.run(agent, given, run_config=config, max_turns=12))
                    else:
                        result = loop.run(streamed(given))
                    given = result.to_input_list()
                    yield str(result.final_output)
        finally:
            uninstrument()

    return program


# ---------------------------------------------------------------------- plain openai


def openai(api: str, mode: str) -> Callable[[Governor, str, Case], Iterator[str]]:
    def program(governor: Governor, base_url: str, case: Case) -> Iterator[str]:
        from lgov_openai import govern_client
        from tests.openai import openai_programs as programs

        client = govern_client(programs.client(base_url), governor)
        aclient = govern_client(programs.aclient(base_url), governor)
        tools = {"erase_file": erase_file, "look": look}
        given: list[Any] = []

        def create(**fields: Any) -> Any:
            if api == "chat":
                ask = {"sync": programs.chat_create, "streaming": programs.chat_chunks}.get(mode)
                if ask is not None:
                    return ask(client, given)
                return loop.run(programs.achat_create(aclient, given))
            ask = {"sync": programs.response_create, "streaming": programs.response_events}.get(mode)
            if ask is not None:
                return ask(client, input=given)
            return loop.run(programs.aresponse_create(aclient, input=given))

        with asyncio.Runner() as loop:
            for question in QUESTIONS[: case.asked]:
                given.append({"role": "user", "content": question})
                for _ in range(12):
                    reply = create()
                    if api == "chat":
                        plain = reply if isinstance(reply, dict) else reply.model_dump(exclude_none=True)
                        given.append(plain)
                        calls = plain.get("tool_calls") or []
                        for call in calls:
                            name, arguments = call["function"]["name"], call["function"]["arguments"]
                            result = programs.use(tools, name, arguments)
                            given.append({"role": "tool", "tool_call_id": call["id"], "content": result})
                        text = plain.get("content") or plain.get("refusal") or ""
                    else:
                        calls = [item for item in reply.output if item.type == "function_call"]
                        given += reply.output
                        for call in calls:
                            result = programs.use(tools, call.name, call.arguments)
                            given.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
                        text = reply.output_text
                    if not calls:
                        break
                yield text

    return program


# ---------------------------------------------------------------------- the endpoint


def endpoint(api: str, mode: str) -> Callable[[Governor, str, Case], Iterator[str]]:
    """A program that is not governed itself, of one attempt, before the endpoint."""

    def program(governor: Governor, base_url: str, case: Case) -> Iterator[str]:
        tools = {"erase_file": erase_file, "look": look}
        given: list[Any] = []
        with _endpoint(governor, base_url) as url, httpx.Client(timeout=30) as client:
            for question in QUESTIONS[: case.asked]:
                given.append({"role": "user", "content": question})
                for _ in range(12):
                    body = _BODIES[api](given, mode == "streaming")
                    headers = {"x-lgov-rollout-id": "r1", "x-lgov-attempt": "1", "x-lgov-agent": "clerk"}
                    answer = client.post(f"{url}/{_PATHS[api]}", json=body, headers=headers)
                    if answer.status_code != 200:
                        yield f"{answer.status_code}: {answer.text}"
                        return
                    text, calls, entries = _READERS[api](answer.text, mode == "streaming")
                    given += entries
                    for call_id, name, arguments in calls:
                        given.append(_RESULTS[api](call_id, tools[name](**json.loads(arguments))))
                    if not calls:
                        break
                yield text

    return program


@contextmanager
def _endpoint(governor: Governor, base_url: str) -> Iterator[str]:
    from lgov_core.gateway.access import KeyRing
    from lgov_core.gateway.app import create_app
    from lgov_core.gateway.policy_gate import PolicyGate
    from lgov_core.gateway.server import EndpointServer
    from lgov_core.gateway.upstream import UpstreamEngine

    engine = UpstreamEngine(base_url, timeout_s=20, speaks=("chat", "responses", "messages"))
    keys = KeyRing(b"0123456789abcdef0123456789abcdef", required=False)
    with EndpointServer(create_app([engine], None, keys=keys, gate=PolicyGate(governor))) as server:
        yield server.base_url


_PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


def _chat_body(given: Any, stream: bool) -> Any:
    tools = [{"type": "function", "function": {"name": name, "parameters": _SCHEMA}} for name in ("erase_file", "look")]
    return {"model": "m", "messages": given, "tools": tools, "stream": stream}


def _responses_body(given: Any, stream: bool) -> Any:
    tools = [{"type": "function", "name": name, "parameters": _SCHEMA} for name in ("erase_file", "look")]
    return {"model": "m", "input": given, "tools": tools, "stream": stream}


def _messages_body(given: Any, stream: bool) -> Any:
    tools = [{"name": name, "input_schema": _SCHEMA} for name in ("erase_file", "look")]
    return {"model": "m", "max_tokens": 99, "messages": given, "tools": tools, "stream": stream}


_BODIES = {"chat": _chat_body, "responses": _responses_body, "messages": _messages_body}


def _events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _read_chat(text: str, stream: bool) -> Any:
    if not stream:
        message = json.loads(text)["choices"][0]["message"]
    else:
        message = {"role": "assistant", "content": "", "tool_calls": []}
        for chunk in _events(text):
            for choice in chunk.get("choices", ()):
                delta = choice["delta"]
                message["content"] += delta.get("content") or ""
                for call in delta.get("tool_calls") or ():
                    if call.get("id"):
                        message["tool_calls"].append(
                            {"id": call["id"], "type": "function", "function": {"name": "", "arguments": ""}}
                        )
                    for key, value in call["function"].items():
                        message["tool_calls"][call["index"]]["function"][key] += value or ""
        if not message["tool_calls"]:
            del message["tool_calls"]
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    return message.get("content") or "", calls, [message]


def _read_response(text: str, stream: bool) -> Any:
    body = _events(text)[-1]["response"] if stream else json.loads(text)
    calls = [
        (item["call_id"], item["name"], item["arguments"]) for item in body["output"] if item["type"] == "function_call"
    ]
    texts = [part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(texts), calls, body["output"]


def _read_message(text: str, stream: bool) -> Any:
    if not stream:
        blocks = json.loads(text)["content"]
    else:
        blocks = []
        for event in _events(text):
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "written": ""})
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                blocks[event["index"]]["written"] += delta.get("text") or delta.get("partial_json") or ""
        blocks = [
            {"type": "text", "text": block["text"] + block["written"]}
            if block["type"] == "text"
            else {
                "type": "tool_use",
                "id": block["id"],
                "name": block["name"],
                "input": json.loads(block["written"] or "{}"),
            }
            for block in blocks
        ]
    calls = [
        (block["id"], block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"
    ]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    return "".join(texts), calls, [{"role": "assistant", "content": blocks}]


_READERS = {"chat": _read_chat, "responses": _read_response, "messages": _read_message}
_RESULTS: dict[str, Callable[[str, str], Any]] = {
    "chat": lambda call_id, text: {"role": "tool", "tool_call_id": call_id, "content": text},
    "responses": lambda call_id, text: {"type": "function_call_output", "call_id": call_id, "output": text},
    "messages": lambda call_id, text: {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}],
    },
}

#: Each program by the name of its file of records.
PROGRAMS: dict[str, dict[str, Callable[[Governor, str, Case], Iterator[str]]]] = {
    "langchain": {
        "middleware, sync": langchain("explicit", "sync"),
        "middleware, streaming": langchain("explicit", "streaming"),
        "instrumented, async": langchain("instrumented", "async"),
        "instrumented, streaming": langchain("instrumented", "streaming"),
    },
    "autogen": {
        "client, async": autogen("explicit", "async"),
        "client, streaming": autogen("explicit", "streaming"),
        "instrumented, streaming": autogen("instrumented", "streaming"),
    },
    "openai_agents": {
        "instrumented, chat, async": openai_agents("instrumented", "async", "chat"),
        "instrumented, responses, streaming": openai_agents("instrumented", "streaming", "responses"),
        "runner, responses, async": openai_agents("explicit", "async", "responses"),
    },
    "openai": {
        "chat, sync": openai("chat", "sync"),
        "chat, streaming": openai("chat", "streaming"),
        "responses, async": openai("responses", "async"),
        "responses, streaming": openai("responses", "streaming"),
    },
    "endpoint": {
        "chat": endpoint("chat", "whole"),
        "chat, streaming": endpoint("chat", "streaming"),
        "responses": endpoint("responses", "whole"),
        "messages, streaming": endpoint("messages", "streaming"),
    },
}
