"""The embedded engine: a torch model in this process, and policies on it, whose weights can be swapped while calls come in."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lgov_core.errors import EndpointError, ModelError
from lgov_core.gateway.engine.embedded_request import check_embedded
from lgov_core.gateway.engine.reply_grammar import GrammarConstraint, Grammars, reply_grammar
from lgov_core.gateway.engine.reply_token_cache import TokenHistory
from lgov_core.gateway.engine.served_policy import ServedPolicy
from lgov_core.gateway.formats.openai_format import completion_pieces
from lgov_core.gateway.protocol import ChatRequest, Completion, StreamPiece, ToolCall
from lgov_core.types import new_id

if TYPE_CHECKING:
    import torch

    from lgov_core.gateway.engine.sampling import Row
    from lgov_core.models import LanguageModel

#: A model with fewer parameters is decoded by one thread: more would wait for each other longer than they work.
_SMALL = 10_000_000
#: Below this a temperature is greedy: dividing by it would leave the range of float32.
_COLDEST = 1e-4
#: Memory for what was computed of earlier calls.
_KEPT = 512 << 20


class EmbeddedEngine:
    """Answers chat completions with a `LanguageModel`, as an `lgov_core.gateway.protocol.Engine`.

    The other APIs are translated to them. A request that asks for what this engine cannot do, such as an image, is refused
    (400); the choices of ``n`` > 1 are drawn side by side. Replies in JSON (``response_format``) and tool calls that are
    demanded (``tool_choice``) are drawn within a grammar (`lgov_core.gateway.engine.reply_grammar`); the log-probabilities stay
    those of the whole distribution, as with ``top_p``.

    A thread of its own decodes up to ``max_batch`` calls together, which join and leave between two tokens; a call that
    finds nothing running waits ``max_wait_ms`` for others. What was computed for a call is kept, up to ``keep_bytes``, for
    those that begin alike: a rollout's next turn reads only what is new. ``max_new_tokens`` is the most tokens a reply may
    have, whatever the request says. ``threads`` is the number of torch threads of that thread (None: one for a small
    model, else torch's choice); threads started later begin with the same number, so a trainer in a new thread sets its
    own. Requests without a seed draw theirs from ``seed`` and their order.

    ``policies`` are further models by name: low-rank additions to the one model (LoRA), each with weights and versions of
    its own (see `policy`), all decoded in one batch. Until weights are published a policy is the model itself, and its
    version 0.

    ``chat`` and ``stream`` belong to one event loop; `publish`, `pause` and `resume` may be called from any thread and
    block. Nobody else may change the module's weights or run it in training mode unless the engine is paused.

    A reply that was cut off at its token limit proposes no tool calls: half a call is never acted on.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        max_batch: int = 64,
        max_new_tokens: int = 64,
        max_wait_ms: float = 3.0,
        threads: int | None = None,
        seed: int = 0,
        name: str = "embedded",
        policies: Sequence[str] = (),
        keep_bytes: int = _KEPT,
    ) -> None:
        names = [model.name, *policies]
        if len(set(names)) < len(names) or not all(names):
            raise ModelError(f"models need different names, not {', '.join(map(repr, names))}")
        if max_batch < 1 or max_new_tokens < 1:
            raise ModelError(f"max_batch ({max_batch}) and max_new_tokens ({max_new_tokens}) must be at least 1")
        from lgov_core.gateway.engine.decode_worker import DecodeWorker
        from lgov_core.gateway.engine.generation import Decoder
        from lgov_core.gateway.engine.lora import Additions

        if threads is None and model.module.num_parameters() < _SMALL:
            threads = 1
        self.name = name
        self._model = model
        self._max_new_tokens = max_new_tokens
        self._seed = seed
        self._count = 0
        # By policy: the same text may have been written with other tokens by another one.
        self._histories = {name: TokenHistory(model) for name in ("", *policies)}
        self._grammars = Grammars(model)
        self._additions = Additions(model.module) if policies else None
        self._decoder = Decoder(model, self._additions, keep_bytes=keep_bytes)
        self._worker = DecodeWorker(self._decoder, max_batch=max_batch, max_wait_s=max_wait_ms / 1e3, threads=threads)
        self._worker.versions.update(dict.fromkeys(policies, 0))

    @property
    def models(self) -> Sequence[str]:
        """The model's name, and those of the policies on it."""
        return (self._model.name, *(name for name in self._histories if name))

    @property
    def weights_version(self) -> int:
        """The version of the model's weights in use: 0 as loaded, then what `publish` returned."""
        return self._worker.versions[""]

    @property
    def kept_bytes(self) -> int:
        """How much memory is taken by what is kept of earlier calls, as of now."""
        return self._decoder.kept_bytes

    def policy(self, name: str) -> ServedPolicy:
        """One of the ``policies``, to publish its weights. Raises `ModelError` for another name."""
        if not name or name not in self._histories:
            known = ", ".join(name for name in self._histories if name)
            raise ModelError(f"no policy is named {name!r}", hint=f"there are: {known}" if known else "pass policies=")
        assert self._additions is not None, "there are policies"
        return ServedPolicy(name, self._worker, self._additions)

    async def start(self) -> None:
        """Starts decoding. Raises `EndpointError` when the engine was closed."""
        self._worker.start()

    async def close(self) -> None:
        """Fails the calls that run and wait with an `EndpointError` (503) and ends the thread."""
        await asyncio.to_thread(self._worker.close)

    async def chat(self, request: ChatRequest) -> Completion:
        """The whole reply, of one choice or several.

        Raises `EndpointError`: 400 for a prompt longer than the model's context, a conversation that is no text or a
        field that cannot be honoured, 500 when the model failed, 503 when the engine is closed. Cancelling the call takes
        it out of its batch.
        """
        from lgov_core.gateway.engine.decode_worker import Job

        check_embedded(request)
        policy = self._policy_of(request)
        prompt_text, prompt_ids = self._prompt(request, policy)
        rows = self._rows(request, policy, prompt_ids)
        constraints = await self._constrain(request, rows)
        loop = asyncio.get_running_loop()
        jobs = [Job(row, loop.create_future(), loop) for row in rows]
        for job in jobs:
            self._worker.submit(job)
        try:
            versions = await asyncio.gather(*(job.future for job in jobs))
        except BaseException:
            for job in jobs:  # nobody waits for any of them
                job.row.abandoned = True
                job.future.cancel()
            raise
        if fault := next((one.fault for one in constraints if one.fault), ""):
            raise EndpointError(f"the reply could not be held to its form: {fault}", status=500)
        choices = [
            self._completion(request, prompt_text, job.row, version)
            for job, version in zip(jobs, versions, strict=True)
        ]
        first = choices[0]
        others = tuple(replace(choice, response_id=first.response_id) for choice in choices[1:])
        return replace(first, more=others) if others else first

    async def count_tokens(self, request: ChatRequest) -> int:
        """How many tokens the prompt has. Raises `EndpointError` (400) for a conversation that is no text."""
        check_embedded(request)
        return len(self._histories[self._policy_of(request)].render(request.messages, request.tools)[1])

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPiece]:
        """The reply in pieces, which come once it is whole: only then is it known what in it is a tool call."""
        completion = await self.chat(request)
        for piece in completion_pieces(completion, request.body):
            yield piece

    def publish(self, state_dict: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        """Copies new weights into the model between two batches; returns the version now served.

        ``state_dict`` maps names of the module's own state to tensors of the same shape, any dtype and device; names
        may be left out. ``version`` must be above the present one (default: one more). Running calls are finished
        with the old weights, waiting ones are answered with the new. Blocks until it is done; works while paused.
        Raises `ModelError`, with nothing changed, for an unknown name, another shape, a value that is not finite, a
        version that does not rise, or an engine with policies, which stand on these weights; `EndpointError` when the
        engine is closed.
        """
        if self._additions is not None:
            raise ModelError(
                f"the weights of model {self._model.name!r} have policies on them and cannot change",
                hint="publish to one of them: engine.policy(name).publish(...)",
            )
        swapped: int = self._worker.between(lambda: self._swap(state_dict, version))
        return swapped

    @contextmanager
    def pause(self) -> Generator[None]:
        """Within it nothing is decoded: running calls are finished first, new ones wait. Blocks until then."""
        self._worker.pause()
        try:
            yield
        finally:
            self._worker.resume()

    def _swap(self, state_dict: Mapping[str, torch.Tensor], version: int | None) -> int:
        import torch

        new_version = self._worker.risen("", version)
        own: dict[str, torch.Tensor] = self._model.module.state_dict()
        unknown = sorted(set(state_dict) - set(own))
        if unknown:
            raise ModelError(
                f"{len(unknown)} published weights are unknown to model {self._model.name!r}, such as {unknown[0]!r}",
                hint=f"its own are named like {next(iter(own))!r}",
            )
        for name, tensor in state_dict.items():
            if tensor.shape != own[name].shape:
                shapes = f"{tuple(tensor.shape)}, the model's is {tuple(own[name].shape)}"
                raise ModelError(f"published {name!r} is {shapes}")
            if not bool(torch.isfinite(tensor).all()):
                raise ModelError(f"published {name!r} holds values that are not finite", hint="the update diverged")
        with torch.no_grad():
            for name, tensor in state_dict.items():
                own[name].copy_(tensor)
        self._decoder.forget()
        self._worker.versions[""] = new_version
        return new_version

    def _policy_of(self, request: ChatRequest) -> str:
        return request.model if request.model in self._histories else ""

    async def _constrain(self, request: ChatRequest, rows: Sequence[Row]) -> list[GrammarConstraint]:
        """Holds the rows to the form that the request asks for, if it asks for one."""
        grammar = reply_grammar(request, self._model.format.name)
        if grammar is None:
            return []
        # In a thread: a large schema takes a while to compile.
        constraints = await asyncio.to_thread(self._grammars.constraints, grammar, len(rows))
        for row, constraint in zip(rows, constraints, strict=True):
            row.constraint = constraint
        return constraints

    def _prompt(self, request: ChatRequest, policy: str) -> tuple[str, tuple[int, ...]]:
        text, ids = self._histories[policy].render(request.messages, request.tools)
        limit = self._model.context_length
        if len(ids) >= limit:
            raise EndpointError(
                f"the prompt has {len(ids)} tokens, but the context of model {self._model.name!r} holds {limit}, "
                "reply included",
                hint="shorten the conversation or the tool results",
            )
        return text, ids

    def _rows(self, request: ChatRequest, policy: str, prompt_ids: tuple[int, ...]) -> list[Row]:
        """One row for each choice. The first one has the request's own seed."""
        from lgov_core.gateway.engine.sampling import Row, draw_uniforms

        asked = self._max_new_tokens if request.max_tokens is None else request.max_tokens
        if asked < 1:
            raise EndpointError(f"max_tokens must be at least 1, not {asked}")
        count = min(asked, self._max_new_tokens, self._model.context_length - len(prompt_ids))
        seed = request.seed
        if seed is None:
            self._count += 1
            seed = _mixed(self._seed, self._count)
        return [
            Row(
                prompt_ids=prompt_ids,
                max_new_tokens=count,
                temperature=request.temperature if request.temperature >= _COLDEST else 0.0,
                top_p=request.top_p,
                uniforms=draw_uniforms((_mixed(seed, choice) if choice else seed) % 2**63, count),
                stop=request.stop,
                policy=policy,
            )
            for choice in range(request.n)
        ]

    def _completion(self, request: ChatRequest, prompt_text: str, row: Row, version: int) -> Completion:
        ended = row.response_ids[-1] in self._model.eos_ids
        text = self._model.decode(row.response_ids[:-1] if ended else row.response_ids)
        before_stop, matched = _before_stop(text, request.stop)
        content: str | None = before_stop
        calls: tuple[ToolCall, ...] = ()
        if request.tools and row.finish == "stop":
            parsed = self._model.format.parse(before_stop, request.tools)
            content = parsed.content
            calls = tuple(ToolCall(new_id("call"), call.name, call.arguments_text) for call in parsed.calls)
        if before_stop == text:
            self._histories[row.policy].remember(prompt_text, row.prompt_ids, row.response_ids, text, content, calls)
        return Completion(
            response_id=new_id("chatcmpl"),
            model=row.policy or self._model.name,
            text=text,
            content=content,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else row.finish,
            prompt_ids=row.prompt_ids,
            response_ids=tuple(row.response_ids),
            logprobs=tuple(row.logprobs),
            weights_version=version,
            prompt_tokens=len(row.prompt_ids),
            completion_tokens=len(row.response_ids),
            matched_stop=matched,
        )


def _mixed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest())


def _before_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """The text up to the first stop string, and that string; ``text`` itself and None when there is none."""
    places = [(place, word) for word in stop if (place := text.find(word)) >= 0]
    if not places:
        return text, None
    place, word = min(places)
    return text[:place], word
