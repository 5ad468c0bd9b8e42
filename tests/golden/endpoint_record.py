"""What clients and upstreams see of the endpoint, byte for byte, and what it judges and records: recorded as data.

``python -m tests.golden.endpoint_record [ENGINE]`` prints what differs, with ``--write`` it records anew.
Each case is one client (or one list of plain
requests) on one engine under one policy. Ids, times and ports are numbered in the order in which they appear.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.engine.reply_codec import Generated
from lgov_core.gateway.policy_gate import PolicyGate
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.token_engine import TokenEngine, TokenPrompt
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.governor import Governor, ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.models import build_tiny
from lgov_core.policies import load_policy_file
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.types import Action, Decision, Effect, Rollout
from tests.gateway.api_clients import CELLS, RESULT
from tests.gateway.taught import CORPUS, TOOLS

RECORD = Path(__file__).with_name("endpoint.json.gz")
SDKS = ("openai", "openai with previous_response_id", "anthropic", "Agents SDK")
ENGINES = ("translated", "native", "tokens")
ALL = ("chat", "completions", "responses", "messages", "embeddings")

# ---------------------------------------------------------------------- policies

READS = """\
version: 1
name: reads
default: allow
rules:
  - {name: mail, "on": [input, pre_model_call, post_model_call, output, post_tool_call], use: pii, with: {action: redact}}
  - {name: keys, "on": [pre_model_call, post_model_call, output], use: secrets, with: {action: redact}}
