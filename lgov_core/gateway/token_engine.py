"""An engine for servers that take token ids and return token ids; the text is written and read here.

Trainers keep such servers (verl's replicas of vLLM or SGLang are), with the weights under training. Because the prompt is
tokenised once, here, the recorded tokens are those that the model read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lgov_core.errors import EndpointError, UpstreamError
from lgov_core.gateway.access import caller
from lgov_core.gateway.engine.reply_codec import LACKS, Generated, ReplyCodec, check_fields, reply_grammar
from lgov_core.types import new_id
from lgov_core.wire.chat import completion_pieces
from lgov_core.wire.exchange import ChatRequest, Completion, StreamPiece

if TYPE_CHECKING:
    from lgov_core.models import LanguageModel


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A request to the server: ``prompt_ids`` (int, length P), and how at most ``max_tokens`` more are sampled.

    ``conversation`` is the same for calls that extend one another, so that they can go to one server. ``temperature`` 0
    is greedy. ``seed`` is None where the client asked for none. ``grammar`` is what the reply must be in (see
    `lgov_core.gateway.engine.reply_codec`), None for any text. ``policy`` is one of the engine's ``policies``, or empty.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    seed: int | None
    conversation: str
    grammar: str | None = None
    policy: str = ""


class TokenEngine:
    """Answers chat completions through ``sample``, as an `lgov_core.gateway.protocol.Engine`.

    ``model`` writes prompts and reads replies; its weights are not used (`load_model` with ``weights=False``). ``also``
    are further names of it, and ``policies`` models with weights of their own: ``route`` says which one answers a call (None:
    the one that it asks for as its model). ``context_tokens`` bounds prompt and reply together (None: the model's own),
    ``max_new_tokens`` a reply. Requests for what it cannot do are refused (400). What ``sample`` raises, a reply without
    tokens and one whose log-probabilities do not fit its tokens are an `UpstreamError` (502). A subclass with ``grammars`` asks
    the server for replies in JSON and demanded tool calls, else these are refused. For one event loop.
    """

    name = "tokens"
    grammars = False
    lacks = LACKS

    def __init__(
        self,
        model: LanguageModel,
        sample: Callable[[TokenPrompt], Awaitable[Generated]],
        *,
        also: Sequence[str] = (),
        policies: Sequence[str] = (),
        route: Callable[[ChatRequest], str] | None = None,
        context_tokens: int | None = None,
        max_new_tokens: int = 1024,
    ) -> None:
        if max_new_tokens < 1:
            raise EndpointError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
        self._names = tuple(dict.fromkeys((model.name, *policies, *also)))
        self._draw = sample
        self._model = model
        self._max_new_tokens = max_new_tokens
        context = min(context_tokens or model.context_length, model.context_length)
        # One a policy: each may have written the same text with other tokens.
        self._codecs = {
            policy: ReplyCodec(model, name=policy or model.name, context=context) for policy in ("", *policies)
        }
        self._route = route

    @property
    def models(self) -> Sequence[str]:
        """The model's name, and those that were given besides."""
        return self._names

    async def start(self) -> None:
        """Does nothing: the caller keeps the server."""

    async def close(self) -> None:
        """Does nothing."""

    async def chat(self, request: ChatRequest) -> Completion:
        """The whole reply, of one choice or several, which are drawn side by side."""
        check_fields(request, f"the engine {self.name}", grammars=self.grammars)
        policy = self._policy_of(request)
        codec = self._codecs[policy]
        prompt = codec.prompt(request)
        token_prompt = TokenPrompt(
            prompt.ids,
            codec.reply_limit(request, prompt, self._max_new_tokens),
            request.temperature,
            request.top_p,
            request.stop,
            request.seed,
            caller().rollout_id or new_id("conv"),
            reply_grammar(request, self._model) if self.grammars else None,
            policy,
        )
        each = [token_prompt] * request.n
        if request.seed is not None:  # each choice needs a seed of its own
            each = [replace(token_prompt, seed=request.seed + choice) for choice in range(request.n)]
        return codec.completion(request, prompt, await asyncio.gather(*map(self._ask, each)))

    async def count_tokens(self, request: ChatRequest) -> int:
        """How many tokens the prompt has. Raises `EndpointError` (400) for a conversation that is not text."""
        check_fields(request, f"the engine {self.name}", grammars=self.grammars)
        return self._codecs[self._policy_of(request)].count(request)

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPiece]:
        """The reply in pieces, which come once it is whole: only then is it known what in it is a tool call."""
        for piece in completion_pieces(await self.chat(request), request.body):
            yield piece

    def _policy_of(self, request: ChatRequest) -> str:
        if self._route is not None:
            return self._route(request)
        return request.model if request.model in self._codecs else ""

    async def _ask(self, prompt: TokenPrompt) -> Generated:
        try:
            tokens = await self._draw(prompt)
        except EndpointError:
            raise
        except Exception as error:
            raise UpstreamError(f"the server of the weights failed: {type(error).__name__}") from error
        if not tokens.ids:
            raise UpstreamError("the server of the weights answered with no token", hint="was it being updated?")
        if tokens.logprobs is not None and len(tokens.logprobs) != len(tokens.ids):
            counts = f"{len(tokens.ids)} tokens and {len(tokens.logprobs)} log-probabilities"
            raise UpstreamError(f"the server of the weights answered with {counts}")
        return tokens
