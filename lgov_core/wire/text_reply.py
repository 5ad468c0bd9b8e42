"""Replies that have no place for token ids, as completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.wire.exchange import Completion, ToolCall, unclear_ids
from lgov_core.wire.fields import shown


def unreadable_parts(kinds: Sequence[Any], known: Sequence[str], ids: Sequence[Any]) -> str | None:
    """Why the calls of a reply with parts of these ``kinds`` cannot be read for certain; None if they can."""
    unknown = next((kind for kind in kinds if kind not in known), None)
    return unclear_ids([{"id": one} for one in ids]) if unknown is None else f"it has a part of type {shown(unknown)}"


def text_completion(
    body: Mapping[str, Any],
    response_id: str,
    texts: list[str],
    calls: list[ToolCall],
    finish: str,
    usage: Any,
    unreadable: str | None,
) -> Completion:
    """A reply as a completion without tokens; ``unreadable`` is why its calls cannot be read for certain."""
    lgov: Any = body.get("lgov")
    version = lgov.get("weights_version") if isinstance(lgov, dict) else None
    read, generated = usage.get("input_tokens"), usage.get("output_tokens")
    text = "".join(texts)
    return Completion(
        response_id=response_id,
        model=str(body.get("model") or ""),
        text=text,
        content=text if texts else None,
        tool_calls=tuple(calls),
        finish_reason=finish,
        prompt_ids=None,
        response_ids=None,
        logprobs=None,
        weights_version=version if isinstance(version, int) else None,
        prompt_tokens=read if isinstance(read, int) else 0,
        completion_tokens=generated if isinstance(generated, int) else 0,
        raw=body,
        unreadable=unreadable,
    )
