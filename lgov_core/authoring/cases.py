"""Cases for a policy: actions with the answer that is expected, one JSON object a line.

A case is ``{"id", "point", "name", "arguments", "agent"?, "text"?, "user_text"?, "context"?, "sequence"?,
"expect"}``; ``expect`` is ``allow`` (which a warn and a transform satisfy too) or ``deny`` (which an escalate satisfies
too). Other keys, such as ``why``, are for the reader, unless they look like a misspelt one of these.

Cases are judged each by itself, except those of one ``sequence``: what policies count and remember lasts from one of them to
the next. Without the key, the ``session_id`` or else the ``rollout_id`` names the sequence.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from lgov_core.errors import PolicyError
from lgov_core.types import Action, Kind, Point

_TEXTS = ("agent", "text", "user_text", "call_id", "session_id", "rollout_id", "framework")
_ACTION_KEYS = ("point", "name", "kind", "arguments", "context", *_TEXTS)
_CASE_KEYS = ("id", *_ACTION_KEYS, "sequence", "expect", "why")
#: Other names for the arguments, refused with a hint: a case without arguments would pass or fail by accident.
_ALSO_ARGUMENTS = frozenset({"args", "kwargs", "params", "parameters", "input"})
_HINT = 'write {"point": "pre_tool_call", "name": "TOOL", "arguments": {...}}'


@dataclass(frozen=True, slots=True)
class Case:
    """One case: what is judged, and whether it should be blocked. ``line`` is its line in the file.

    Cases with the same ``sequence`` follow on each other; None: the case is independent.
    """

    case_id: str
    action: Action
    blocked: bool
    line: int
    sequence: str | None


def read_cases(path: Path) -> list[Case]:
    """The cases in a file. Raises `PolicyError` with the line of the first invalid case, or if there is none."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path} cannot be read: {error}", hint="give a file of JSON lines") from error
    cases = list(_cases(path, lines))
    if not cases:
        raise PolicyError(f"{path} holds no case", hint=_HINT)
    return cases


def _cases(path: Path, lines: list[str]) -> Iterator[Case]:
    seen: dict[str, int] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        fields = parse_object(text, where)
        expected = fields.get("expect")
        if expected not in ("allow", "deny"):
            raise PolicyError(f"{where}: expect is {expected!r}", hint="write allow or deny")
        case_id = str(fields.get("id", number))
        if case_id in seen:
            raise PolicyError(f"{where}: the id {case_id!r} is in line {seen[case_id]} too", hint="rename one")
        seen[case_id] = number
        sequence = _sequence(fields, where)
        if fields.get("rollout_id") is None:
            fields["rollout_id"] = sequence or f"case-{number}"
        yield Case(case_id, action_of(fields, where, known=_CASE_KEYS), expected == "deny", number, sequence)


def _sequence(fields: Mapping[str, Any], where: str) -> str | None:
    sequence = fields.get("sequence")
    if not isinstance(sequence, str | None) or sequence == "":
        raise PolicyError(f"{where}: sequence is {sequence!r}, which is not text", hint="put it in quotes")
    return sequence or fields.get("session_id") or fields.get("rollout_id")


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The JSON object in ``text``. Raises `PolicyError`, with ``where``, when it is anything else."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{where}: not JSON: {error}", hint=_HINT) from error
    if not isinstance(fields, dict):
        raise PolicyError(f"{where}: not a JSON object", hint=_HINT)
    return cast("dict[str, Any]", fields)


def action_of(fields: Mapping[str, Any], where: str, *, known: tuple[str, ...] = _ACTION_KEYS) -> Action:
    """The action that ``fields`` describes; ``point`` is ``pre_tool_call`` unless they say otherwise.

    Raises `PolicyError`, with ``where``, for a value of the wrong type and for a key that looks like a misspelt one.
    """
    for key in fields:
        if key not in known and (close := difflib.get_close_matches(key, known, n=1, cutoff=0.8)):
            raise PolicyError(f"{where}: there is no key {key!r}", hint=f"did you mean {close[0]}?")
        if key in _ALSO_ARGUMENTS and "arguments" not in fields:
            raise PolicyError(f"{where}: there is no key {key!r}", hint="did you mean arguments?")
    point, kind = fields.get("point", Point.PRE_TOOL_CALL.value), fields.get("kind", "function")
    if point not in tuple(Point):
        raise PolicyError(f"{where}: point is {point!r}", hint=f"write one of: {', '.join(Point)}")
    if kind not in get_args(Kind):
        raise PolicyError(f"{where}: kind is {kind!r}", hint=f"write one of: {', '.join(get_args(Kind))}")
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise PolicyError(f"{where}: name is {name!r}", hint="write the name of the tool, or of the model or agent")
    for key in _TEXTS:
        if not isinstance(fields.get(key), str | None):
            raise PolicyError(f"{where}: {key} is {fields[key]!r}, which is not text", hint="put it in quotes")
    arguments, context = fields.get("arguments", {}), fields.get("context", {})
    if not isinstance(arguments, dict) or not isinstance(context, dict):
        raise PolicyError(f"{where}: arguments and context must be objects", hint="write {...}")
    circumstances = dict(cast("dict[str, Any]", context))
    if fields.get("user_text") is not None:
        circumstances["user_text"] = fields["user_text"]
    same = ("text", "agent", "framework", "session_id", "rollout_id", "call_id")
    return Action(
        Point(point),
        name,
        kind=kind,
        arguments=cast("dict[str, Any]", arguments),
        context=circumstances,
        **{key: fields.get(key) for key in same},
    )
