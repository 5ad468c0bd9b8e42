"""Between chat requests and tokens: the prompt that a conversation becomes, the completion that generated tokens become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lgov_core.errors import EndpointError
from lgov_core.gateway.engine.reply_token_cache import ReplyTokenCache
from lgov_core.types import new_id
from lgov_core.wire.exchange import ChatRequest, Completion, ToolCall

if TYPE_CHECKING:
    from lgov_core.models import LanguageModel


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as text and as token ids (int, length P)."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Generated:
    """Generated tokens: ``ids`` (int, at least one), their ``logprobs`` (the same length, or None) and weights version."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    weights_version: int | None


class ReplyCodec:
    """Writes prompts and reads replies of one `LanguageModel`. For one event loop.

    ``name`` is the model's name in completions, ``context`` the most tokens of prompt and reply together. Prompts repeat
    the tokens of earlier replies exactly (`ReplyTokenCache`).
    """

    def __init__(self, model: LanguageModel, *, name: str, context: int) -> None:
        self._model = model
        self._name = name
        self._context = context
        self._cache = ReplyTokenCache(model)

    def count(self, request: ChatRequest) -> int:
        """How many tokens the prompt has. Raises `EndpointError` (400) for a conversation that is not text."""
        return len(self._cache.render(request.messages, request.tools)[1])

    def prompt(self, request: ChatRequest) -> Prompt:
        """The prompt. Raises `EndpointError` (400) for one that fills the context, or is not text."""
        prompt = Prompt(*self._cache.render(request.messages, request.tools))
        if len(prompt.ids) >= self._context:
            raise EndpointError(
                f"the prompt has {len(prompt.ids)} tokens, but the context of model {self._name!r} holds {self._context}, "
                "reply included",
                hint="shorten the conversation or the tool results",
            )
        return prompt

    def reply_limit(self, request: ChatRequest, prompt: Prompt, most: int) -> int:
        """How many tokens the reply may have: ``most``, the request's limit, or what is left of the context."""
        asked = most if request.max_tokens is None else request.max_tokens
        return min(asked, most, self._context - len(prompt.ids))

    def completion(self, request: ChatRequest, prompt: Prompt, choices: Sequence[Generated]) -> Completion:
        """The reply of one choice or several."""
        first, *others = [self._choice(request, prompt, choice) for choice in choices]
        return replace(first, more=tuple(replace(other, response_id=first.response_id) for other in others))

    def _choice(self, request: ChatRequest, prompt: Prompt, generated: Generated) -> Completion:
        ids = generated.ids
        ended = ids[-1] in self._model.eos_ids
        text = self._model.decode(ids[:-1] if ended else ids)
        matches = [(place, stop) for stop in request.stop if (place := text.find(stop)) >= 0]
        place, matched = min(matches, default=(len(text), None))
        before_stop = text[:place]
        finish = "stop" if ended or matched is not None else "length"
        content: str | None = before_stop
        calls: tuple[ToolCall, ...] = ()
        # A reply that was cut off at its token limit proposes no tool calls: half a call is never acted on.
        if request.tools and finish == "stop":
            parsed = self._model.format.parse(before_stop, request.tools)
            content = parsed.content
            calls = tuple(ToolCall(new_id("call"), call.name, call.arguments_text) for call in parsed.calls)
        if matched is None:
            self._cache.remember(prompt.text, prompt.ids, ids, text, content, calls)
        return Completion(
            response_id=new_id("chatcmpl"),
            model=self._name,
            text=text,
            content=content,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else finish,
            prompt_ids=prompt.ids,
            response_ids=ids,
            logprobs=generated.logprobs,
            weights_version=generated.weights_version,
            prompt_tokens=len(prompt.ids),
            completion_tokens=len(ids),
            matched_stop=matched,
        )
