"""What ``lgov transitions --format`` writes: the same data for one trainer or another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from lgov_core.transitions import Records, TransitionSet
    from lgov_core.transitions.export.messages import Exported

#: Records, and how much was left out for which reason.
Formatted: TypeAlias = tuple[list[dict[str, Any]], Mapping[str, int]]


def verl(records: Records, data: TransitionSet) -> Formatted:
    """A row for each call, as verl's TransferQueue takes them."""
    from lgov_core.transitions.export.verl import verl_rows

    return [{"key": row.key, **row.fields, "tag": dict(row.tag)} for row in verl_rows(data)], {}


def trl(records: Records, data: TransitionSet) -> Formatted:
    """A row for each rollout, as TRL's ``rollout_func`` returns them (there in columns)."""
    from lgov_core.transitions.export.trl import trl_rollouts

    found = trl_rollouts(data)
    names = list(found.columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*found.columns.values(), strict=True)]
    return rows, found.left_out


def sft(records: Records, data: TransitionSet) -> Formatted:
    """Conversations of attempts that succeeded without a denied act."""
    from lgov_core.gateway.formats.conversations import RecordedConversations
    from lgov_core.transitions.export.messages import denied_attempts, sft_records

    denied, read = denied_attempts(records.spans), RecordedConversations(records.calls)
    return _formatted(sft_records(data, records.calls, denied=denied, read=read))


def preferences(records: Records, data: TransitionSet) -> Formatted:
    """Pairs of replies to one prompt."""
    from lgov_core.gateway.formats.conversations import RecordedConversations
    from lgov_core.transitions.export.messages import preference_pairs

    return _formatted(preference_pairs(data, records.calls, read=RecordedConversations(records.calls)))


def prompts(records: Records, data: TransitionSet) -> Formatted:
    """Attempts in words, for tuning prompts."""
    from lgov_core.gateway.formats.conversations import RecordedConversations
    from lgov_core.transitions.export.messages import denied_attempts, prompt_records

    denied, read = denied_attempts(records.spans), RecordedConversations(records.calls)
    return _formatted(prompt_records(data, records.calls, records.rollouts, records.attempts, denied=denied, read=read))


FORMATS: Final[Mapping[str, Callable[[Records, TransitionSet], Formatted]]] = {
    "verl": verl,
    "trl": trl,
    "sft": sft,
    "preferences": preferences,
    "prompts": prompts,
}


def write_parquet_for(name: str, data: TransitionSet, out: Path) -> None:
    """Writes the formats that have columns of their own to a Parquet file."""
    if name == "verl":
        from lgov_core.transitions.export.verl import write_verl_parquet

        write_verl_parquet(data, out)
    else:
        from lgov_core.transitions.export.export import write_parquet

        write_parquet(data.transitions, out)


def _formatted(found: Exported) -> Formatted:
    return found.records, found.left_out
