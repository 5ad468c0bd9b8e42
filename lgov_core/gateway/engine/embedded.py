"""The embedded engine: a torch model in this process, and policies on it, whose weights can be swapped while calls come in."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lgov_core.errors import EndpointError, ModelError
from lgov_core.gateway.engine.reply_codec import (
    LACKS,
    Generated,
    GrammarConstraint,
    Grammars,
    Prompt,
    ReplyCodec,
    check_fields,
    reply_grammar,
)
from lgov_core.models.load import SMALL
from lgov_core.wire.chat import completion_pieces
from lgov_core.wire.exchange import ChatRequest, Completion, StreamPiece

if TYPE_CHECKING:
    import torch

    from lgov_core.gateway.engine.decode_worker import DecodeWorker
    from lgov_core.gateway.engine.generation import Row
    from lgov_core.gateway.engine.lora import LoraAdapters
    from lgov_core.models import LanguageModel

#: Below this a temperature is greedy: dividing by it would leave the range of float32.
_COLDEST = 1e-4
#: Bytes of the prefix cache.
_KEPT = 512 << 20


class ServedPolicy:
    """The weights of one policy, as an `EngineControl`: made by `EmbeddedEngine.policy`; callable from any thread."""

    def __init__(self, name: str, worker: DecodeWorker, adapters: LoraAdapters) -> None:
        self.name = name
        self._worker = worker
        self._adapters = adapters

    @property
    def weights_version(self) -> int:
        """The version of its weights in use: 0 until some are published."""
        return self._worker.versions[self.name]

    def publish(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        """Replaces all weights of the policy; returns the version now served.

        ``weights`` maps ``LAYER.lora_A.weight`` (float [rank, in]) and ``LAYER.lora_B.weight`` (float [out, rank], its
        factor included) to tensors, for any of the model's linear layers; PEFT's own names do too. An empty mapping makes
        it the model itself. Its running calls are finished with the old weights, waiting ones are answered with the new; calls
        of other policies go on meanwhile. Otherwise as `EmbeddedEngine.publish`.
        """
        adapters = self._adapters
        return self._worker.swap(
            self.name, version, lambda: adapters.put(self.name, adapters.check(self.name, weights))
        )

    def pause(self) -> None:
        """Holds the policy's calls: those that run are finished first. Calls of other policies go on."""
        self._worker.pause(self.name)

    def resume(self) -> None:
        """Ends one pause. Raises `ModelError` when there is none."""
        self._worker.resume(self.name)


