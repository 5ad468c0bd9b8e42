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


def _call(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "call_id": "call_1", "status": "completed", **fields}


_ASKED: list[dict[str, Any]] = [{"role": "user", "content": ASK}]
_FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
    {"type": "web_search_result", "url": "http://a.example", "title": "t", "encrypted_content": "EqgfCioIA=="}]}  # fmt: skip
_CHAT = {"model": "scripted", "max_tokens": 8, "messages": _ASKED}
_RESPONSES = {"model": "scripted", "tools": CODEX["tools"][:1], "input": _ASKED}
_MESSAGES = {"model": "scripted", "max_tokens": 8, "messages": _ASKED}
_ROUTER = {"role": "assistant", "content": "Yes.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]}

#: Further requests of clients: the path, the body, and what is left out of it for a server of chat completions.
FURTHER: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "one call at a time": ("/v1/responses", {**_RESPONSES, "parallel_tool_calls": False}, []),
    "one call at a time, chat": ("/v1/chat/completions", {**_CHAT, "tools": [_FUNCTION], "parallel_tool_calls": False}, []),
    "one call at a time, messages": ("/v1/messages", {**_MESSAGES, "tools": CLAUDE_CODE["tools"][:1],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, []),
    "nothing in the background": ("/v1/responses", {**_RESPONSES, "background": False, "truncation": "disabled"}, []),
    "a grammar's tool": ("/v1/responses", {**_RESPONSES, "tools": [*CODEX["tools"][:1], {
        "type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}}]},
        ["tools[1] custom apply_patch"]),
    "a patch before": ("/v1/responses", {**_RESPONSES, "input": [*_ASKED,
        _call("custom_tool_call", name="apply_patch", input="*** Begin"),
        _call("custom_tool_call_output", output="Done")]}, []),
    "a shell before": ("/v1/responses", {**_RESPONSES, "input": [*_ASKED,
        _call("local_shell_call", action={"type": "exec", "command": ["ls"]}), _call("function_call_output", output="a")]}, []),
    "shells before": ("/v1/responses", {**_RESPONSES, "input": [*_ASKED, _call("shell_call", action={"commands": ["ls"]}),
        _call("shell_call_output", output=[{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}])]}, []),
    "a search before": ("/v1/responses", {**_RESPONSES, "input": [*_ASKED,
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}, *_ASKED]},
        ["input[1] web_search_call"]),
    "new fields": ("/v1/responses", {**_RESPONSES, "reasoning": {"summary": "auto", "context": "all_turns"},
        "service_tier": "priority", "tools": [{**CODEX["tools"][0], "output_schema": SCHEMA, "defer_loading": True}]}, []),
    "a found page before": ("/v1/messages", {**_MESSAGES, "messages": [*_ASKED, {"role": "assistant", "content": [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}, _FOUND,
        {"type": "text", "text": "Found."}]}, *_ASKED]},
        ["messages[1] server_tool_use", "messages[1] web_search_tool_result"]),
    "a system message later": ("/v1/messages", {**_MESSAGES, "messages": [*_ASKED, {"role": "assistant", "content": "Yes."},
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, *_ASKED]}, []),
    "a text as a document": ("/v1/messages", {**_MESSAGES, "messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}},
        {"type": "text", "text": ASK}]}]}, []),
    "examples of a tool": ("/v1/messages", {**_MESSAGES, "user_profile_id": "u", "tools": [
        {**CLAUDE_CODE["tools"][0], "input_examples": [{"cmd": "ls"}]}]}, []),
    "details of thoughts": ("/v1/chat/completions", {**_CHAT, "messages": [*_ASKED, _ROUTER, *_ASKED]}, []),
    "other fields": ("/v1/chat/completions", {**_CHAT, "service_tier": "auto", "store": False, "prompt_cache_key": "k",
        "stream_options": None, "prediction": {"type": "content", "content": "x"}}, []),
}  # fmt: skip
