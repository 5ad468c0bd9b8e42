"""A loop on Anthropic's client with the requests of Claude Code."""

import os
import sys

import anthropic
from tools import TOOLS, run

cached = {"cache_control": {"type": "ephemeral"}}
client = anthropic.Anthropic(api_key="any", base_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), max_retries=0)
offered = [
    {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]} for tool in TOOLS
]
offered[-1] |= cached
offered.append({"type": "web_search_20250305", "name": "web_search", "max_uses": 8})
asked = {
    "model": "scripted",
    "max_tokens": 32000,
    "system": [{"type": "text", "text": "You are a coding agent.", **cached}],
    "tools": offered,
    "metadata": {"user_id": "user_0_account_1_session_2"},
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "betas": ["context-management-2025-06-27", "interleaved-thinking-2025-05-14"],
}
messages = [{"role": "user", "content": [{"type": "text", "text": sys.argv[1], **cached}]}]
while True:
    with client.beta.messages.stream(messages=messages, **asked) as stream:
        reply = stream.get_final_message()
    messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]})
    uses = [block for block in reply.content if block.type == "tool_use"]
    if not uses:
        break
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": run(use.name, use.input)} for use in uses]
    messages.append({"role": "user", "content": results})
print("".join(block.text for block in reply.content if block.type == "text"))
