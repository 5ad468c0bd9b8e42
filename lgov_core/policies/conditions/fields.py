"""The fields of an action that a condition may ask for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from lgov_core.errors import PolicyError
from lgov_core.types import Action, Kind, Point

#: What a field holds when there is nothing.
MISSING: Final = object()

#: Fields that hold text or nothing, and those that hold a mapping.
TEXT_FIELDS: Final = ("point", "name", "kind", "agent", "framework", "text", "session_id", "rollout_id")
_MAPPINGS: Final = ("arguments", "context")
#: The names with which a field may begin.
FIELDS: Final = (*TEXT_FIELDS, *_MAPPINGS)
#: What the agent itself writes; the rest comes from the operator.
_THE_AGENTS = frozenset({"arguments", "name", "kind", "text"})


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its ``name`` for messages, and the steps that lead to it.

    ``textual`` fields hold text or nothing. ``values``, when not empty, are the only texts they can hold.
    ``the_agents`` says that the agent itself chose what is in it.
    """

    name: str
    steps: tuple[str, ...]
    textual: bool
    the_agents: bool
    values: tuple[str, ...] = ()

    def read(self, action: Action) -> Any:
        """What the field holds; `MISSING` when there is nothing."""
        root, *path = self.steps
        found = getattr(action, root)
        if self.textual:
            return MISSING if found is None else str(found) if root == "point" else found
        for step in path:
            found = _step(found, step)
        return found


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
    if root in TEXT_FIELDS:
        if path:
            raise PolicyError(f"{root} is text and has no {'.'.join(path)}", hint=f"write field: {root}")
        values = {"point": tuple(point.value for point in Point), "kind": get_args(Kind)}.get(root, ())
        return Field(root, (root,), True, root in _THE_AGENTS, values)
    if root not in _MAPPINGS:
        close = difflib.get_close_matches(root.lower(), FIELDS, n=1)
        hint = f"write arguments.{shown}, or one of: {', '.join(FIELDS)}"
        raise PolicyError(
            f"there is no field {shown}", hint=f"did you mean {'.'.join((close[0], *path))}?" if close else hint
        )
    return Field(shown, tuple(steps), False, root in _THE_AGENTS)


def _step(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(step, MISSING)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and step.isascii() and step.isdigit():
        index = int(step) if len(step) < 10 else len(value)
        return value[index] if index < len(value) else MISSING
    return MISSING