"""
ALLOWS = "version: 1\nname: allows\ndefault: allow\nrules:\n  - {name: never, tools: [never], use: deny}\n"
TOOLS_ONLY = "version: 1\nname: tools\nrules:\n  - {name: tools, use: tool, with: {allow: [%s]}}\n"


def _decision(effect: Effect, **more: Any) -> Decision:
    return Decision(effect, "hooks", "rule", **{"reason": "because", **more})


class Rewrites:
    """Changes every text that it can."""

    @hookimpl
    def lgov_input(self, action: Action) -> Decision | None:
        return _decision(Effect.TRANSFORM, text="How much, please?") if action.text == "How much?" else None

    @hookimpl
    def lgov_post_tool_call(self, action: Action) -> Decision | None:
        return _decision(Effect.TRANSFORM, text=f"({action.text})") if action.text == RESULT else None

    @hookimpl
    def lgov_pre_model_call(self, action: Action) -> Decision | None:
        messages = [dict(message) for message in action.arguments["messages"]]
        changed = [one for one in messages if one["role"] == "system" and one["content"] != "Answer briefly."]
        for message in changed:
            message["content"] = "Answer briefly."
        return _decision(Effect.TRANSFORM, arguments={**action.arguments, "messages": messages}) if changed else None

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Decision | None:
        arguments = {"query": "SELECT 'ü'", "limit": 1.50}
        return _decision(Effect.TRANSFORM, arguments=arguments) if action.arguments.get("query") == "a" else None

    @hookimpl
    def lgov_post_model_call(self, action: Action) -> Decision | None:
        text = str(action.text).replace("see", "think").replace("Write", "Type")
        return _decision(Effect.TRANSFORM, text=text) if text != action.text else None

    @hookimpl
    def lgov_output(self, action: Action) -> Decision | None:
        text = str(action.text)
        return None if text.endswith("!") else _decision(Effect.TRANSFORM, text=f"{text}!")


class Denies:
    """Denies one of several calls, results and answers."""

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Decision | None:
        return _decision(Effect.DENY) if action.arguments.get("query") == "b c" else None

    @hookimpl
    def lgov_post_tool_call(self, action: Action) -> Decision | None:
        return _decision(Effect.DENY) if action.text == RESULT else None

    @hookimpl
    def lgov_output(self, action: Action) -> Decision | None:
        return _decision(Effect.DENY)


class RefusesReply:
    """Denies each whole reply."""

    @hookimpl
    def lgov_post_model_call(self, action: Action) -> Decision | None:
        return _decision(Effect.DENY)


class RefusesCall:
    """Denies each model call."""

    @hookimpl
    def lgov_pre_model_call(self, action: Action) -> Decision | None:
        return _decision(Effect.DENY)


class Aborts:
    """Ends the run at a tool call."""

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Decision | None:
        return _decision(Effect.DENY, abort=True)


POLICIES: Mapping[str, Any] = {
    "none": None,
    "reads": READS,
    "tools allowed": TOOLS_ONLY % "run_sql",
    "tools denied": TOOLS_ONLY % "look",
    "rewrites": Rewrites,
    "denies": Denies,
    "refuses reply": RefusesReply,
    "refuses call": RefusesCall,
    "aborts": Aborts,
}

# ---------------------------------------------------------------------- engines


def script(body: Mapping[str, Any]) -> ScriptedReply:
    """Text and a call, then two calls, then the answer; how far it is shows in what was sent back."""
    if "tools" not in body:
        return ScriptedReply("So be it, then é")
    text = json.dumps(body)
    turns = sum(text.count(f'"{kind}": "{value}"') for kind, value in (("role", "tool"), ("type", "tool_result")))
    turns += text.count("function_call_output")
    if not turns:
        call = ScriptedCall("run_sql", {"query": "SELECT 'é'"}, "call_1111111111111111")
        return ScriptedReply("Let me see", [call], extra={"service_tier": "default"})
    if turns == 1:
        calls = [ScriptedCall("run_sql", {"query": query}, f"call_{query[0] * 16}") for query in ("a", "b c")]
        return ScriptedReply(None, calls)
    return ScriptedReply(f"It is {RESULT} é")


class Tokens:
    """A server of tokens that follows the same script, by how often the model has spoken."""

    def __init__(self) -> None:
        self.model = build_tiny(CORPUS, seed=0, hidden=32, layers=1, heads=2, intermediate=32, max_positions=2048)

    async def __call__(self, prompt: TokenPrompt) -> Generated:
        text = self.model.decode(list(prompt.prompt_ids))
        turn = text.count("<|tool|>")
        messages: list[dict[str, Any]] = [
            {"role": "assistant", "content": "Let me see", "tool_calls": [_call("SELECT 12")]},
            {"role": "assistant", "content": None, "tool_calls": [_call("a"), _call("b c")]},
            {"role": "assistant", "content": "It is 12"},
        ]
        if "run_sql" not in text:
            turn = 2
        ids = self.model.encode_reply(messages[min(turn, 2)], TOOLS)
        return Generated(tuple(ids), tuple(-0.25 * (place % 3 + 1) for place in range(len(ids))), 7)


def _call(query: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "run_sql", "arguments": json.dumps({"query": query})}}


# ---------------------------------------------------------------------- plain requests, and what an upstream answers

KEY = "AKIA" + "IOSFODNN7EXAMPLQ"
PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
_FUNCTION = {"name": "run_sql", "description": f"Reads; {KEY}.", "parameters": {"type": "object", "properties": {}}}
_SCHEMA = {"name": "x", "schema": {"type": "object", "properties": {}, "additionalProperties": False}, "strict": True}
_CALLED = {"id": "c1", "type": "function", "function": {"name": "run_sql", "arguments": '{"query": "é"}'}}
PLAIN: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "chat/completions",
        {
            "model": "m",
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "name": "jane", "content": [
                    {"type": "text", "text": "I am jane.doe@example.com"},
                    {"type": "image_url", "image_url": {"url": PNG}},
                ]},
                {"role": "assistant", "content": None, "tool_calls": [_CALLED]},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "john@example.com"}]},
                {"role": "user", "content": "So?"},
            ],
            "tools": [{"type": "function", "function": _FUNCTION}],
            "tool_choice": "auto", "temperature": 0.70, "top_p": 1e-1, "max_completion_tokens": 50, "seed": 7,
            "stop": ["\n\n"], "metadata": {"key": KEY}, "user": "jane.doe@example.com", "n": 1,
            "response_format": {"type": "json_schema", "json_schema": _SCHEMA}, "reasoning_effort": "low",
        },
    ),
    ("chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x"}], "n": 2, "logprobs": True}),
    ("chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x"}], "unheard_of": {"a": "b"}}),
    ("completions", {"model": "m", "prompt": "Mail jane.doe@example.com", "max_tokens": 9, "logprobs": 1, "echo": False}),
    ("completions", {"model": "m", "prompt": ["one", "two"], "return_token_ids": True, "stop": KEY}),
    (
        "responses",
        {
            "model": "m", "instructions": f"Be brief; {KEY}",
            "input": [
                {"role": "user", "content": [
                    {"type": "input_text", "text": "I am jane.doe@example.com"},
                    {"type": "input_image", "image_url": PNG, "detail": "low"},
                ]},
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
                {"type": "function_call", "call_id": "c1", "name": "run_sql", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "john@example.com"},
                {"role": "user", "content": "So?"},
            ],
            "tools": [{"type": "function", "strict": False, **_FUNCTION}], "tool_choice": "required",
            "max_output_tokens": 50, "metadata": {"key": KEY}, "temperature": 0.5, "store": False, "truncation": "disabled",
            "text": {"format": {"type": "json_schema", **_SCHEMA}, "verbosity": "low"}, "reasoning": {"effort": "low"},
            "include": ["message.output_text.logprobs"],
        },
    ),
    ("responses", {"model": "m", "input": "x", "background": True}),
    (
        "messages",
        {
            "model": "m", "max_tokens": 50, "system": [{"type": "text", "text": f"Be brief; {KEY}"}],
            "messages": [
                {"role": "user", "content": [
                    {"type": "text", "text": "I am jane.doe@example.com"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG[22:]}},
                ]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "Well"},
                    {"type": "tool_use", "id": "c1", "name": "run_sql", "input": {"query": "é"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "john@example.com"}]},
                    {"type": "text", "text": "So?"},
                ]},
            ],
            "tools": [{"name": "run_sql", "description": KEY, "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "stop_sequences": ["##"],
            "temperature": 0.3, "top_k": 5, "metadata": {"user_id": "jane.doe@example.com"},
        },
    ),
    ("messages", {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "x"}], "mcp_servers": [{"a": 1}]}),
    ("embeddings", {"model": "m", "input": ["one", "jane.doe@example.com"]}),
)  # fmt: skip


def rich_reply(body: Mapping[str, Any]) -> ScriptedReply:
    """A reply with everything beside text and calls that an upstream may add, as JSON with its own white space."""
    streamed = bool(body.get("stream"))
    thought, text = "The mail is john@example.com, hm.", "Write to jane.doe@example.com"
    if "prompt" in body:
        logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.25], "top_logprobs": None, "text_offset": [0, 1]}
        choices = [
            {"index": index, "text": f" {text}", "finish_reason": "stop", "logprobs": logprobs, "token_ids": [1, 2]}
            for index in range(2 if isinstance(body["prompt"], list) else 1)
        ]
        whole: dict[str, Any] = {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": choices}
        return _sent([whole], None, "[DONE]") if streamed else _whole(whole)
    if "max_tokens" in body and "return_token_ids" not in body:
        blocks = [
            {"type": "thinking", "thinking": thought, "signature": "sig"},
            {"type": "text", "text": text},
            {"type": "tool_use", "id": "toolu_1", "name": "run_sql", "input": {"query": "é", "n": 1.5}},
        ]
        head = {"id": "msg_x", "type": "message", "role": "assistant", "model": "m", "service_tier": "standard"}
        usage = {"input_tokens": 5, "output_tokens": 9, "cache_read_input_tokens": 2}
        if not streamed:
            return _whole({**head, "content": blocks, "stop_reason": "tool_use", "stop_sequence": None, "usage": usage})
        events: list[dict[str, Any]] = [{"type": "message_start", "message": {**head, "content": [], "usage": usage}}]
        for index, block in enumerate(blocks):
            deltas = {
                "thinking": [{"type": "thinking_delta", "thinking": thought}, {"type": "signature_delta", "signature": "sig"}],
                "text": [{"type": "text_delta", "text": text[:9]}, {"type": "text_delta", "text": text[9:]}],
                "tool_use": [{"type": "input_json_delta", "partial_json": '{"query": "é", "n": 1.5}'}],
            }[str(block["type"])]  # fmt: skip
            empty = {**block, **{name: "" for name in ("thinking", "signature", "text") if name in block}}
            events.append(
                {
                    "type": "content_block_start",
                    "index": index,
                    "content_block": {**empty, **({"input": {}} if "input" in block else {})},
                }
            )
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        stop = {"stop_reason": "tool_use", "stop_sequence": None}
        events += [{"type": "message_delta", "delta": stop, "usage": {"output_tokens": 9}}, {"type": "message_stop"}]
        return _sent(events, "type")
    if "input" in body:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        output = [
            {"type": "reasoning", "id": "rs_9", "summary": [{"type": "summary_text", "text": thought}]},
            {"type": "message", "id": "msg_9", "role": "assistant", "status": "completed", "content": [part]},
            {
                "type": "function_call",
                "id": "fc_9",
                "call_id": "call_9",
                "name": "run_sql",
                "arguments": '{"query": "é"}',
                "status": "completed",
            },
        ]
        usage = {"input_tokens": 5, "output_tokens": 9, "total_tokens": 14}
        whole = {
            "id": "resp_9",
            "object": "response",
            "model": "m",
            "status": "completed",
            "service_tier": "x",
            "output": output,
            "usage": usage,
        }
        if not streamed:
            return _whole(whole)
        events = [{"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}]
        for index, item in enumerate(output):
            at = {"output_index": index, "item_id": item["id"]}
            events.append(
                {
                    "type": "response.output_item.added",
                    "output_index": index,
                    "item": {
                        **item,
                        **(
                            {"content": []}
                            if "content" in item
                            else {"arguments": ""}
                            if "arguments" in item
                            else {"summary": []}
                        ),
                    },
                }
            )
            if item["type"] == "message":
                events.append(
                    {"type": "response.content_part.added", **at, "content_index": 0, "part": {**part, "text": ""}}
                )
                events += [
                    {"type": "response.output_text.delta", **at, "content_index": 0, "delta": piece}
                    for piece in (text[:9], text[9:])
                ]
                events.append({"type": "response.output_text.done", **at, "content_index": 0, "text": text})
            if item["type"] == "function_call":
                events.append({"type": "response.function_call_arguments.delta", **at, "delta": '{"query": "é"}'})
                events.append(
                    {
                        "type": "response.function_call_arguments.done",
                        **at,
                        "name": "run_sql",
                        "arguments": '{"query": "é"}',
                    }
                )
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        events.append({"type": "response.completed", "response": whole})
        return _sent([{**event, "sequence_number": number} for number, event in enumerate(events)], "type")
    calls = [
        {"id": f"c{index}", "type": "function", "function": {"name": "run_sql", "arguments": f'{{"query":"{query}"}}'}}
        for index, query in enumerate(("a", "b c"))
    ]
    message = {
        "role": "assistant",
        "content": text,
        "reasoning_content": thought,
        "tool_calls": calls,
        "annotations": [],
    }
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}], "refusal": None}
    count = body.get("n") or 1
    usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
    head = {"id": "chatcmpl-x", "created": 1, "model": "m", "system_fingerprint": "fp", "service_tier": "default"}
    if not streamed:
        choices = [
            {"index": index, "message": message, "finish_reason": "tool_calls", "logprobs": logprobs, "token_ids": [4]}
            for index in range(count)
        ]
        return _whole(
            {**head, "object": "chat.completion", "choices": choices, "usage": usage, "prompt_token_ids": [1, 2, 3]}
        )
    deltas = [
        {"role": "assistant", "content": ""}, {"reasoning_content": thought}, {"content": text[:9]}, {"content": text[9:]},
        *({"tool_calls": [{"index": index, **call}]} for index, call in enumerate(calls)),
    ]  # fmt: skip
    chunks: list[dict[str, Any]] = []
    for index in range(count):
        chunks += [{"index": index, "delta": delta, "finish_reason": None} for delta in deltas]
        chunks.append(
            {"index": index, "delta": {}, "finish_reason": "tool_calls", "logprobs": logprobs, "token_ids": [4]}
        )
    events = [{**head, "object": "chat.completion.chunk", "choices": [chunk]} for chunk in chunks]
    events.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    return _sent(events, None, "[DONE]")


def _whole(body: Mapping[str, Any]) -> ScriptedReply:
    return ScriptedReply(body=json.dumps(body, indent=1, ensure_ascii=False).encode())


def _sent(events: Sequence[Mapping[str, Any]], name: str | None, end: str = "") -> ScriptedReply:
    frames = [f"{f'event: {event[name]}' + chr(10) if name else ''}data: {json.dumps(event)}\n\n" for event in events]
    body = ": a comment\n\n" + "".join(frames) + (f"data: {end}\n\n" if end else "")
    return ScriptedReply(body=body.encode(), content_type="text/event-stream")


# ---------------------------------------------------------------------- recording


class Tap:
    """ASGI middleware that keeps each request and its whole response."""

    def __init__(self, app: Any, log: list[dict[str, Any]]) -> None:
        self._app, self._log = app, log

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        parts: dict[str, Any] = {"path": scope["path"], "asked": b"", "status": 0, "type": "", "reply": b""}
        self._log.append(parts)

        async def received() -> Any:
            message = await receive()
            parts["asked"] += message.get("body", b"")
            return message

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = dict(message["headers"])
                parts["status"], parts["type"] = message["status"], headers.get(b"content-type", b"").decode()
            parts["reply"] += message.get("body", b"")
            await send(message)

        await self._app(scope, received, sent)


class Decisions:
    """A plugin that keeps what was decided."""

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        if isinstance(event, ObservedDecision):
            action = asdict(event.action.changed(native=None))
            decision = event.decision
            kept = {name: value for name, value in action.items() if value not in (None, {}, ())}
            fields = ("policy", "rule", "reason", "text", "arguments", "abort", "fault")
            self.seen.append([kept, str(decision.effect.name), {n: v for n in fields if (v := getattr(decision, n))}])
        elif type(event).__name__ in ("ModelCallFailed", "ToolOutcome"):
            self.seen.append([type(event).__name__, getattr(event, "status", None)])


_IDS = re.compile(
    r"(?<![A-Za-z0-9])(chatcmpl|cmpl|resp|msg|fc|rs|call|op|emb|dec|toolu)([-_])([0-9a-f]{12,}[0-9]*)"
    r"|((?:\"|\\\")created(?:_at)?(?:\"|\\\"):\s*)\d{6,}|(127\.0\.0\.1):\d+|(entry )\S+(?= of)"
)


def normalised(value: Any) -> Any:
    """``value`` as JSON in which ids, times and ports are numbered as they come."""
    seen: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        if match[1]:
            return f"{match[1]}{match[2]}{seen.setdefault(match[3], f'#{len(seen)}')}"
        return f"{match[4] or match[5] or match[6]}0"

    text = json.dumps(
        value, ensure_ascii=False, default=lambda one: one.decode() if isinstance(one, bytes) else str(one)
    )
    return json.loads(_IDS.sub(number, text))


def cases(engines: Sequence[str] = ENGINES) -> Iterator[tuple[str, Any]]:
    """Every case on ``engines`` by its name, recorded now."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        current: list[Callable[[Mapping[str, Any]], ScriptedReply]] = [script]
        upstream = stack.enter_context(ScriptedModelServer(lambda body: current[0](body), token_ids=True))
        tokens = Tokens()
        for engine_name in engines:
            for policy_name in POLICIES:
                place = Path(folder, f"{engine_name} {policy_name}")
                place.mkdir()
                with ExitStack() as served:
                    if engine_name == "tokens":
                        engine: Any = TokenEngine(tokens.model, tokens, max_new_tokens=64)
                    else:
                        speaks = ("chat", "embeddings") if engine_name == "translated" else ALL
                        engine = UpstreamEngine(upstream.base_url, speaks=speaks)
                    store = served.enter_context(closing(SQLiteStore(place / "store.sqlite")))
                    decisions, log = Decisions(), list[dict[str, Any]]()
                    gate = _gate(POLICIES[policy_name], decisions, place, served)
                    app = create_app([engine], store, keys=KeyRing(required=False), gate=gate)
                    app.add_middleware(Tap, log=log)
                    url = served.enter_context(EndpointServer(app)).url
                    for name, run in _runs(engine_name):
                        current[0] = rich_reply if name.startswith("plain") else script
                        store.add_rollouts([Rollout(name, task_id="t", run_id="r", input={})])
                        store.start_attempt(name, 1)
                        for kept in (log, decisions.seen, upstream.requests, upstream.problems):
                            kept.clear()
                        try:
                            outcome: Any = run(f"{url}/rollout/{name}/attempt/1")
                        except Exception as error:
                            outcome = type(error).__name__
                        yield f"{engine_name} · {policy_name} · {name}", normalised({
                            "outcome": outcome,
                            "exchanges": log,
                            "upstream": [] if engine_name == "tokens" else [(one.path, one.body) for one in upstream.requests],
                            "decisions": decisions.seen,
                            "recorded": [_recorded(call) for call in store.calls([name])],
                        })  # fmt: skip


