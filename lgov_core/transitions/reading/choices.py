"""Several choices of one reply: alternatives of each other, of which the attempt went on with one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from lgov_core._util.prefixes import PrefixIndex
from lgov_core.transitions.reading.conversations import gone_on_from
from lgov_core.types import CapturedCall

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
    known = _by_tokens(calls) | _by_tool_calls(several, used)
    if unknown := several.keys() - {response_id for response_id, _ in known}:
        # Only what follows can tell, which of an attempt's last reply is nothing: reading messages is dear.
        first = next(at for at, call in enumerate(calls) if call.response_id in unknown)
        known |= gone_on_from(calls[first:])
    aside: set[ChoiceKey] = set()
    untold: list[str] = []
    for response_id, choices in several.items():
        taken = {choice for choice in choices if (response_id, choice) in known}
        if not taken:
            untold.append(response_id)
            whole = [choice for choice, call in choices.items() if call.finish_reason != "cancelled"]
            taken = {min(whole or choices)}
        aside |= {(response_id, choice) for choice in choices if choice not in taken}
    return frozenset(aside), untold


def _by_tokens(calls: Sequence[CapturedCall]) -> set[ChoiceKey]:
    ends: PrefixIndex[tuple[int, ...]] = PrefixIndex()
    known: set[ChoiceKey] = set()
    before = ""  # choices of one reply follow each other
    replies: set[tuple[int, ...]] = set()
    for number, call in enumerate(calls):
        if not call.prompt_ids:
            continue
        if call.response_id != before:
            before, replies = call.response_id, set()
            if (place := ends.take_longest(call.prompt_ids)) is not None:
                known.add((calls[place].response_id, calls[place].choice))
        if call.response_ids and call.response_ids not in replies:
            replies.add(call.response_ids)
            ends.add(call.prompt_ids + call.response_ids, number)
    return known


def _by_tool_calls(several: Mapping[str, Mapping[int, CapturedCall]], used: Collection[str]) -> set[ChoiceKey]:
    known: set[ChoiceKey] = set()
    for response_id, choices in several.items():
        proposed = Counter(name for call in choices.values() for name in {*call.tool_call_ids})
        known |= {
            (response_id, choice)
            for choice, call in choices.items()
            if any(name in used and proposed[name] == 1 for name in call.tool_call_ids)
        }
    return known
