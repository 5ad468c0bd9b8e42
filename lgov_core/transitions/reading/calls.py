"""The calls of each attempt: one of each, in an order that does not depend on how they arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

from lgov_core.transitions.findings import Diagnostic, Finding
from lgov_core.transitions.reading.records import Records
from lgov_core.types import CapturedCall

#: The order of the calls of an attempt.
_ORDER: Final = attrgetter("started_at", "response_id", "choice")


def calls_by_attempt(records: Records, found: list[Diagnostic]) -> dict[tuple[str, int], list[CapturedCall]]:
    """The different calls of each attempt, in their order: by when they began, then response id, then choice.

    One call recorded twice is one. Different calls of one id all stay, and are a finding.
    """
    known = {rollout.rollout_id for rollout in records.rollouts}
    calls_of: dict[tuple[str, int], list[CapturedCall]] = {}
    for call in records.calls:
        rollout_id = call.rollout_id
        if rollout_id is None or rollout_id not in known:
            detail = (
                "the call belongs to no rollout" if rollout_id is None else f"rollout {rollout_id} is not on record"
            )
            found.append(Diagnostic(Finding.NO_ROLLOUT_ID, call.response_id, detail))
            continue
        calls_of.setdefault((rollout_id, call.attempt or 1), []).append(call)
    for calls in calls_of.values():
        calls.sort(key=_ORDER)
        _drop_repeated(calls, found)
    _tell_shared(calls_of, found)
    return calls_of


def _tell_shared(calls_of: Mapping[tuple[str, int], Sequence[CapturedCall]], found: list[Diagnostic]) -> None:
    """Tells the response ids that calls of several attempts have."""
    owners_of: dict[str, set[tuple[str, int]]] = {}
    for key, calls in calls_of.items():
        for call in calls:
            owners_of.setdefault(call.response_id, set()).add(key)
    for response_id, owners in owners_of.items():
        if len(owners) > 1:
            where = ", ".join(f"{rollout_id} (attempt {attempt})" for rollout_id, attempt in sorted(owners))
            found.append(Diagnostic(Finding.DUPLICATE_CALL, response_id, f"in {where}"))


def _drop_repeated(calls: list[CapturedCall], found: list[Diagnostic]) -> None:
    """Leaves one of calls that are the same twice. Different ones of one id stay, in an order of their contents."""
    if len({(call.response_id, call.choice) for call in calls}) == len(calls):
        return
    seen: dict[tuple[str, int], list[CapturedCall]] = {}
    for call in calls:
        seen.setdefault((call.response_id, call.choice), []).append(call)
    kept: list[CapturedCall] = []
    for (response_id, _), same in seen.items():
        different: dict[tuple[object, ...], CapturedCall] = {}
        for call in same:
            different.setdefault((call.prompt_ids, call.response_ids, call.logprobs), call)
        if len(different) > 1:
            found.append(Diagnostic(Finding.DUPLICATE_CALL, response_id, f"{len(different)} different calls"))
        kept += [different[key] for key in sorted(different, key=repr)]
    calls[:] = sorted(kept, key=_ORDER)