def _gate(policy: Any, decisions: Decisions, folder: Path, stack: ExitStack) -> PolicyGate | None:
    if policy is None:
        return None
    plugins = [decisions] if isinstance(policy, str) else [decisions, policy()]
    (folder / "policy.yaml").write_text(policy if isinstance(policy, str) else ALLOWS)
    rules = load_policy_file(folder / "policy.yaml")
    return stack.enter_context(closing(PolicyGate(Governor(rules, plugins=plugins, timeout_s=30))))


def _runs(engine: str) -> Iterator[tuple[str, Callable[[str], Any]]]:
    for cell in CELLS:
        if cell.client in SDKS and not (engine == "native" and "previous" in cell.client):
            yield cell.name, lambda url, cell=cell: cell.run(url, cell.stream)
    if engine == "tokens":
        return
    for index, (path, body) in enumerate(PLAIN):
        for stream in (False, True) if path != "embeddings" else (False,):
            yield (
                f"plain-{index}-{path.replace('/', '.')}-{stream}",
                lambda url, path=path, body=body, stream=stream: (
                    httpx.post(f"{url}/v1/{path}", json={**body, **({"stream": True} if stream else {})}).status_code
                ),
            )


def _recorded(call: Any) -> dict[str, Any]:
    row = asdict(call)
    return {name: value for name, value in row.items() if name not in ("started_at", "ended_at")}


