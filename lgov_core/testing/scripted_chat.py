"""A scripted reply as an OpenAI chat completion, whole and in chunks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lgov_core.testing.scripted_reply import ScriptedReply, halves, openai_usage, sse, token_logprob, words
from lgov_core.types import new_id


class ChatWriter:
    """Writes one reply as a chat completion, with the token ids where vLLM puts them."""

    def __init__(self, reply: ScriptedReply, request: Mapping[str, Any], model: str, token_ids: bool = False) -> None:
        self._reply = reply
        self._request = request
        calls = [{"name": call.name, "arguments": call.text} for call in reply.tool_calls]
        generated = (reply.text or "") + "".join(json.dumps(call) for call in calls)
        self._response_ids = [*generated.encode(), 256]
        self._prompt_ids = list(json.dumps(request.get("messages")).encode())
        self._with_ids = token_ids and bool(request.get("return_token_ids"))
        self._with_logprobs = bool(request.get("logprobs"))
        self._finish_reason = reply.finish_reason or ("tool_calls" if calls else "stop")
        self._head = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": request.get("model") or model}
        self._usage = openai_usage(len(self._prompt_ids), len(self._response_ids))

    def _logprobs(self, ids: Sequence[int]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        content = [
            {"token": chr(token) if token < 128 else "\ufffd", "logprob": token_logprob(token), "bytes": None}
            for token in ids
        ]
        return {"content": [{**item, "top_logprobs": []} for item in content]}

    def body(self) -> dict[str, Any]:
        """The reply at once."""
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in self._reply.tool_calls
        ]
        message = {"role": "assistant", "content": self._reply.text, **({"tool_calls": calls} if calls else {})}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        choice["logprobs"] = self._logprobs(self._response_ids)
        body = {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage}
        if self._with_ids:
            choice["token_ids"] = self._response_ids
            body["prompt_token_ids"] = self._prompt_ids
        return {**body, **self._reply.extra}

    def frames(self) -> Iterator[str]:
        """The reply in pieces: the text word by word, each call's name, then its arguments in two halves."""
        yield self._chunk({"role": "assistant", "content": ""}, first=True)
        left = list(self._response_ids)
        for word in words(self._reply.text) if self._reply.text else ():
            size = len(word.encode())
            yield self._chunk({"content": word}, ids=left[:size])
            del left[:size]
        for index, call in enumerate(self._reply.tool_calls):
            head = {"index": index, "id": call.call_id, "type": "function", "function": {"name": call.name}}
            yield self._chunk({"tool_calls": [head]})
            for part in halves(call.text):
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
        yield self._chunk({}, ids=left, finish_reason=self._finish_reason)
        if (self._request.get("stream_options") or {}).get("include_usage"):
            yield sse({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage})
        yield "data: [DONE]\n\n"

    def _chunk(
        self,
        delta: Mapping[str, Any],
        *,
        ids: Sequence[int] = (),
        finish_reason: str | None = None,
        first: bool = False,
    ) -> str:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        if ids:
            choice["logprobs"] = self._logprobs(ids)
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice], **self._reply.extra}
        if self._with_ids:
            choice["token_ids"] = list(ids)
            if first:
                chunk["prompt_token_ids"] = self._prompt_ids
        return sse(chunk)
