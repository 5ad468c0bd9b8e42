"""Retokenisation drift: the conversation went on, and its tokens are not those that the model had seen and written.

It happens where a reply's text is tokenised anew, or rendered otherwise (a tool call as JSON with other spaces, thinking
left out): what is trained then is not what was sampled, so such turns are never joined, and the difference is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from lgov_core.transitions.findings import Diagnostic, Finding
from lgov_core.transitions.prefixes import OpenEnds
from lgov_core.types import CapturedCall

#: Earlier conversations that a call is compared with, the latest first.
_LOOK_BACK: Final = 16


def find_drift(calls: Iterable[CapturedCall], found: list[Diagnostic]) -> None:
    """Tells of each call of one attempt (in order, with token ids) that goes on from an earlier one in other tokens.

    A call goes on from one of the same agent if its messages begin with that one's messages and reply; where messages are
    not on record, if its prompt begins with the whole of that one's prompt and is longer. A context that was rewritten
    is no drift.
    """
    by_agent: dict[tuple[str | None, str], list[CapturedCall]] = {}
    for call in calls:
        by_agent.setdefault((call.agent, call.model), []).append(call)
    for own in by_agent.values():
        ends = OpenEnds()
        waiting: dict[int, CapturedCall] = {}
        for number, call in enumerate(own):
            prompt, reply = call.prompt_ids or (), call.response_ids or ()
            continued = ends.take(prompt)
            if continued is not None:
                del waiting[continued]
            elif waiting:
                _compare(call, waiting, found)
            ends.add(prompt + reply, number)
            waiting[number] = call


def _compare(call: CapturedCall, waiting: dict[int, CapturedCall], found: list[Diagnostic]) -> None:
    for earlier in islice(reversed(waiting.values()), _LOOK_BACK):
        if _goes_on(call, earlier):
            at = _first_difference(call.prompt_ids or (), (earlier.prompt_ids or ()) + (earlier.response_ids or ()))
            detail = f"it goes on from {earlier.response_id} in other tokens, from position {at} on"
            found.append(Diagnostic(Finding.RETOKENISATION_DRIFT, call.response_id, detail))
            return


def _goes_on(call: CapturedCall, earlier: CapturedCall) -> bool:
    now, before = _conversation(call), _conversation(earlier)
    if now is None or before is None:
        prompt, told = earlier.prompt_ids or (), call.prompt_ids or ()
        return len(told) > len(prompt) and told[: len(prompt)] == prompt
    if len(now) <= len(before) or list(now[: len(before)]) != list(before):
        return False
    following = now[len(before)]
    if not isinstance(following, Mapping) or following.get("role", "assistant") not in ("assistant", "model"):
        return False
    said, kept = _reply_text(earlier), _text(following)
    return not said or not kept or said == kept


def _conversation(call: CapturedCall) -> Sequence[Any] | None:
    for name in ("messages", "input"):
        found = call.request.get(name)
        if isinstance(found, Sequence) and not isinstance(found, str) and found:
            return found
    return None


def _reply_text(call: CapturedCall) -> str:
    response = call.response
    choices = response.get("choices")
    if isinstance(choices, Sequence) and choices:
        chosen = choices[call.choice] if call.choice < len(choices) else choices[0]
        return _text(chosen.get("message")) if isinstance(chosen, Mapping) else ""
    for name in ("messages", "output"):
        told = response.get(name)
        if isinstance(told, Sequence) and not isinstance(told, str) and told:
            return _text(told[0])
    return _text(response)


def _text(message: object) -> str:
    """The text of a message, in whatever API's form; empty where there is none."""
    if isinstance(message, str):
        return message.strip()
    if not isinstance(message, Mapping):
        return ""
    parts: Any = message.get("content") or message.get("parts") or message.get("text") or ""
    if isinstance(parts, str):
        return parts.strip()
    if not isinstance(parts, Sequence):
        return ""
    texts = [part.get("text") or part.get("content") or "" for part in parts if isinstance(part, Mapping)]
    return "".join(text for text in texts if isinstance(text, str)).strip()


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (mine, yours) in enumerate(zip(one, other, strict=False)) if mine != yours), len(one))