def read() -> dict[str, Any]:
    """The record that is kept."""
    return json.loads(gzip.decompress(RECORD.read_bytes()))


def differences(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """The places in which two recorded values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from differences(before.get(name), now.get(name), f"{where}.{name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, pair in enumerate(zip(before, now, strict=True)):
            yield from differences(*pair, f"{where}[{index}]")
    elif before != now or type(before) is not type(now):
        yield f"{where}\n  before: {json.dumps(before, ensure_ascii=False)}\n  now:    {json.dumps(now, ensure_ascii=False)}"


if __name__ == "__main__":
    chosen = [word for word in sys.argv[1:] if word in ENGINES] or ENGINES
    kept = read() if RECORD.exists() else {}
    record = dict(cases(chosen))
    if "--write" in sys.argv:
        merged = {name: case for name, case in kept.items() if name.split(" · ")[0] not in chosen} | record
        data = json.dumps(dict(sorted(merged.items())), ensure_ascii=False, separators=(",", ":")).encode()
        RECORD.write_bytes(gzip.compress(data, 9, mtime=0))
        print(f"{len(merged)} cases, {len(data)} bytes, {RECORD.stat().st_size} compressed")
    else:
        for name in sorted({name for name in kept if name.split(" · ")[0] in chosen} | record.keys()):
            for line in differences(kept.get(name), record.get(name)):
                print(f"{name} {line}")