class EmbeddedEngine:
    """Answers chat completions with a `LanguageModel`, as an `lgov_core.gateway.protocol.Engine` and its `EngineControl`.

    A request for what it cannot do, such as an image, is refused (400). Replies in JSON (``response_format``) and demanded
    tool calls (``tool_choice``) are drawn within a grammar (`lgov_core.gateway.engine.reply_codec`); their
    log-probabilities stay those of the whole distribution, as with ``top_p``, and what the grammar decided is not trained on.

    One thread decodes up to ``max_batch`` calls together, which join and leave between two tokens; a call that finds
    nothing running waits 3 ms for others. Keys and values are kept, up to ``keep_bytes``, for prompts with the
    same beginning. ``max_new_tokens`` bounds every reply. ``threads`` is the number of torch threads (None: one for a small
    model, else torch's choice); threads started later begin with the same number, so a trainer in a new thread sets its
    own. Requests without a seed draw theirs from ``seed`` and their order.

    ``policies`` are further models by name: LoRA adapters of the one model, each with weights and versions of its own (see
    `policy`), decoded in the same batch. Until weights are published a policy is the model itself, and its version 0.

    ``chat`` and ``stream`` belong to one event loop; `publish` and `pause` may be called from any thread and block. Other
    code may change the module's weights or run it in training mode only while the engine is paused.

    A reply that was cut off at its token limit proposes no tool calls (half a call is never acted on), unless it ends
    exactly where a call ends.
    """

    lacks = LACKS

    def __init__(
        self,
        model: LanguageModel,
        *,
        max_batch: int = 64,
        max_new_tokens: int = 64,
        threads: int | None = None,
        seed: int = 0,
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
        from lgov_core.gateway.engine.lora import LoraAdapters

        if threads is None and model.module.num_parameters() < SMALL:
            threads = 1
        self.name = "embedded"
        self._model = model
        self._max_new_tokens = max_new_tokens
        self._seed = seed
        self._count = 0
        # One a policy: each may have written the same text with other tokens.
        self._codecs = {
            policy: ReplyCodec(model, name=policy or model.name, context=model.context_length)
            for policy in ("", *policies)
        }
        self._grammars = Grammars(model)
        self._adapters = LoraAdapters(model.module) if policies else None
        self._decoder = Decoder(model, self._adapters, keep_bytes=keep_bytes)
        self._worker = DecodeWorker(self._decoder, max_batch=max_batch, threads=threads)
        self._worker.versions.update(dict.fromkeys(policies, 0))

    @property
    def models(self) -> Sequence[str]:
        """The model's name, and those of the policies on it."""
        return (self._model.name, *(name for name in self._codecs if name))

    @property
    def weights_version(self) -> int:
        """The version of the model's weights in use: 0 as loaded, then what `publish` returned."""
        return self._worker.versions[""]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the prefix cache, as of now."""
        return self._decoder.kept_bytes

    def policy(self, name: str) -> ServedPolicy:
        """One of the ``policies``, to publish its weights. Raises `ModelError` for another name."""
        if not name or name not in self._codecs:
            names = ", ".join(name for name in self._codecs if name)
            raise ModelError(f"no policy is named {name!r}", hint=f"there are: {names}" if names else "pass policies=")
        assert self._adapters is not None, "there are policies"
        return ServedPolicy(name, self._worker, self._adapters)

    async def start(self) -> None:
        """Starts decoding. Raises `EndpointError` when the engine was closed."""
        self._worker.start()

    async def close(self) -> None:
        """Fails the calls that run and wait with an `EndpointError` (503) and ends the thread."""
        await asyncio.to_thread(self._worker.close)

    async def chat(self, request: ChatRequest) -> Completion:
        """The whole reply, of one choice or several.

        Raises `EndpointError`: 400 for a prompt longer than the model's context, a conversation that is not text or a
        field that cannot be honoured, 500 when the model failed, 503 when the engine is closed. Cancelling the call takes
        it out of its batch.
        """
        from lgov_core.gateway.engine.decode_worker import Job

        check_fields(request, "the embedded engine", grammars=True)
        policy = self._policy_of(request)
        codec = self._codecs[policy]
        prompt = codec.prompt(request)
        rows = self._rows(request, policy, prompt, codec.reply_limit(request, prompt, self._max_new_tokens))
        constraints = await self._constrain(request, rows)
        loop = asyncio.get_running_loop()
        jobs = [Job(row, loop.create_future()) for row in rows]
        for job in jobs:
            self._worker.submit(job)
        try:
            versions = await asyncio.gather(*(job.future for job in jobs))
        except BaseException:
            for job in jobs:
                job.row.abandoned = True
                job.future.cancel()
            raise
        if fault := next((constraint.fault for constraint in constraints if constraint.fault), ""):
            raise EndpointError(f"the reply could not be held to its form: {fault}", status=500)
        written = zip(rows, versions, strict=True)
        choices = [
            Generated(tuple(row.response_ids), tuple(row.logprobs), version, tuple(row.forced))
            for row, version in written
        ]
        return codec.completion(request, prompt, choices)

    async def count_tokens(self, request: ChatRequest) -> int:
        """How many tokens the prompt has. Raises `EndpointError` (400) for a conversation that is not text."""
        check_fields(request, "the embedded engine", grammars=True)
        return self._codecs[self._policy_of(request)].count(request)

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPiece]:
        """The reply in pieces, which come once it is whole: only then is it known what in it is a tool call."""
        for piece in completion_pieces(await self.chat(request), request.body):
            yield piece

    def publish(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        """Copies new weights into the model between two batches; returns the version now served.

        ``weights`` maps names of the module's state, not necessarily all, to tensors of the same shape, any dtype and
        device. ``version`` must rise (default: by one). Running calls are finished with the old weights. Blocks until
        done; works while paused. Raises `ModelError`, with nothing changed, for an unknown name, another shape, a value
        that is not finite, a version that does not rise, or an engine with policies; `EndpointError` when it is closed.
        """
        if self._adapters is not None:
            raise ModelError(
                f"the weights of model {self._model.name!r} have policies on them and cannot change",
                hint="publish to one of them: engine.policy(name).publish(...)",
            )
        return self._worker.swap("", version, lambda: self._load(weights))

    def pause(self) -> None:
        """Holds all calls: those that run are finished first. Blocks until then; each pause needs its `resume`."""
        self._worker.pause()

    def resume(self) -> None:
        """Ends one pause. Raises `ModelError` when there is none."""
        self._worker.resume()

    def _load(self, weights: Mapping[str, torch.Tensor]) -> None:
        import torch

        own: dict[str, torch.Tensor] = self._model.module.state_dict()
        unknown = sorted(set(weights) - set(own))
        if unknown:
            raise ModelError(
                f"{len(unknown)} published weights are unknown to model {self._model.name!r}, such as {unknown[0]!r}",
                hint=f"its own are named like {next(iter(own))!r}",
            )
        for name, tensor in weights.items():
            if tensor.shape != own[name].shape:
                shapes = f"{tuple(tensor.shape)}, the model's is {tuple(own[name].shape)}"
                raise ModelError(f"published {name!r} is {shapes}")
            if not bool(torch.isfinite(tensor).all()):
                raise ModelError(f"published {name!r} holds values that are not finite", hint="the update diverged")
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)

    def _policy_of(self, request: ChatRequest) -> str:
        return request.model if request.model in self._codecs else ""

    async def _constrain(self, request: ChatRequest, rows: Sequence[Row]) -> list[GrammarConstraint]:
        """Holds the rows to the form that the request asks for, if it asks for one."""
        grammar = reply_grammar(request, self._model)
        if grammar is None:
            return []
        # In a thread: a large schema takes a while to compile.
        constraints = await asyncio.to_thread(self._grammars.constraints, grammar, len(rows))
        for row, constraint in zip(rows, constraints, strict=True):
            row.constraint = constraint
        return constraints

    def _rows(self, request: ChatRequest, policy: str, prompt: Prompt, count: int) -> list[Row]:
        """One row of at most ``count`` tokens for each choice. The first one has the request's own seed."""
        from lgov_core.gateway.engine.generation import Row, draw_uniforms

        if count < 1:
            raise EndpointError(f"max_tokens must be at least 1, not {count}")
        seed = request.seed
        if seed is None:
            self._count += 1
            seed = _mixed(self._seed, self._count)
        return [
            Row(
                prompt_ids=prompt.ids,
                max_new_tokens=count,
                temperature=request.temperature if request.temperature >= _COLDEST else 0.0,
                top_p=request.top_p,
                uniforms=draw_uniforms((_mixed(seed, choice) if choice else seed) % 2**63, count),
                stop=request.stop,
                policy=policy,
            )
            for choice in range(request.n)
        ]


def _mixed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest())
