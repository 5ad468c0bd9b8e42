"""What coding agents send, as their real requests have it, with short texts: a first turn, and one after a tool's result."""

from __future__ import annotations

from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"cmd": {"type": "string"}},
    "required": ["cmd"],
    "additionalProperties": False,
}
ASK = "Write hello into made.txt"
_IDS = {"session_id": "01a2", "thread_id": "01a2", "x-codex-installation-id": "ff62", "x-codex-window-id": "01a2:0"}


def _developer(*texts: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "id": "msg_1", "role": "developer", "content": content}


#: Codex CLI 0.171: Responses.
CODEX: dict[str, Any] = {
    "model": "scripted",
    "stream": True,
    "input": [
        _developer("You are a coding agent running in the Codex CLI."),
        _developer("<skills_instructions>none</skills_instructions>", "<permissions instructions>all</permissions>"),
        {"type": "message", "id": "msg_2", "role": "user", "content": [{"type": "input_text", "text": ASK}]},
    ],
    "tools": [
        {"type": "function", "name": "exec_command", "description": "Runs a command", "strict": False,
         "parameters": SCHEMA},
        {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents", "tools": [
            {"type": "function", "name": "close_agent", "strict": False, "parameters": SCHEMA}]},
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "text": {"verbosity": "low"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2",
    "client_metadata": {**_IDS, "x-codex-turn-metadata": '{"sandbox":"none"}'},
}  # fmt: skip

#: The same after a turn of a server that seals its thoughts.
CODEX_NEXT: dict[str, Any] = {
    **CODEX,
    "input": [
        *CODEX["input"],
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "gAAAAABo+/9="},
        {"type": "function_call", "status": "completed", "id": "fc_1", "name": "exec_command",
         "arguments": '{"cmd": "echo hello"}', "call_id": "call_1"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "Process exited with code 0"},
    ],
}  # fmt: skip

_CACHED = {"cache_control": {"type": "ephemeral"}}

#: A loop on Anthropic's client in the form of Claude Code: Messages.
CLAUDE_CODE: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "You are a coding agent.", **_CACHED},
        {"type": "text", "text": "Working directory: here", **_CACHED},
    ],
    "messages": [{"role": "user", "content": [
        {"type": "text", "text": "<system-reminder>today</system-reminder>"}, {"type": "text", "text": ASK, **_CACHED}]}],
    "tools": [
        {"name": "Bash", "description": "Runs a command", "input_schema": SCHEMA},
        {"name": "Write", "description": "Writes a file", "input_schema": SCHEMA, "eager_input_streaming": True, **_CACHED},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "metadata": {"user_id": "user_00_account_11_session_22"},
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "temperature": 1,
    "stream": True,
}  # fmt: skip

CLAUDE_CODE_NEXT: dict[str, Any] = {
    **CLAUDE_CODE,
    "messages": [
        *CLAUDE_CODE["messages"],
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "A file is wanted.", "signature": "EqQBCgIYAhIk+/8="},
            {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p="},
            {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"cmd": "echo hello"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok", "is_error": False, **_CACHED},
            {"type": "text", "text": "<system-reminder>go on</system-reminder>"}]},
    ],
}  # fmt: skip

_FUNCTION = {"type": "function", "function": {"name": "bash", "description": "Runs a command", "parameters": SCHEMA}}

#: opencode 1.18, and Qwen Code 0.15 with its server's own fields: chat completions.
OPENCODE: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 32000,
    "messages": [{"role": "system", "content": "You are opencode."}, {"role": "user", "content": f'"{ASK}"'}],
    "tools": [_FUNCTION],
    "tool_choice": "auto",
    "reasoning_effort": "high",
    "stream": True,
    "stream_options": {"include_usage": True},
}
QWEN_CODE: dict[str, Any] = {
    "model": "scripted",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "You are Qwen Code."}]},
        {"role": "user", "content": [{"type": "text", "text": ASK}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"cmd":"ls"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "Exit Code: 0"}]},
    ],
    "tools": [_FUNCTION],
    "max_tokens": 8000,
    "metadata": {"sessionId": "s", "promptId": "p"},
    "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip

#: By name: the path, and the body.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "codex": ("/v1/responses", CODEX),
    "codex, next turn": ("/v1/responses", CODEX_NEXT),
    "claude code": ("/v1/messages", CLAUDE_CODE),
    "claude code, next turn": ("/v1/messages", CLAUDE_CODE_NEXT),
    "opencode": ("/v1/chat/completions", OPENCODE),
    "qwen code": ("/v1/chat/completions", QWEN_CODE),
}
