"""The calls of each attempt, their choices, and which of them are selected.

There is one of each call, in an order that does not depend on how they arrived. Choices of one reply are alternatives of each
other, of which the attempt went on with one. A selection takes the calls of some agents or models, or those whose spans say
something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, Final, TypeAlias

from lgov_core._util.containers import PrefixIndex
from lgov_core.transitions.reading.conversations import gone_on_from
from lgov_core.transitions.reading.records import Records
from lgov_core.transitions.transition_set import Diagnostic, Finding
from lgov_core.types import CapturedCall, JSONValue

#: The order of the calls of an attempt.
_ORDER: Final = attrgetter("started_at", "response_id", "choice")


def calls_by_attempt(records: Records, diagnostics: list[Diagnostic]) -> dict[tuple[str, int], list[CapturedCall]]:
    """The different calls of each attempt, in their order: by when they began, then response id, then choice.

    One call recorded twice is one. Different calls of one id all stay, and are a finding.
    """
    rollout_ids = {rollout.rollout_id for rollout in records.rollouts}
    calls_of: dict[tuple[str, int], list[CapturedCall]] = {}
    for call in records.calls:
        rollout_id = call.rollout_id
        if rollout_id is None or rollout_id not in rollout_ids:
            detail = (
                "the call belongs to no rollout" if rollout_id is None else f"rollout {rollout_id} is not on record"
            )
            diagnostics.append(Diagnostic(Finding.NO_ROLLOUT_ID, call.response_id, detail))
            continue
        calls_of.setdefault((rollout_id, call.attempt or 1), []).append(call)
    for calls in calls_of.values():
        calls.sort(key=_ORDER)
        _drop_repeated(calls, diagnostics)
    _tell_shared(calls_of, diagnostics)
    return calls_of


def _tell_shared(calls_of: Mapping[tuple[str, int], Sequence[CapturedCall]], diagnostics: list[Diagnostic]) -> None:
    """Tells the response ids that calls of several attempts have."""
    owners_of: dict[str, set[tuple[str, int]]] = {}
    for key, calls in calls_of.items():
        for call in calls:
            owners_of.setdefault(call.response_id, set()).add(key)
    for response_id, owners in owners_of.items():
        if len(owners) > 1:
            where = ", ".join(f"{rollout_id} (attempt {attempt})" for rollout_id, attempt in sorted(owners))
            diagnostics.append(Diagnostic(Finding.DUPLICATE_CALL, response_id, f"in {where}"))


def _drop_repeated(calls: list[CapturedCall], diagnostics: list[Diagnostic]) -> None:
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
            diagnostics.append(Diagnostic(Finding.DUPLICATE_CALL, response_id, f"{len(different)} different calls"))
        kept += [different[key] for key in sorted(different, key=repr)]
    calls[:] = sorted(kept, key=_ORDER)


#: A response id and a choice of it.
ChoiceKey: TypeAlias = tuple[str, int]


def set_aside(calls: Sequence[CapturedCall], used: Collection[str]) -> tuple[frozenset[ChoiceKey], list[str]]:
    """Which choices of the ``calls`` of one attempt (in order) it did not go on with; and the replies where this is unknown.

    It went on with a choice if the prompt of a later call begins with that choice's prompt and reply, in tokens or in
    messages, or if a tool call that only this choice proposed was ``used`` (it ran, or a reward names it). Where it went on
    with several, none of those is set aside. Where nothing tells, the first that was not cancelled is taken to be the one,
    and the reply's id is among the second value. Of choices that say the same the first counts.
    """
    several: dict[str, dict[int, CapturedCall]] = {}
    for call in calls:
        several.setdefault(call.response_id, {}).setdefault(call.choice, call)
    several = {response_id: choices for response_id, choices in several.items() if len(choices) > 1}
    if not several:
        return frozenset(), []
    continued = _by_tokens(calls) | _by_tool_calls(several, used)
    if unknown := several.keys() - {response_id for response_id, _ in continued}:
        # Only what follows can tell, which of an attempt's last reply is nothing: reading messages is dear.
        first = next(at for at, call in enumerate(calls) if call.response_id in unknown)
        continued |= gone_on_from(calls[first:])
    aside: set[ChoiceKey] = set()
    untold: list[str] = []
    for response_id, choices in several.items():
        taken = {choice for choice in choices if (response_id, choice) in continued}
        if not taken:
            untold.append(response_id)
            whole = [choice for choice, call in choices.items() if call.finish_reason != "cancelled"]
            taken = {min(whole or choices)}
        aside |= {(response_id, choice) for choice in choices if choice not in taken}
    return frozenset(aside), untold


def _by_tokens(calls: Sequence[CapturedCall]) -> set[ChoiceKey]:
    ends: PrefixIndex[tuple[int, ...]] = PrefixIndex()
    continued: set[ChoiceKey] = set()
    before = ""  # choices of one reply follow each other
    replies: set[tuple[int, ...]] = set()
    for number, call in enumerate(calls):
        if not call.prompt_ids:
            continue
        if call.response_id != before:
            before, replies = call.response_id, set()
            if (index := ends.take_longest(call.prompt_ids)) is not None:
                continued.add((calls[index].response_id, calls[index].choice))
        if call.response_ids and call.response_ids not in replies:
            replies.add(call.response_ids)
            ends.add(call.prompt_ids + call.response_ids, number)
    return continued


def _by_tool_calls(several: Mapping[str, Mapping[int, CapturedCall]], used: Collection[str]) -> set[ChoiceKey]:
    continued: set[ChoiceKey] = set()
    for response_id, choices in several.items():
        proposed = Counter(name for call in choices.values() for name in {*call.tool_call_ids})
        continued |= {
            (response_id, choice)
            for choice, call in choices.items()
            if any(name in used and proposed[name] == 1 for name in call.tool_call_ids)
        }
    return continued


@dataclass(frozen=True, slots=True)
class Selection:
    """Names or globs (``*``, ``?``, ``[...]``) that have to match as a whole and in case: ``write`` never takes ``rewrite``.

    ``agents`` and ``models``: one of them must match, unless there are none. ``attributes``: for each name, the value on
    the call's span, or on the nearest span above it that has one, must match (lists: any of their values; true and
    false in lower case). All three must hold. Nothing given selects every call of the rollouts to train on; ``held_out`` adds
    those of rollouts that measure the model (`Rollout.held_out`). A call is selected or not by itself: that
    an agent inside another is not selected changes nothing for the other's calls. Immutable.
    """

    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    held_out: bool = False

    @property
    def everything(self) -> bool:
        """True where it takes every call of a rollout."""
        return not (self.agents or self.models or self.attributes)


class Selecting:
    """A selection at work on ``records``, remembering what it has found. Not safe for use from several threads."""

    def __init__(self, selection: Selection, records: Records) -> None:
        self._selection = selection
        self._records = records
        self._agents: set[str] = set()
        self._models: set[str] = set()
        self._nameless: list[str] = []

    @property
    def held_out(self) -> bool:
        """True where rollouts that measure the model are selected."""
        return self._selection.held_out

    def takes(self, call: CapturedCall) -> bool:
        """Returns whether ``call`` is selected."""
        selection = self._selection
        if selection.agents:
            if call.agent is None:
                self._nameless.append(call.response_id)
                return False
            self._agents.add(call.agent)
            if not matches(call.agent, selection.agents):
                return False
        if selection.models:
            self._models.add(call.model)
            if not matches(call.model, selection.models):
                return False
        return not selection.attributes or self._attributes_match(call)

    def missed(self) -> list[Diagnostic]:
        """Diagnostics of what was selected and never came up, and of the calls without an agent's name."""
        diagnostics = [Diagnostic(Finding.AGENT_NOT_KNOWN, response_id) for response_id in self._nameless]
        for patterns, names, finding in (
            (self._selection.agents, self._agents, Finding.UNKNOWN_AGENT),
            (self._selection.models, self._models, Finding.UNKNOWN_MODEL),
        ):
            for pattern in patterns:
                if not any(matches(name, (pattern,)) for name in names):
                    on_record = ", ".join(sorted(names)[:10]) or "none"
                    diagnostics.append(Diagnostic(finding, pattern, f"those on record: {on_record}"))
        return diagnostics

    def _attributes_match(self, call: CapturedCall) -> bool:
        origins, tree = self._records.origins.get(call.response_id, ()), self._records.tree
        spans = [span for span in origins if tree.place(span).rollout_id in (None, call.rollout_id)]
        return all(
            any(matches(text, (pattern,)) for span in spans for text in _texts(tree.nearest(span, name)))
            for name, pattern in self._selection.attributes.items()
        )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether ``name`` is one of ``patterns`` or matches one of them as a whole."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _texts(value: JSONValue) -> Sequence[str]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, bool):
        return ("true" if value else "false",)
    if isinstance(value, Sequence):
        items: Sequence[Any] = value
        return [text for item in items for text in _texts(item)]
    return (str(value),)
