"""Remembers the tokens of the engine's replies, so that a later prompt repeats exactly those.

A reply's text may have several tokenisations, and the one that was drawn need not be the tokenizer's own. A rollout's
calls extend one another only when the history in the next prompt has the tokens that were generated. Tokens are reused
only where the text is the same, character by character.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from lgov_core._util.bounded import BoundedDict
from lgov_core.models import LanguageModel
from lgov_core.models.chat_template import REPLY_STARTS
from lgov_core.models.tool_text import message_text
from lgov_core.wire.exchange import ToolCall


@dataclass(frozen=True, slots=True)
class _Reply:
    text: str
    content: str
    calls: tuple[ToolCall, ...]


class ReplyTokenCache:
    """The tokens of the last ``size`` replies of one engine; an older reply is tokenised anew. For one event loop."""

    def __init__(self, model: LanguageModel, size: int = 8192) -> None:
        self._model = model
        self._end = model.decode([model.end_id])
        self._ids: BoundedDict[bytes, tuple[int, ...]] = BoundedDict(size)
        self._replies: BoundedDict[str, _Reply] = BoundedDict(size)
        # A tokenizer that treats text differently after a control token than at the start of a text cannot be cut
        # there.
        encode = model.text.encode
        self._cuttable = encode(f"a b{self._end} c") == [*encode(f"a b{self._end}"), *encode(" c")]

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, tuple[int, ...]]:
        """The prompt's text, to be handed to `remember`, and its token ids."""
        text = self._model.render_text([self._verbatim(message) for message in messages], tools)
        return text, tuple(self._encode(text))

    def remember(
        self,
        prompt_text: str,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        text: str,
        content: str | None,
        calls: tuple[ToolCall, ...],
    ) -> None:
        """Keeps a reply: ``response_ids`` as generated, ``text`` their decoded text without the end token."""
        if calls:
            self._replies.put(calls[0].call_id, _Reply(text, content or "", calls))
        if not self._cuttable:
            return
        whole = (*prompt_ids, *response_ids)
        if whole[-1] != self._model.end_id:
            if whole[-1] in self._model.eos_ids:
                return  # ended with a token that is not how the template ends a turn
            whole = (*whole, self._model.end_id)
        key = _digest(f"{prompt_text}{REPLY_STARTS}{self._model.text.protect(text)}{self._end}")
        self._ids.put(key, whole)

    def _verbatim(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The message; when it holds the calls of a remembered reply unchanged, the reply as it was generated."""
        calls = message.get("tool_calls")
        if message.get("role") != "assistant" or not calls:
            return message
        reply = self._replies.get(str(calls[0].get("id")))
        if reply is None or len(calls) != len(reply.calls) or message_text(message) != reply.content:
            return message
        for call, remembered in zip(calls, reply.calls, strict=True):
            function = call["function"]
            same = (
                call.get("id") == remembered.call_id
                and function["name"] == remembered.name
                and _same_arguments(function.get("arguments") or "", remembered.arguments)
            )
            if not same:
                return message
        return {"role": "assistant", "content": reply.text}

    def _encode(self, text: str) -> list[int]:
        cut = text.rfind(self._end) if self._cuttable else -1
        while cut >= 0:
            cut += len(self._end)
            key = _digest(text[:cut])
            if (ids := self._ids.get(key)) is not None:
                return [*ids, *self._model.text.encode(text[cut:])]
            cut = text.rfind(self._end, 0, cut - len(self._end))
        return self._model.text.encode(text)


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _same_arguments(left: str, right: str) -> bool:
    """Whether both are the same JSON value (clients serialise it again with other white space), or the same broken text."""
    if left == right:
        return True
    try:
        # As text, because 1, 1.0 and True are equal as values.
        one, other = (json.dumps(json.loads(text), sort_keys=True) for text in (left, right))
    except (ValueError, RecursionError):
        return False
    return one == other
