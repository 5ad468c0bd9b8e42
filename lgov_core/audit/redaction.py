"""Takes values out of what is recorded, before anything is hashed or stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from lgov_core.errors import AuditError
from lgov_core.types import Action, Decision, ToolOutcome

REDACTED: Final = "[redacted]"
_MIN_LENGTH: Final = 4


@dataclass(frozen=True, slots=True)
class Redaction:
    """``value_of(key, value)`` returns what is recorded for a value under ``key``.

    It is asked about every value in arguments (the keys of mappings at any depth, those in texts that are JSON
    themselves too; items of a list under the list's key) and about the texts of an entry (under ``text``, ``result``,
    ``error`` and ``input_prompt``). Texts of four characters or more that it took out of an entry are also taken out of
    wherever else in this entry they occur, such as the reason of a denial that quotes them. What it raises makes the
    commit fail, so that the act is denied.
    """

    value_of: Callable[[str, Any], Any]

    def decided(self, action: Action, decision: Decision) -> tuple[Action, Decision]:
        """An action and its decision as they are recorded."""
        seen = _Seen(self.value_of)
        action = seen.action(action)
        arguments = None if decision.arguments is None else seen.mapping(decision.arguments)
        decision = replace(decision, arguments=arguments, text=seen.text("text", decision.text))
        return seen.without(action), seen.without(decision)

    def outcome(self, outcome: ToolOutcome) -> ToolOutcome:
        """An outcome as it is recorded."""
        seen = _Seen(self.value_of)
        action, result = seen.action(outcome.action), seen.text("result", outcome.result)
        return seen.without(replace(outcome, action=action, result=result, error=seen.text("error", outcome.error)))

    def texts(self, arguments: Mapping[str, Any] | None, content: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The arguments and the texts of an entry as they are recorded."""
        seen = _Seen(self.value_of)
        arguments, content = None if arguments is None else seen.mapping(arguments), seen.mapping(content)
        return seen.without(arguments), seen.without(content)


class _Seen:
    """One entry's redaction: collects the texts that were taken out."""

    def __init__(self, value_of: Callable[[str, Any], Any]) -> None:
        self._value_of = value_of
        self._hidden: set[str] = set()

    def mapping(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._value(str(key), value) for key, value in values.items()}

    def text(self, key: str, text: str | None) -> str | None:
        return None if text is None else str(self._value(key, text))

    def action(self, action: Action) -> Action:
        return replace(action, arguments=self.mapping(action.arguments), text=self.text("text", action.text))

    def _value(self, key: str, value: Any) -> Any:
        kept = self._value_of(key, value)
        if kept is not value and kept != value:
            self._hidden.update(_texts(value))
            return kept
        if isinstance(kept, Mapping):
            return self.mapping(kept)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(kept, list | tuple):
            return [self._value(key, item) for item in kept]
        return self._json(key, kept) if isinstance(kept, str) else kept

    def _json(self, key: str, text: str) -> str:
        """A text that holds JSON, as the arguments of a tool call do in a model's reply."""
        if not text.lstrip().startswith(("{", "[")):
            return text
        try:
            inner = json.loads(text)
        except ValueError:
            return text
        outer = self._value(key, inner) if isinstance(inner, list) else self.mapping(inner)
        return text if outer == inner else json.dumps(outer)

    def without(self, value: Any) -> Any:
        """``value`` (also an action, a decision or an outcome) without the texts that were taken out elsewhere."""
        match value:
            case str():
                for hidden in sorted(self._hidden, key=len, reverse=True):
                    value = value.replace(hidden, REDACTED)
                return value
            case Action():
                return replace(value, arguments=self.without(value.arguments), text=self.without(value.text))
            case ToolOutcome():
                return replace(
                    value,
                    action=self.without(value.action),
                    result=self.without(value.result),
                    error=self.without(value.error),
                )
            case Decision():
                return replace(
                    value,
                    reason=self.without(value.reason),
                    arguments=self.without(value.arguments),
                    text=self.without(value.text),
                    parts=tuple(self.without(part) for part in value.parts),
                )
            case Mapping():
                items: Mapping[Any, Any] = value
                return {key: self.without(item) for key, item in items.items()}
            case list() | tuple():
                return [self.without(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
            case _:
                return value


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value that was taken out. Shorter ones occur everywhere by chance."""
    if isinstance(value, Mapping):
        items: Mapping[Any, Any] = value
        for item in items.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and len(str(value)) >= _MIN_LENGTH:
        yield str(value)


def redaction(redact: Redaction | Callable[[str, Any], Any] | Iterable[str] | None) -> Redaction | None:
    """A redaction by a function, or of the values under the named keys, whatever their case. Raises `AuditError`."""
    if redact is None or isinstance(redact, Redaction):
        return redact
    if callable(redact):
        return Redaction(redact)
    hint = "give a list of the keys whose values are taken out"
    if isinstance(redact, str) or not isinstance(redact, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AuditError(f"redact is {redact!r}", hint=hint)
    keys = list(redact)
    for key in keys:
        if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AuditError(f"redact holds {key!r}, which is not a name of an argument", hint=hint)
    hidden = frozenset(key.lower() for key in keys)
    return Redaction(lambda key, value: REDACTED if key.lower() in hidden and value is not None else value)
