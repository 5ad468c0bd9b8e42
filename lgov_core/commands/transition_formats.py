"""The formats of ``lgov transitions --format``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from lgov_core.transitions import Records, TransitionSet
    from lgov_core.transitions.reading.conversations import RecordedConversations

#: Records, and how much was left out for which reason.
Formatted: TypeAlias = tuple[list[dict[str, Any]], Mapping[str, int]]


def verl(records: Records, data: TransitionSet) -> Formatted:
    """A row for each call, as verl's TransferQueue takes them."""
    from lgov_core.transitions.export.trainer_rows import verl_rows

    return [{"key": row.key, **row.fields, "tag": dict(row.tag)} for row in verl_rows(data)], {}


def trl(records: Records, data: TransitionSet) -> Formatted:
    """A row for each rollout, as TRL's ``rollout_func`` returns them (there in columns)."""
    from lgov_core.transitions.export.trainer_rows import trl_rollouts

    found = trl_rollouts(data)
    names = list(found.columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*found.columns.values(), strict=True)]
    return rows, found.left_out


def sft(records: Records, data: TransitionSet) -> Formatted:
    """Conversations of attempts that succeeded without a denied action."""
    from lgov_core.transitions.export.messages import denied_attempts, sft_records

    found = sft_records(data, records.calls, denied=denied_attempts(records.spans), read=_conversations(records))
    return found.records, found.left_out


def preferences(records: Records, data: TransitionSet) -> Formatted:
    """Pairs of replies to one prompt."""
    from lgov_core.transitions.export.messages import preference_pairs

    found = preference_pairs(data, records.calls, read=_conversations(records))
    return found.records, found.left_out


def prompts(records: Records, data: TransitionSet) -> Formatted:
    """Attempts as text, for prompt tuning."""
    from lgov_core.transitions.export.messages import denied_attempts, prompt_records

    denied, read = denied_attempts(records.spans), _conversations(records)
    found = prompt_records(data, records.calls, records.rollouts, records.attempts, denied=denied, read=read)
    return found.records, found.left_out


def _conversations(records: Records) -> RecordedConversations:
    from lgov_core.transitions.reading.conversations import RecordedConversations

    return RecordedConversations(records.calls)


FORMATS: Final[Mapping[str, Callable[[Records, TransitionSet], Formatted]]] = {
    write.__name__: write for write in (verl, trl, sft, preferences, prompts)
}


def write_parquet_for(name: str, data: TransitionSet, out: Path) -> None:
    """Writes the formats that have columns of their own to a Parquet file."""
    if name == "verl":
        from lgov_core.transitions.export.trainer_rows import write_verl_parquet

        write_verl_parquet(data, out)
    else:
        from lgov_core.transitions.export.files import write_parquet

        write_parquet(data.transitions, out)
