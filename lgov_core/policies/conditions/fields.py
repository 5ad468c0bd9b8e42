"""The fields of an action that a condition may ask for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from lgov_core.errors import PolicyError
from lgov_core.types import Action, Kind, Point

#: What a field holds when there is nothing.
MISSING: Final = object()

_TEXTS: Final[Mapping[str, Callable[[Action], Any]]] = {
    "point": lambda action: action.point.value,
    "name": lambda action: action.name,
    "kind": lambda action: action.kind,
    "agent": lambda action: action.agent,
    "framework": lambda action: action.framework,
    "text": lambda action: action.text,
    "session_id": lambda action: action.session_id,
    "rollout_id": lambda action: action.rollout_id,
}
_MAPPINGS: Final[Mapping[str, Callable[[Action], Any]]] = {
    "arguments": lambda action: action.arguments,
    "context": lambda action: action.context,
}
#: The names with which a field may begin.
FIELDS: Final = (*_TEXTS, *_MAPPINGS)
#: What the agent itself writes; the rest comes from the operator.
_THE_AGENTS = frozenset({"arguments", "name", "kind", "text"})


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its ``name`` for messages, and how it is read (`MISSING` when there is nothing).

    ``textual`` fields hold text or nothing. ``values``, when not empty, are the only texts they can hold.
    ``the_agents`` says that the agent itself chose what is in it.
    """

    name: str
    read: Callable[[Action], Any]
    textual: bool
    the_agents: bool
    values: tuple[str, ...] = ()


def field_of(name: object) -> Field:
    """The field called ``name``: dotted text, or its steps as a list (for a key that holds a dot).

    A step into a list is its index. Raises `PolicyError` for a field that no action has.
    """
    steps: list[Any] = (
        name.split(".") if isinstance(name, str) else list(name) if isinstance(name, list | tuple) else []
    )
    if not steps or not all(isinstance(step, str) and step for step in steps):
        raise PolicyError(f"{name!r} is not a field", hint=f"write one of: {', '.join(FIELDS)}; or arguments.NAME")
    root, path = steps[0], tuple(steps[1:])
    shown = ".".join(steps)
    if root in _TEXTS:
        if path:
            raise PolicyError(f"{root} is text and has no {'.'.join(path)}", hint=f"write field: {root}")
        values = {"point": tuple(point.value for point in Point), "kind": get_args(Kind)}.get(root, ())
        return Field(root, _present(_TEXTS[root]), True, root in _THE_AGENTS, values)
    if root not in _MAPPINGS:
        close = difflib.get_close_matches(root.lower(), FIELDS, n=1)
        hint = f"write arguments.{shown}, or one of: {', '.join(FIELDS)}"
        raise PolicyError(
            f"there is no field {shown}", hint=f"did you mean {'.'.join((close[0], *path))}?" if close else hint
        )
    return Field(shown, _inside(_MAPPINGS[root], path), False, root in _THE_AGENTS)


def _present(read: Callable[[Action], Any]) -> Callable[[Action], Any]:
    def value(action: Action) -> Any:
        found = read(action)
        return MISSING if found is None else found

    return value


def _inside(read: Callable[[Action], Any], path: tuple[str, ...]) -> Callable[[Action], Any]:
    def value(action: Action) -> Any:
        found = read(action)
        for step in path:
            found = _step(found, step)
        return found

    return value


def _step(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(step, MISSING)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and step.isascii() and step.isdigit():
        index = int(step) if len(step) < 10 else len(value)
        return value[index] if index < len(value) else MISSING
    return MISSING
