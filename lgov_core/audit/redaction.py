"""Takes values out of what is recorded, before anything is hashed or stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from lgov_core.errors import AuditError
from lgov_core.types import Action, Decision, ToolOutcome

REDACTED: Final = "[redacted]"
_MAX_DEPTH: Final = 64
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
        seen = _Seen(self)
        arguments = None if decision.arguments is None else seen.mapping(decision.arguments)
        new_text = seen.text("text", decision.text)
        action = seen.action(action)
        decision = _without(replace(decision, arguments=arguments, text=new_text), seen)
        return seen.again(action), decision

    def outcome(self, outcome: ToolOutcome) -> ToolOutcome:
        """An outcome as it is recorded."""
        seen = _Seen(self)
        action = seen.action(outcome.action)
        result, error = seen.text("result", outcome.result), seen.text("error", outcome.error)
        return replace(outcome, action=seen.again(action), result=seen.out_of(result), error=seen.out_of(error))

    def mapping(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """``values`` as they are recorded."""
        seen = _Seen(self)
        return seen.out_of(seen.mapping(values))


class _Seen:
    """One entry's redaction: collects the texts that were taken out."""

    def __init__(self, redaction: Redaction) -> None:
        self._value_of = redaction.value_of
        self._hidden: set[str] = set()

    def mapping(self, values: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
        return {key: self._value(str(key), value, depth) for key, value in values.items()}

    def _value(self, key: str, value: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deep")
        kept = self._value_of(key, value)
        if kept is not value and kept != value:
            self._hidden.update(_texts(value))
            return kept
        if isinstance(kept, Mapping):
            return self.mapping(kept, depth + 1)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(kept, list | tuple):
            return [self._value(key, item, depth + 1) for item in kept]
        return self._json(key, kept, depth) if isinstance(kept, str) else kept

    def _json(self, key: str, text: str, depth: int) -> str:
        """A text that holds JSON, as the arguments of a tool call do in a model's reply."""
        if not text.lstrip().startswith(("{", "[")):
            return text
        try:
            inner = json.loads(text)
        except ValueError:
            return text
        outer = (
            self.mapping({key: inner}, depth + 1)[key] if isinstance(inner, list) else self.mapping(inner, depth + 1)
        )
        return text if outer == inner else json.dumps(outer)

    def text(self, key: str, text: str | None) -> str | None:
        if text is None:
            return None
        kept = str(self._value_of(key, text))
        if kept != text:
            self._hidden.update(_texts(text))
            return kept
        return self._json(key, kept, 0)

    def action(self, action: Action) -> Action:
        return replace(action, arguments=self.mapping(action.arguments), text=self.text("text", action.text))

    def again(self, action: Action) -> Action:
        if not self._hidden:
            return action
        return replace(action, arguments=self.out_of(action.arguments), text=self.out_of(action.text))

    def out_of(self, value: Any) -> Any:
        """``value`` without the texts that were taken out elsewhere."""
        if not self._hidden:
            return value
        if isinstance(value, str):
            for hidden in sorted(self._hidden, key=len, reverse=True):
                value = value.replace(hidden, REDACTED)
            return value
        if isinstance(value, Mapping):
            items: Mapping[Any, Any] = value
            return {key: self.out_of(item) for key, item in items.items()}
        if isinstance(value, list | tuple):
            return [self.out_of(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        return value


def _without(decision: Decision, seen: _Seen) -> Decision:
    return replace(
        decision,
        reason=seen.out_of(decision.reason),
        arguments=seen.out_of(decision.arguments),
        text=seen.out_of(decision.text),
        parts=tuple(_without(part, seen) for part in decision.parts),
    )


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """The texts in a value that was taken out. Shorter ones occur everywhere by chance."""
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, Mapping):
        items: Mapping[Any, Any] = value
        for item in items.values():
            yield from _texts(item, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(item, depth + 1)
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and len(str(value)) >= _MIN_LENGTH:
        yield str(value)


def redaction(given: Redaction | Callable[[str, Any], Any] | Iterable[str] | None) -> Redaction | None:
    """A redaction by a function, or of the values under the named keys, whatever their case. Raises `AuditError`."""
    if given is None or isinstance(given, Redaction):
        return given
    if callable(given):
        return Redaction(given)
    hint = "give a list of the keys whose values are taken out"
    if isinstance(given, str) or not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AuditError(f"redact is {given!r}", hint=hint)
    keys = list(given)
    for key in keys:
        if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AuditError(f"redact holds {key!r}, which is not a name of an argument", hint=hint)
    hidden = frozenset(key.lower() for key in keys)
    return Redaction(lambda key, value: REDACTED if key.lower() in hidden and value is not None else value)
