"""Recomputes recorded log-probabilities with the weights that were served.

Nothing of the engine's decoding takes part: each call is a row of one full-sequence float32 forward pass without a cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from lgov_core.demo.prepare import POLICIES
from lgov_core.demo.verification import Verification, VersionCount
from lgov_core.errors import TrainError
from lgov_core.models import LanguageModel, load_model
from lgov_core.train.layout.logprobs import row_logprobs
from lgov_core.train.layout.rows import TrainRow, batches_by_length
from lgov_core.train.loop.checkpoint import load_weights
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.types import CapturedCall

#: Calls that wait for their forward pass: enough to find others of the same length, few enough for the memory.
_WAITING = 1024
_TOKENS_PER_PASS = 2048


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder that ``lgov demo`` left: ``model`` names its plan, ``warm`` holds the weights of version 0."""

    path: Path
    model: str
    warm: Path


class ServedWeights:
    """The module as it served each version. Changes the module it is given, which must hold version 0."""

    def __init__(self, run: RunFolder, module: Any) -> None:
        self._run = run
        self._module = module
        self._version = 0
        self._policy: PolicyModel | None = None

    def at(self, version: int) -> Any | None:
        """The module with the weights of ``version``; None when they are not kept. Raises `TrainError` for wrong ones."""
        if version == self._version:
            return self._module
        if version == 0:
            served: Any = load_model(str(self._run.warm), dtype="float32").module.state_dict()
        else:
            trained = load_weights(self._run.path / "weights", version)
            if trained is None:
                return None
            if self._policy is None:  # made while the module still holds the warm start
                self._policy = POLICIES[self._run.model](self._module)
            try:
                self._policy.load(trained)
            except RuntimeError as error:
                raise TrainError(f"the weights of version {version} are not of this model: {error}") from error
            served = self._policy.served()
        unknown = self._module.load_state_dict(dict(served), strict=False).unexpected_keys
        if unknown:
            raise TrainError(f"version {version} has weights that the served model has not, such as {unknown[0]!r}")
        self._version = version
        return self._module


class Recomputation:
    """Calls that wait for their forward pass, done together by version and length."""

    def __init__(self, run: RunFolder, model: LanguageModel, result: Verification) -> None:
        self._weights = ServedWeights(run, model.module)
        self._vocabulary = int(model.module.config.vocab_size)
        self._result = result
        self._waiting: dict[int, list[tuple[TrainRow, CapturedCall]]] = {}
        self._count = 0
        self._done = 0

    @property
    def full(self) -> bool:
        """Whether enough calls wait."""
        return self._count >= _WAITING

    def add(self, call: CapturedCall) -> None:
        """Lets a call wait; counts one that cannot be computed."""
        version = call.weights_version
        count = self._result.by_version.setdefault(version, VersionCount(version))
        count.calls += 1
        row = self._row(call)
        if row is None:
            count.mismatched += 1
            self._result.add(call, "it has no log-probabilities that could be compared")
            self._done += 1
        elif version is None:
            count.unchecked += 1
            self._done += 1
        else:
            self._waiting.setdefault(version, []).append((row, call))
            self._count += 1

    def run(self) -> Iterator[int]:
        """Computes what waits; yields now and then how many calls are done."""
        for version in sorted(self._waiting):
            pairs = sorted(self._waiting[version], key=lambda pair: len(pair[0].ids))
            module = self._weights.at(version)
            if module is None:
                self._result.by_version[version].unchecked += len(pairs)
                self._done += len(pairs)
            else:
                calls = (call for _, call in pairs)
                for batch in batches_by_length([row for row, _ in pairs], _TOKENS_PER_PASS):
                    self._compare(module, batch, list(islice(calls, len(batch))))
                    self._done += len(batch)
                    yield self._done
        self._waiting.clear()
        self._count = 0
        yield self._done

    def _row(self, call: CapturedCall) -> TrainRow | None:
        prompt, reply, logprobs = call.prompt_ids, call.response_ids, call.logprobs
        if not prompt or not reply or logprobs is None or len(logprobs) != len(reply):
            return None
        ids = (*prompt, *reply)
        if min(ids) < 0 or max(ids) >= self._vocabulary or not all(map(math.isfinite, logprobs)):
            return None
        blank, zeros = (0.0,) * len(prompt), (0.0,) * len(ids)
        mask = (0,) * len(prompt) + (1,) * len(reply)
        return TrainRow(ids, mask, (*blank, *logprobs), zeros, zeros, call.temperature)

    def _compare(self, module: Any, rows: Sequence[TrainRow], calls: Sequence[CapturedCall]) -> None:
        with torch.inference_mode():
            computed = row_logprobs(module, rows)
        recorded = [torch.tensor(call.logprobs, dtype=torch.float64) for call in calls]
        for call, own, theirs in zip(calls, recorded, computed.double().split(list(map(len, recorded))), strict=True):
            count = self._result.by_version[call.weights_version]
            count.checked += 1
            diff = float((own - theirs).abs().max())
            if math.isfinite(diff):
                count.max_logprob_diff = max(count.max_logprob_diff, diff)
            if not diff <= self._result.tolerance:
                count.mismatched += 1
                what = f"recorded and recomputed log-probabilities differ by up to {diff:.3g}"
                self._result.add(call, what, diff if math.isfinite(diff) else None)
