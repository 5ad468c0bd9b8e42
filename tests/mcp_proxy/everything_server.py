"""An MCP server with one of everything, by the names that the conformance suite of the protocol asks for.

``python everything_server.py`` speaks on standard input and output, ``python everything_server.py PORT`` over HTTP.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventMessage, EventStore

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SOUND = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA="
DIALECT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}
WORDS = ["option1", "option2", "option3"]
TITLED = [{"const": f"value{number}", "title": f"Choice {number}"} for number in (1, 2, 3)]
FORMS: dict[str, Any] = {
    "test_elicitation": {"username": {"type": "string", "description": "Name"}, "email": {"type": "string"}},
    "test_elicitation_sep1034_defaults": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
    "test_elicitation_sep1330_enums": {
        "untitledSingle": {"type": "string", "enum": WORDS},
        "titledSingle": {"type": "string", "oneOf": TITLED},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": WORDS}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
    },
}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def resource(uri: str, value: str, kind: str = "text/plain") -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": value}}


IMAGE = {"type": "image", "data": PICTURE, "mimeType": "image/png"}
CONTENTS: dict[str, list[dict[str, Any]]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_audio_content": [{"type": "audio", "data": SOUND, "mimeType": "audio/wav"}],
    "test_embedded_resource": [resource("test://embedded-resource", "This is an embedded resource content.")],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        IMAGE,
        resource("test://mixed-content-resource", '{"test":"data","value":123}', "application/json"),
    ],
    "json_schema_2020_12_tool": [text("done")],
}
ACTIVE = (
    "test_tool_with_logging",
    "test_tool_with_progress",
    "test_error_handling",
    "test_reconnection",
    "test_sampling",
)
PROMPTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
}
RESOURCES = {
    "test://static-text": "text/plain",
    "test://static-binary": "image/png",
    "test://watched-resource": "text/plain",
}


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    anything: dict[str, Any] = {"type": "object", "properties": {}}
    tools = [
        {"name": name, "description": f"{name}, for tests", "inputSchema": DIALECT if "schema" in name else anything}
        for name in (*CONTENTS, *ACTIVE, *FORMS)
    ]
    return types.ListToolsResult.model_validate({"tools": tools})


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    name, arguments, session = params.name, params.arguments or {}, ctx.session
    contents, failed = CONTENTS.get(name), False
    if name == "test_tool_with_logging":
        for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await session.send_log_message("info", message, related_request_id=ctx.request_id)
            await asyncio.sleep(0.05)
    elif name == "test_tool_with_progress":
        for done in (0, 50, 100):
            await session.report_progress(done, 100)
            await asyncio.sleep(0.05)
    elif name == "test_error_handling":
        contents, failed = [text("This tool intentionally returns an error for testing")], True
    elif name == "test_reconnection":
        if ctx.close_sse_stream is not None:
            await ctx.close_sse_stream()
        await asyncio.sleep(0.2)
    elif name == "test_sampling":
        message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=arguments["prompt"]))
        reply = await session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)
        contents = [text(f"LLM response: {reply.content.text}")]
    elif name in FORMS:
        form = {"type": "object", "properties": FORMS[name], "required": []}
        answer = await session.elicit_form(arguments.get("message", "Please answer"), form, ctx.request_id)
        contents = [text(f"User response: action={answer.action}, content={answer.content}")]
    return types.CallToolResult.model_validate({"content": contents or [text(f"{name} is done")], "isError": failed})


async def list_resources(ctx: Any, params: Any) -> types.ListResourcesResult:
    resources = [{"uri": uri, "name": uri, "mimeType": kind} for uri, kind in RESOURCES.items()]
    return types.ListResourcesResult.model_validate({"resources": resources})


async def list_templates(ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
    template = {"uriTemplate": "test://template/{id}/data", "name": "template", "mimeType": "application/json"}
    return types.ListResourceTemplatesResult.model_validate({"resourceTemplates": [template]})


async def read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    uri = str(params.uri)
    if uri == "test://static-binary":
        content = {"uri": uri, "mimeType": "image/png", "blob": PICTURE}
    else:
        number = uri.removeprefix("test://template/").removesuffix("/data")
        told = f'{{"id":"{number}","templateTest":true,"data":"Data for ID: {number}"}}'
        content = {
            "uri": uri,
            "mimeType": "text/plain",
            "text": told if number != uri else "The content of the resource.",
        }
    return types.ReadResourceResult.model_validate({"contents": [content]})


async def list_prompts(ctx: Any, params: Any) -> types.ListPromptsResult:
    prompts = [
        {"name": name, "description": name, "arguments": [{"name": one, "required": True} for one in arguments]}
        for name, arguments in PROMPTS.items()
    ]
    return types.ListPromptsResult.model_validate({"prompts": prompts})


async def get_prompt(ctx: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    arguments = params.arguments or {}
    contents: list[dict[str, Any]] = {
        "test_simple_prompt": [text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments": [
            text(f"Prompt with arguments: arg1='{arguments.get('arg1')}', arg2='{arguments.get('arg2')}'")
        ],
        "test_prompt_with_embedded_resource": [
            resource(arguments.get("resourceUri", ""), "Embedded resource content for testing."),
            text("Please process the embedded resource above."),
        ],
        "test_prompt_with_image": [IMAGE, text("Please analyze the image above.")],
    }[params.name]
    return types.GetPromptResult.model_validate({"messages": [{"role": "user", "content": one} for one in contents]})


async def complete(ctx: Any, params: Any) -> types.CompleteResult:
    return types.CompleteResult.model_validate(
        {"completion": {"values": ["paris", "park"], "total": 2, "hasMore": False}}
    )


async def nothing(ctx: Any, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


class Events(EventStore):
    """Keeps events, so that a client can ask for those that it missed."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        last = int(last_event_id)
        stream = self.events[last - 1][0]
        for number, (of, message) in enumerate(self.events, 1):
            if number > last and of == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def everything() -> Server[Any]:
    return Server(
        "everything",
        version="1",
        instructions="Has one of everything.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=nothing,
        on_unsubscribe_resource=nothing,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        on_set_logging_level=nothing,
    )


async def on_stdio() -> None:
    server = everything()
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    if len(sys.argv) == 1:
        asyncio.run(on_stdio())
    else:
        import uvicorn

        app = everything().streamable_http_app(event_store=Events(), retry_interval=100)
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
