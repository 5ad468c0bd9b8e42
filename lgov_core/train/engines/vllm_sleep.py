"""Updates while vLLM sleeps, for a GPU that has no room for both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

import torch

from lgov_core.errors import UpstreamError
from lgov_core.train.engines.vllm_server import Vllm, ask
from lgov_core.train.layout.rows import TrainRow
from lgov_core.train.loop.training_run import Learner, Progress
from lgov_core.transitions import CreditRules, TransitionSet

#: How often a server that is lost again and again is asked, and seconds between two tries.
_TRIES: Final = 5
_PAUSE_S: Final = 0.5


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
    for _ in range(_TRIES):
        server.wait()
        try:
            status, text = ask(server, what, {})
        except OSError as error:  # it is lost, and is started again
            failure = str(error)
            time.sleep(_PAUSE_S)
            continue
        if status == 200:
            return
        failure = f"{status}: {text[:300]}"
    raise UpstreamError(f"vLLM refuses {what}: {failure}")
