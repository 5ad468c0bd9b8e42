"""Retokenisation drift: the conversation went on, and its tokens are not those that the model had seen and written.

It happens where a reply's text is tokenised anew, or rendered otherwise (a tool call as JSON with other spaces, thinking
left out): what is trained then is not what was sampled, so such turns are never joined, and the difference is a diagnostic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from lgov_core._util.prefixes import PrefixIndex, common_prefix
from lgov_core.transitions.findings import Diagnostic, Finding
from lgov_core.types import CapturedCall

#: Earlier conversations that a call is compared with, the latest first.
_LOOK_BACK: Final = 16


def find_drift(calls: Iterable[CapturedCall], found: list[Diagnostic]) -> None:
    """Tells of each call of one attempt (in order, with token ids) that goes on from an earlier one in other tokens.

    A call goes on from one of the same agent if its messages begin with that one's messages and reply; where messages are
    not on record, if its prompt begins with the whole of that one's prompt and is longer. A context that was rewritten
    is not drift.
    """
    by_agent: dict[tuple[str | None, str], list[CapturedCall]] = {}
    for call in calls:
        by_agent.setdefault((call.agent, call.model), []).append(call)
    for own in by_agent.values():
        _find_in(own, found)


def _find_in(own: Iterable[CapturedCall], found: list[Diagnostic]) -> None:
    ends: PrefixIndex[tuple[int, ...]] = PrefixIndex()
    waiting: dict[int, CapturedCall] = {}  # those that nothing has gone on from
    for number, call in enumerate(own):
        prompt = call.prompt_ids or ()
        continued = ends.take_longest(prompt)
        if continued is not None:
            del waiting[continued]
        elif waiting:
            _compare(call, prompt, waiting, found)
        ends.add(prompt + (call.response_ids or ()), number)
        waiting[number] = call


def _compare(
    call: CapturedCall, prompt: tuple[int, ...], waiting: dict[int, CapturedCall], found: list[Diagnostic]
) -> None:
    said = _conversation(call.request)
    for earlier in islice(reversed(waiting.values()), _LOOK_BACK):
        its_prompt, its_said = earlier.prompt_ids or (), _conversation(earlier.request)
        if said is not None and its_said is not None:
            goes_on = _goes_on(said, its_said, earlier)
        else:
            goes_on = len(prompt) > len(its_prompt) and prompt[: len(its_prompt)] == its_prompt
        if goes_on:
            at = common_prefix(prompt, its_prompt + (earlier.response_ids or ()))
            detail = f"it goes on from {earlier.response_id} in other tokens, from position {at} on"
            found.append(Diagnostic(Finding.RETOKENISATION_DRIFT, call.response_id, detail))
            return


def _goes_on(now: Sequence[Any], before: Sequence[Any], earlier: CapturedCall) -> bool:
    """Whether the messages ``now`` are those ``before`` and the reply of ``earlier``, and perhaps more."""
    if len(now) <= len(before) or list(now[: len(before)]) != list(before):
        return False
    following = now[len(before)]
    if not isinstance(following, Mapping) or following.get("role", "assistant") not in ("assistant", "model"):
        return False
    said, kept = _reply_text(earlier), _text(following)
    return not said or not kept or said == kept


def _conversation(request: Mapping[str, Any]) -> Sequence[Any] | None:
    for name in ("messages", "input"):
        found = request.get(name)
        if isinstance(found, list | tuple) and found:
            return found
    return None


def _reply_text(call: CapturedCall) -> str:
    response = call.response
    choices = response.get("choices")
    if isinstance(choices, Sequence) and choices:
        chosen = choices[call.choice] if call.choice < len(choices) else choices[0]
        return _text(chosen.get("message")) if isinstance(chosen, Mapping) else ""
    for name in ("messages", "output"):
        shown = response.get(name)
        if isinstance(shown, Sequence) and not isinstance(shown, str) and shown:
            return _text(shown[0])
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
