"""A scripted reply as an OpenAI legacy completion, whole and in chunks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lgov_core.testing.scripted_reply import ScriptedReply, openai_usage, sse, token_logprob, words
from lgov_core.types import new_id


class CompletionWriter:
    """Writes one reply's text as a completion, with the token ids where vLLM puts them: in the choice."""

    def __init__(self, reply: ScriptedReply, request: Mapping[str, Any], model: str, token_ids: bool = False) -> None:
        self._reply = reply
        self._ids = [*(reply.text or "").encode(), 256]
        prompt = request.get("prompt")
        self._prompt_ids = list((prompt if isinstance(prompt, str) else json.dumps(prompt)).encode())
        self._with_ids = token_ids and bool(request.get("return_token_ids"))
        self._with_logprobs = request.get("logprobs") is not None
        self._with_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        self._head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.get("model") or model,
        }
        self._usage = openai_usage(len(self._prompt_ids), len(self._ids))

    def _choice(
        self, text: str, ids: Sequence[int], finish_reason: str | None, *, first: bool = True
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}
        if self._with_logprobs:
            tokens = [chr(token) if token < 128 else "\ufffd" for token in ids]
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": list(map(token_logprob, ids))}
        if self._with_ids:
            choice["token_ids"] = list(ids)
            choice["prompt_token_ids"] = self._prompt_ids if first else None
        return choice

    def body(self) -> dict[str, Any]:
        """The completion at once."""
        choice = self._choice(self._reply.text or "", self._ids, self._reply.finish_reason or "stop")
        return {**self._head, "choices": [choice], "usage": self._usage, **self._reply.extra}

    def frames(self) -> Iterator[str]:
        """The completion as server-sent events, word by word."""
        for number, word in enumerate(words(self._reply.text or "")):
            yield self._frame([self._choice(word, list(word.encode()), None, first=not number)])
        yield self._frame([self._choice("", [256], self._reply.finish_reason or "stop", first=False)])
        if self._with_usage:
            yield self._frame([], usage=self._usage)
        yield "data: [DONE]\n\n"

    def _frame(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> str:
        return sse({**self._head, "choices": choices, **more, **self._reply.extra})
