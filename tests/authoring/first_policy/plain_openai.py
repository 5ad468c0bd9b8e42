"""A loop around the openai client: tools from models and from JSON, streamed and not."""

import json
from typing import Any

import openai
from openai import OpenAI
from pydantic import BaseModel

from lgov_core.testing import ScriptedModelServer, call


class Query(BaseModel):
    """Finds orders."""

    customer: str
    columns: list[str]
    limit: int | None


NOTE = {
    "type": "function",
    "function": {
        "name": "write_note",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}
REPLIES: list[Any] = [
    call("Query", customer="Ada", columns=["id"], limit=None),
    call("write_note", text="2 orders"),
    "Ada has 2 orders.",
    "Goodbye.",
]
with ScriptedModelServer(REPLIES) as server:
    client = OpenAI(base_url=server.base_url, api_key="k")
    tools: list[Any] = [openai.pydantic_function_tool(Query), NOTE]
    messages: list[Any] = [{"role": "user", "content": "How many orders has Ada?"}]
    for _ in range(5):
        reply = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
        messages.append(reply.to_dict())
        for proposed in reply.tool_calls or ():
            print("RAN", proposed.function.name, json.loads(proposed.function.arguments))
            messages.append({"role": "tool", "tool_call_id": proposed.id, "content": "2"})
        if not reply.tool_calls:
            print(reply.content)
            break
    messages.append({"role": "user", "content": "Goodbye"})
    for chunk in client.chat.completions.create(model="m", messages=messages, tools=tools, stream=True):
        print(chunk.choices[0].delta.content or "", end="")
