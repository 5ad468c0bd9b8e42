"""EntryWriter: makes the fields of entries, wherever they are appended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from lgov_core.audit.entry import Payload, content_payload, decision_fields, outcome_fields, payload
from lgov_core.audit.redaction import Redaction, redaction
from lgov_core.errors import AuditError
from lgov_core.types import Action, Decision, ToolOutcome


class EntryWriter(ABC):
    """What makes entries: takes out what ``redact`` names, and puts the rest into the fields of the record."""

    def __init__(self, redact: Redaction | Callable[[str, Any], Any] | Iterable[str] | None = None) -> None:
        self._redact = redaction(redact)

    @abstractmethod
    def append_entry(
        self, fields: Mapping[str, Any], arguments: Payload | None, content: Payload | None, prefix: str
    ) -> str:
        """Makes an entry durable and returns its id, which begins with ``prefix``. Raises `AuditError`."""

    def commit(self, action: Action, decision: Decision) -> str:
        """Appends the decision and returns its entry's id once it is durable.

        Raises `AuditError`. Callable from any thread. What the arguments hold besides JSON values is recorded as its
        ``repr``; what is longer than 64 KiB as its beginning, size and SHA-256.
        """
        with recordable(action.name):
            if self._redact is not None:
                action, decision = self._redact.decided(action, decision)
            arguments, fields = payload(action.arguments), decision_fields(action, decision)
            texts = {"text": action.text, "new_arguments": decision.arguments, "new_text": decision.text}
            content = content_payload(texts)
        return self.append_entry(fields, arguments, content, "aud")

    def commit_outcome(self, outcome: ToolOutcome, decision_id: str | None) -> str:
        """Appends the outcome of an act, as an entry that refers to its decision's, and returns the new entry's id.

        The arguments are kept with the decision; the outcome keeps them only when there was none. Raises `AuditError`.
        Callable from any thread.
        """
        with recordable(outcome.action.name):
            if self._redact is not None:
                outcome = self._redact.outcome(outcome)
            arguments = payload(outcome.action.arguments) if decision_id is None else None
            fields = outcome_fields(outcome, decision_id)
            content = content_payload({"result": outcome.result, "error": outcome.error})
        return self.append_entry(fields, arguments, content, "out")

    def append(
        self, kind: str, fields: Mapping[str, Any], *, arguments: Mapping[str, Any] | None, content: Mapping[str, Any]
    ) -> str:
        """Appends an entry of another kind, made of ``fields``, and returns its id. Raises `AuditError`."""
        with recordable(kind):
            if self._redact is not None:
                arguments = None if arguments is None else self._redact.mapping(arguments)
                content = self._redact.mapping(content)
            given = None if arguments is None else payload(arguments)
            texts = content_payload(content)
        return self.append_entry({"kind": kind, **fields}, given, texts, kind[:3])


@contextmanager
def recordable(name: str) -> Generator[None]:
    """Turns any exception of the block into the error for an entry that cannot be made."""
    try:
        yield
    except Exception as error:
        raise AuditError(
            f"the arguments of {name[:100]!r} cannot be recorded: {type(error).__name__}: {error}",
            hint="an act that cannot be put on record is not done",
        ) from error
