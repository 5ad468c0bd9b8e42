"""An engine for servers that take token ids and give token ids: the text is made and read here, the tokens there.

Trainers keep such servers (verl's replicas of vLLM or SGLang are): their weights are the ones under training. Because the
prompt is tokenised once, here, the tokens that are recorded are those that the model saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lgov_core.errors import EndpointError, UpstreamError
from lgov_core.gateway.engine.reply_token_cache import TokenHistory
from lgov_core.gateway.formats.openai_format import completion_pieces
from lgov_core.gateway.formats.request_fields import only_known, refuse
from lgov_core.gateway.protocol import ChatRequest, Completion, StreamPiece, ToolCall
from lgov_core.gateway.serving.attribution import caller
from lgov_core.types import new_id

if TYPE_CHECKING:
    from lgov_core.models import LanguageModel

_WHOSE: Final = "this engine"
_HONOURED: Final = (
    "logprobs", "max_completion_tokens", "max_tokens", "messages", "model", "n", "return_token_ids", "seed", "stop",
    "stream", "stream_options", "temperature", "tools", "top_p",
)  # fmt: skip
_IGNORED: Final = ("metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")
#: Accepted with the values that ask for nothing special.
_NEUTRAL: Final = {
    "frequency_penalty": (0,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "top_logprobs": (0,),
}


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """What is asked of the server: ``prompt_ids`` (int, length P), at most ``max_tokens`` more, sampled as said.

    ``conversation`` is the same for calls that extend one another, so that they can go to one server. ``temperature`` 0
    is greedy. ``seed`` is None where the client asked for none.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    seed: int | None
    conversation: str


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What the server answered: ``ids`` (int) and their ``logprobs`` (the same length, None where it gave none).

    ``weights_version`` is that of the weights that drew them, None where the server does not know it, or where they
    changed within the reply.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    weights_version: int | None


class TokenEngine:
    """Answers chat completions through ``sample``, as an `lgov_core.gateway.protocol.Engine`.

    ``model`` writes prompts and reads replies; its weights are not used (`load_model` with ``weights=False``). ``also``
    are further names of it (`ANY_MODEL` among them: every other). ``context_tokens`` bounds prompt and reply together
    (None: the model's own), ``max_new_tokens`` a reply, whatever the request says. Requests for what it cannot do are
    refused (400). What ``sample`` raises, a reply without tokens and one whose log-probabilities do not fit its tokens are
    an `UpstreamError` (502): nothing is made up. For one event loop.
    """

    def __init__(
        self,
        model: LanguageModel,
        sample: Callable[[TokenPrompt], Awaitable[SampledTokens]],
        *,
        name: str = "tokens",
        also: Sequence[str] = (),
        context_tokens: int | None = None,
        max_new_tokens: int = 1024,
    ) -> None:
        if max_new_tokens < 1:
            raise EndpointError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
        self.name = name
        self._model = model
        self._names = tuple(dict.fromkeys((model.name, *also)))
        self._sample = sample
        self._context = min(context_tokens or model.context_length, model.context_length)
        self._max_new_tokens = max_new_tokens
        self._history = TokenHistory(model)

    @property
    def models(self) -> Sequence[str]:
        """The model's name, and those that were given besides."""
        return self._names

    async def start(self) -> None:
        """Nothing: the server is somebody else's."""

    async def close(self) -> None:
        """Nothing."""

    async def chat(self, request: ChatRequest) -> Completion:
        """The whole reply, of one choice or several, which are drawn side by side."""
        _check(request)
        text, prompt_ids = self._history.render(request.messages, request.tools)
        if len(prompt_ids) >= self._context:
            raise EndpointError(
                f"the prompt has {len(prompt_ids)} tokens, but the context of model {self._model.name!r} holds "
                f"{self._context}, reply included",
                hint="shorten the conversation or the tool results",
            )
        asked = self._max_new_tokens if request.max_tokens is None else request.max_tokens
        prompt = TokenPrompt(
            prompt_ids,
            min(asked, self._max_new_tokens, self._context - len(prompt_ids)),
            request.temperature,
            request.top_p,
            request.stop,
            request.seed,
            caller().rollout_id or new_id("conv"),
        )
        prompts = [prompt] * request.n
        if request.seed is not None:  # or all choices were one
            prompts = [replace(prompt, seed=request.seed + choice) for choice in range(request.n)]
        choices = [
            self._completion(request, text, prompt, tokens)
            for tokens in await asyncio.gather(*(self._ask(one) for one in prompts))
        ]
        first = choices[0]
        others = tuple(replace(choice, response_id=first.response_id) for choice in choices[1:])
        return replace(first, more=others) if others else first

    async def count_tokens(self, request: ChatRequest) -> int:
        """How many tokens the prompt has. Raises `EndpointError` (400) for a conversation that is no text."""
        _check(request)
        return len(self._history.render(request.messages, request.tools)[1])

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPiece]:
        """The reply in pieces, which come once it is whole: only then is it known what in it is a tool call."""
        completion = await self.chat(request)
        for piece in completion_pieces(completion, request.body):
            yield piece

    async def _ask(self, prompt: TokenPrompt) -> SampledTokens:
        try:
            tokens = await self._sample(prompt)
        except EndpointError:
            raise
        except Exception as error:
            raise UpstreamError(f"the server of the weights failed: {type(error).__name__}: {error}") from error
        if not tokens.ids:
            raise UpstreamError("the server of the weights answered with no token", hint="was it being updated?")
        if tokens.logprobs is not None and len(tokens.logprobs) != len(tokens.ids):
            counts = f"{len(tokens.ids)} tokens and {len(tokens.logprobs)} log-probabilities"
            raise UpstreamError(f"the server of the weights answered with {counts}")
        return tokens

    def _completion(
        self, request: ChatRequest, prompt_text: str, prompt: TokenPrompt, out: SampledTokens
    ) -> Completion:
        ended = out.ids[-1] in self._model.eos_ids
        text = self._model.decode(out.ids[:-1] if ended else out.ids)
        places = [(place, word) for word in request.stop if (place := text.find(word)) >= 0]
        before_stop, matched = (text[: min(places)[0]], min(places)[1]) if places else (text, None)
        finish = "stop" if ended or matched is not None else "length"
        content: str | None = before_stop
        calls: tuple[ToolCall, ...] = ()
        # A reply that was cut off proposes no tool calls: half a call is never acted on.
        if request.tools and finish == "stop":
            parsed = self._model.format.parse(before_stop, request.tools)
            content = parsed.content
            calls = tuple(ToolCall(new_id("call"), call.name, call.arguments_text) for call in parsed.calls)
        if matched is None:
            self._history.remember(prompt_text, prompt.prompt_ids, out.ids, text, content, calls)
        return Completion(
            response_id=new_id("chatcmpl"),
            model=self._model.name,
            text=text,
            content=content,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else finish,
            prompt_ids=prompt.prompt_ids,
            response_ids=out.ids,
            logprobs=out.logprobs,
            weights_version=out.weights_version,
            prompt_tokens=len(prompt.prompt_ids),
            completion_tokens=len(out.ids),
            matched_stop=matched,
        )


def _check(request: ChatRequest) -> None:
    """Raises `EndpointError` (400) naming the field for what cannot be honoured."""
    for name, neutral in _NEUTRAL.items():
        refuse(request.body, (name,), _WHOSE, unless={name: neutral})
    only_known(request.body, {*_HONOURED, *_IGNORED, *_NEUTRAL}, _WHOSE)
