"""Whether the tokens of a captured call are the text that went back and forth."""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lgov_core.errors import EndpointError
from lgov_core.models import LanguageModel
from lgov_core.models.tool_text import message_text
from lgov_core.types import CapturedCall
from lgov_core.wire.chat import read_chat_request
from lgov_core.wire.exchange import ChatRequest

#: So many replies are remembered: twice as many as the embedded engine remembers.
_REPLIES = 16_384


@dataclass(frozen=True, slots=True)
class _Reply:
    """What the agent received (`_call_value` of each call), and the model's text for it."""

    content: str
    calls: list[tuple[Any, ...]]
    text: str


class CapturedText:
    """Compares the tokens of captured calls with the JSON that was received and sent.

    A prompt repeats an earlier reply with tool calls as the model wrote it, where the client sent the calls back
    unchanged; so every call must be given to `remember`, in the order of the store, before the later ones are judged.
    Not thread-safe.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._vocabulary = int(model.module.config.vocab_size)
        self._replies: OrderedDict[str, _Reply] = OrderedDict()

    def remember(self, call: CapturedCall) -> None:
        """Keeps a reply that proposed tool calls. One whose tokens cannot be read is not kept."""
        if call.tool_call_ids and call.response_ids and self._readable(call.response_ids):
            try:
                message = call.response["choices"][0]["message"]
                content, calls = message_text(message), [_call_value(one) for one in message["tool_calls"]]
            except (LookupError, TypeError, AttributeError, EndpointError):
                return  # `problem` says so
            self._replies[call.tool_call_ids[0]] = _Reply(content, calls, self._reply_text(call.response_ids)[0])
            if len(self._replies) > _REPLIES:
                self._replies.popitem(last=False)

    def problem(self, call: CapturedCall) -> str | None:
        """What does not fit, for people; None when the tokens of prompt and reply are exactly the text.

        The reply's tokens must decode to its content and, parsed, to its tool calls; the prompt's to the rendered
        messages and tools of the request.
        """
        prompt, reply = call.prompt_ids, call.response_ids
        if not prompt or not reply:
            return "its token ids were not recorded"
        if not self._readable(prompt) or not self._readable(reply):
            return f"a token id is not in the vocabulary of {self._vocabulary}"
        try:
            request = read_chat_request(call.request)
            return self._reply_problem(call, request, reply) or self._prompt_problem(request, prompt)
        except EndpointError as error:
            return f"the recorded request cannot be rendered: {error}"

    def _readable(self, ids: Sequence[int]) -> bool:
        return min(ids) >= 0 and max(ids) < self._vocabulary

    def _reply_text(self, ids: Sequence[int]) -> tuple[str, bool]:
        """The text of a reply without its end token, and whether it had one."""
        ended = ids[-1] in self._model.eos_ids
        return self._model.decode(ids[:-1] if ended else ids), ended

    def _reply_problem(self, call: CapturedCall, request: ChatRequest, ids: Sequence[int]) -> str | None:
        text, ended = self._reply_text(ids)
        stops = [place for word in request.stop if (place := text.find(word)) >= 0]
        content: str | None = text[: min(stops)] if stops else text
        finish = "stop" if ended or stops else "length"
        calls: list[tuple[str, str]] = []
        if request.tools and finish == "stop":
            parsed = self._model.format.parse(content or "", request.tools)
            content = parsed.content
            calls = [(found.name, found.arguments_text) for found in parsed.calls]
        try:
            choice = call.response["choices"][0]
            message, reported = choice["message"], choice["finish_reason"]
            given = [(one["id"], one["function"]) for one in message.get("tool_calls") or ()]
            received_calls = [(function["name"], function["arguments"]) for _, function in given]
            received_content = message["content"]
        except (LookupError, TypeError, AttributeError):
            return "the recorded response is not a chat completion"
        if received_content != content:
            return f"the reply's tokens say {_shown(content)}, the agent got {_shown(received_content)}"
        if received_calls != calls:
            return f"the reply's tokens call {_shown(calls)}, the agent got {_shown(received_calls)}"
        if tuple(call_id for call_id, _ in given) != call.tool_call_ids:
            return "the ids of the tool calls are not those that the agent got"
        finish = "tool_calls" if calls else finish
        if not finish == reported == call.finish_reason:
            return (
                f"the reply's tokens end by {finish!r}, recorded is {call.finish_reason!r}, the agent got {reported!r}"
            )
        return None

    def _prompt_problem(self, request: ChatRequest, ids: Sequence[int]) -> str | None:
        text = self._model.decode(ids)
        verbatim = [self._verbatim(message) for message in request.messages]
        # An engine that was started anew does not know the replies of the one before, and renders them from their JSON.
        for messages in (verbatim, request.messages):
            rendered = self._model.text.plain(self._model.render_text(messages, request.tools))
            if rendered == text:
                return None
        at = next((n for n, (a, b) in enumerate(zip(text, rendered, strict=False)) if a != b), len(rendered))
        return f"the prompt's tokens say {_shown(text[at:])} where the request says {_shown(rendered[at:])}"

    def _verbatim(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The message; when it holds the calls of a remembered reply unchanged, the reply as the model wrote it."""
        calls = message.get("tool_calls") or ()
        reply = self._replies.get(str(calls[0].get("id"))) if message.get("role") == "assistant" and calls else None
        if reply is None or message_text(message) != reply.content or list(map(_call_value, calls)) != reply.calls:
            return message
        return {"role": "assistant", "content": reply.text}


def _call_value(call: Mapping[str, Any]) -> tuple[Any, ...]:
    """A tool call without the white space that clients write anew; broken JSON as it is."""
    function = call["function"]
    arguments = function.get("arguments") or ""
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments), sort_keys=True)
    return call.get("id"), function["name"], arguments


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
