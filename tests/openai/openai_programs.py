"""Ordinary programs on plain openai: they know nothing of policies. Each runs its tools in a loop until the model answers.

Every way of calling the model has a loop: chat completions and responses, whole, parsed and streamed, synchronous and
asynchronous, and the client's own tool runner.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}
NAMES = ("erase_file", "look")
QUESTION = "Erase the file."
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": True}} for name in NAMES
]
RESPONSE_TOOLS: Any = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": True} for name in NAMES]

MCP_SERVER = StdioServerParameters(
    command=sys.executable, args=[str(Path(__file__).parents[1] / "mcp_files_server.py")]
)

Tools = Mapping[str, Callable[..., str]]


def client(base_url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="k", **{"max_retries": 0, **options})


def aclient(base_url: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, api_key="k", **{"max_retries": 0, **options})


def use(tools: Tools, name: str, arguments: str) -> str:
    try:
        return tools[name](**json.loads(arguments))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------------- chat completions


def chat_create(on: openai.OpenAI, messages: list[Any]) -> Any:
    return on.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS).choices[0].message


def chat_parse(on: openai.OpenAI, messages: list[Any]) -> Any:
    return on.chat.completions.parse(model="m", messages=messages, tools=CHAT_TOOLS).choices[0].message


def chat_raw(on: openai.OpenAI, messages: list[Any]) -> Any:
    raw = on.chat.completions.with_raw_response.create(model="m", messages=messages, tools=CHAT_TOOLS)
    assert raw.headers["content-type"].startswith("application/json")
    return raw.parse().choices[0].message


def chat_streaming_response(on: openai.OpenAI, messages: list[Any]) -> Any:
    with on.chat.completions.with_streaming_response.create(model="m", messages=messages, tools=CHAT_TOOLS) as raw:
        return raw.parse().choices[0].message


def chat_chunks(on: openai.OpenAI, messages: list[Any]) -> Any:
    return assembled(on.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS, stream=True))


def chat_stream_helper(on: openai.OpenAI, messages: list[Any]) -> Any:
    with on.chat.completions.stream(model="m", messages=messages, tools=CHAT_TOOLS) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0].message


def assembled(chunks: Any) -> dict[str, Any]:
    """The message that a program makes of chunks by hand."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for chunk in chunks:
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                calls = message.setdefault("tool_calls", [])
                if part.index == len(calls):
                    calls.append({"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}})
                calls[part.index]["function"]["name"] += part.function.name or ""
                calls[part.index]["function"]["arguments"] += part.function.arguments or ""
    return message


def chat_loop(
    ask: Callable[[Any, list[Any]], Any], on: openai.OpenAI, tools: Tools, *, question: str = QUESTION
) -> str:
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        message = ask(on, messages)
        messages.append(message)
        plain = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
        if not plain.get("tool_calls"):
            return plain["content"]
        for call in plain["tool_calls"]:
            result = use(tools, call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def achat_create(on: openai.AsyncOpenAI, messages: list[Any]) -> Any:
    return (await on.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS)).choices[0].message


async def achat_chunks(on: openai.AsyncOpenAI, messages: list[Any]) -> Any:
    stream = await on.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS, stream=True)
    return assembled([chunk async for chunk in stream])


async def achat_stream_helper(on: openai.AsyncOpenAI, messages: list[Any]) -> Any:
    async with on.chat.completions.stream(model="m", messages=messages, tools=CHAT_TOOLS) as stream:
        async for _ in stream:
            pass
        return (await stream.get_final_completion()).choices[0].message


AsyncUse = Callable[[str, str], Awaitable[str]]


async def achat_loop(
    ask: Callable[[Any, list[Any]], Awaitable[Any]],
    on: openai.AsyncOpenAI,
    tools: Tools | AsyncUse,
    *,
    question: str = QUESTION,
) -> str:
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        message = await ask(on, messages)
        messages.append(message)
        plain = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
        if not plain.get("tool_calls"):
            return plain["content"]
        for call in plain["tool_calls"]:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            result = await tools(name, arguments) if callable(tools) else use(tools, name, arguments)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


# ---------------------------------------------------------------------- responses


def response_create(on: openai.OpenAI, **asked: Any) -> Any:
    return on.responses.create(model="m", tools=RESPONSE_TOOLS, **asked)


def response_beta(on: openai.OpenAI, **asked: Any) -> Any:
    return on.beta.responses.create(model="m", tools=RESPONSE_TOOLS, **asked)


def response_parse(on: openai.OpenAI, **asked: Any) -> Any:
    return on.responses.parse(model="m", tools=RESPONSE_TOOLS, **asked)


def response_events(on: openai.OpenAI, **asked: Any) -> Any:
    (*_, last) = on.responses.create(model="m", tools=RESPONSE_TOOLS, stream=True, **asked)
    return last.response


def response_stream_helper(on: openai.OpenAI, **asked: Any) -> Any:
    with on.responses.stream(model="m", tools=RESPONSE_TOOLS, **asked) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


def response_loop(
    ask: Callable[..., Any], on: openai.OpenAI, tools: Tools, *, chained: bool = False, question: str = QUESTION
) -> str:
    """Keeps the transcript itself, or (``chained``) lets the server keep it."""
    items: list[Any] = [{"role": "user", "content": question}]
    previous: str | None = None
    while True:
        response = ask(on, input=items, **({"previous_response_id": previous} if previous else {}))
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return "".join(part.text for item in response.output if item.type == "message" for part in item.content)
        previous = response.id if chained else None
        items = [] if chained else [*items, *response.output]
        for call in calls:
            result = use(tools, call.name, call.arguments)
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


async def aresponse_create(on: openai.AsyncOpenAI, **asked: Any) -> Any:
    return await on.responses.create(model="m", tools=RESPONSE_TOOLS, **asked)


async def aresponse_events(on: openai.AsyncOpenAI, **asked: Any) -> Any:
    stream = await on.responses.create(model="m", tools=RESPONSE_TOOLS, stream=True, **asked)
    return [event async for event in stream][-1].response


async def aresponse_loop(
    ask: Callable[..., Awaitable[Any]],
    on: openai.AsyncOpenAI,
    tools: Tools | AsyncUse,
    *,
    question: str = QUESTION,
) -> str:
    items: list[Any] = [{"role": "user", "content": question}]
    while True:
        response = await ask(on, input=items)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return "".join(part.text for item in response.output if item.type == "message" for part in item.content)
        items += response.output
        for call in calls:
            result = (
                await tools(call.name, call.arguments) if callable(tools) else use(tools, call.name, call.arguments)
            )
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


# ---------------------------------------------------------------------- the client's own tool runner


def tool_runner() -> Any:
    """The module of the tool runner, which not every 3.x has."""
    return pytest.importorskip("openai.lib.responses_tool_runner")


def run_tools(on: openai.OpenAI, tools: Tools, *, stream: bool = False) -> str:
    offered = tool_runner()
    functions = [
        offered.RegisteredFunction(tool, lambda given, name=tool["name"]: use(tools, name, json.dumps(given)))
        for tool in RESPONSE_TOOLS
        if tool["name"] in tools
    ]
    runner = offered.ResponsesToolRunner(functions=functions)
    return runner.run(on, {"model": "m", "input": QUESTION}, stream=stream, eager=stream).output_text


async def arun_tools(on: openai.AsyncOpenAI, tools: Tools, *, stream: bool = False) -> str:
    offered = tool_runner()

    def registered(tool: Any) -> Any:
        async def execute(given: Any) -> str:
            return use(tools, tool["name"], json.dumps(given))

        return offered.AsyncRegisteredFunction(tool, execute)

    functions = [registered(tool) for tool in RESPONSE_TOOLS if tool["name"] in tools]
    runner = offered.AsyncResponsesToolRunner(functions=functions)
    done = await runner.run(on, {"model": "m", "input": QUESTION}, stream=stream, eager=stream)
    return done.output_text


# ---------------------------------------------------------------------- tools of an MCP server


async def with_mcp(run: Callable[[AsyncUse], Awaitable[str]]) -> str:
    """Runs a loop whose tools are those of the real server, through the mcp client."""
    async with stdio_client(MCP_SERVER) as (reading, writing), ClientSession(reading, writing) as session:
        await session.initialize()

        async def call(name: str, arguments: str) -> str:
            result = await session.call_tool(name, json.loads(arguments))
            return "".join(part.text for part in result.content)

        return await run(call)
