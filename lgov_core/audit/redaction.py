"""Takes values out of what is recorded, before anything is hashed or stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from lgov_core.errors import AuditError
from lgov_core.types import Action, Decision, ToolOutcome

REDACTED: Final = "[redacted]"
_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class Redaction:
    """``value_of(key, value)`` says what is recorded for a value that stands under ``key``.

    It is asked about every value in arguments (the keys of mappings at any depth; items of a list under the list's key)
    and about the texts of an entry (under ``text``, ``result``, ``error`` and ``input_prompt``). What it raises makes
    the commit fail, so that the act is denied.
    """

    value_of: Callable[[str, Any], Any]

    def mapping(self, values: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
        """``values`` with every value in them as it is recorded."""
        return {key: self._value(str(key), value, depth) for key, value in values.items()}

    def _value(self, key: str, value: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deep")
        value = self.value_of(key, value)
        if isinstance(value, Mapping):
            return self.mapping(value, depth + 1)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, list | tuple):
            return [self._value(key, item, depth + 1) for item in value]
        return value

    def text(self, key: str, text: str | None) -> str | None:
        """A text as it is recorded."""
        return None if text is None else str(self.value_of(key, text))

    def action(self, action: Action) -> Action:
        """The action as it is recorded."""
        return replace(action, arguments=self.mapping(action.arguments), text=self.text("text", action.text))

    def decision(self, decision: Decision) -> Decision:
        """The decision as it is recorded: what it puts in place of the action's arguments and text."""
        if decision.arguments is None and decision.text is None:
            return decision
        arguments = None if decision.arguments is None else self.mapping(decision.arguments)
        return replace(decision, arguments=arguments, text=self.text("text", decision.text))

    def outcome(self, outcome: ToolOutcome) -> ToolOutcome:
        """The outcome as it is recorded."""
        result, error = self.text("result", outcome.result), self.text("error", outcome.error)
        return replace(outcome, action=self.action(outcome.action), result=result, error=error)


def redaction(given: Redaction | Callable[[str, Any], Any] | Iterable[str] | None) -> Redaction | None:
    """A redaction by a function, or of the values under the named keys, whatever their case. Raises `AuditError`."""
    if given is None or isinstance(given, Redaction):
        return given
    if callable(given):
        return Redaction(given)
    if isinstance(given, str):
        raise AuditError(f"redact is the text {given!r}", hint="give a list of the keys whose values are taken out")
    hidden = frozenset(str(key).lower() for key in given)
    return Redaction(lambda key, value: REDACTED if key.lower() in hidden and value is not None else value)
