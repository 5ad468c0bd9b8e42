"""Updates while vLLM sleeps, for a GPU that has no room for both."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch

from lgov_core.errors import UpstreamError
from lgov_core.train.engines.vllm_calls import Vllm, ask, attempts
from lgov_core.train.layout.rows import TrainRow
from lgov_core.train.loop.training_run import Learner, Progress
from lgov_core.transitions import CreditRules, TransitionSet


class UpdateWhileAsleep:
    """A `Learner` whose updates have the GPU's memory: vLLM moves its weights to the processor's and drops its cache.

    Running calls are waited for; new ones wait until the update is made.
    """

    def __init__(self, learner: Learner, server: Vllm) -> None:
        self._learner = learner
        self._server = server

    def credit(self, data: TransitionSet, rules: CreditRules) -> TransitionSet:
        """See `Learner`."""
        return self._learner.credit(data, rules)

    def update(self, rows: Sequence[TrainRow], progress: Progress | None = None, *, version: int | None = None) -> Any:
        """See `Learner`. Raises `UpstreamError` when vLLM does not fall asleep, or does not wake up."""
        with asleep(self._server):
            return self._learner.update(rows, progress, version=version)

    def state_dict(self) -> Mapping[str, Any]:
        """See `Learner`."""
        return self._learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self._learner.load_state_dict(state)


@contextlib.contextmanager
def asleep(server: Vllm) -> Generator[None]:
    """Within it vLLM sleeps and no call is made. Raises `UpstreamError`."""
    with server.gate.closed():
        _do(server, "/sleep?level=1")
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            _do(server, "/wake_up")


def _do(server: Vllm, what: str) -> None:
    failure = ""
    for _ in attempts(server):
        try:
            status, text = ask(server, what, {})
        except OSError as error:  # it is lost, and is started again
            failure = str(error)
            continue
        if status == 200:
            return
        failure = f"{status}: {text[:300]}"
    raise UpstreamError(f"vLLM refuses {what}: {failure}")
