"""What the trainer was given of a rollout: from a run's recorded batches, or worked out again where there are none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lgov_core._util.bounded import BoundedDict
from lgov_core.errors import LgovError
from lgov_core.store import TraceStore
from lgov_core.train.loop.batch_record import data_file
from lgov_core.transitions import Diagnostic, Transition, assign_credit, build_transitions, read_parquet

#: Updates after the weights of a rollout in which it is looked for, and step files whose rollouts are remembered.
_LATER: Final = 12
_REMEMBERED: Final = 256
#: Rollouts of a group for which credit is worked out again.
_MOST: Final = 64


@dataclass(frozen=True, slots=True)
class Trained:
    """The transitions of one attempt by call, where they come from, and what is wrong with the data."""

    source: Literal["trainer", "recomputed"] | None
    of_call: Mapping[tuple[str, int], Transition]
    step: int | None = None
    diagnostics: Sequence[Diagnostic] = ()


class TrainedBatches:
    """The batches in the folder of a run. Callable from any thread. ``folder`` None, or without pyarrow: there are none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._rollouts: BoundedDict[Path, frozenset[str]] = BoundedDict(_REMEMBERED)

    def of_attempt(self, store: TraceStore, rollout_id: str, attempt: int, group: Sequence[str]) -> Trained:
        """What was trained on, or else what the default rules make of ``group``, the rollouts of its task.

        Raises `StoreError` when the store cannot be read.
        """
        own = build_transitions(store, [rollout_id], need_logprobs=False)
        versions = [one.weights_version for one in own.transitions if one.weights_version is not None]
        for step in _steps(versions):
            found = {
                (one.response_id, one.choice): one
                for one in self._read(step, rollout_id)
                if one.attempt == attempt and one.advantages is not None
            }
            if found:
                return Trained("trainer", found, step, own.diagnostics)
        if not 1 < len(group) <= _MOST:
            return Trained(None, {}, None, own.diagnostics)
        try:
            credited = assign_credit(build_transitions(store, group, need_logprobs=False))
        except LgovError:
            return Trained(None, {}, None, own.diagnostics)
        mine = [one for one in credited.transitions if (one.rollout_id, one.attempt) == (rollout_id, attempt)]
        made = {(one.response_id, one.choice): one for one in mine}
        return Trained("recomputed" if made else None, made, None, own.diagnostics)

    def _read(self, step: int, rollout_id: str) -> Iterable[Transition]:
        """The transitions of a rollout in the batch of an update; none where the file is missing or not whole."""
        if self._folder is None or not (path := data_file(self._folder, step)).is_file():
            return ()
        try:
            if (known := self._rollouts.get(path)) is None:
                import pyarrow.parquet as parquet

                known = frozenset(parquet.read_table(path, columns=["rollout_id"]).column(0).to_pylist())
                self._rollouts.put(path, known)
            return read_parquet(path, rollout_id) if rollout_id in known else ()
        except (ImportError, OSError, ValueError, LgovError):  # without the extra, or while the file is written
            return ()


def _steps(versions: Sequence[int]) -> range:
    """The updates that can have trained on calls of these weights: version 0 is first trained on by update 1."""
    return range(min(versions) + 1, max(versions) + 1 + _LATER) if versions else range(0)
