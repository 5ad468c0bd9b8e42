"""Every error that lgov raises on purpose.

Each class has a stable ``code`` for programs, and each instance may have a ``hint`` that says what to do next::

    LgovError
     ├── FileError                  a file is missing, unreadable or wrong: path, line and what to write instead
     │    ├── PolicyFileError       a policy file; also a PolicyError
     │    ├── RewardFileError       a file of reward rules; also a RewardError
     │    ├── SpanFileError         a file of spans; also a TransitionError
     │    └── TaskError             a file of tasks, or a list of them
     ├── SettingsError              a setting has no meaning, or an unknown name
     ├── PluginError                a plugin that decides could not be loaded, or its hooks do not fit
     ├── PolicyError
     │    ├── PolicyDenied          an act was denied and the caller asked for an exception; carries the Decision
     │    └── PolicyViolationError  the same on the training side; carries the PolicyViolation
     ├── AuditError                 the audit record cannot be opened, read or written
     │    ├── AuditInUse            a record that is to be archived is open elsewhere
     │    └── AuditKeyError         a signing key is missing, unusable, or not the record's
     ├── ScopeError                 a rollout scope is missing, or does not fit
     ├── KernelError                an agent, a kernel or an environment cannot be run as asked
     │    └── ArgumentError         an argument has an unknown name or no meaning; also a TypeError and a ValueError
     ├── InstrumentationError       an adapter cannot govern what it was asked to govern
     ├── StoreError                 the trace store cannot be opened, read or written
     │    └── AttemptEnded          a call belongs to an attempt that has ended
     ├── TraceError                 spans cannot be read out of a request, or sent to a collector
     ├── ModelError                 a model cannot be found, checked, converted or loaded
     ├── EndpointError              the training endpoint was asked for something it cannot do
     │    ├── ContextOverflow       a prompt has more tokens than its model reads
     │    └── UpstreamError         the server behind the endpoint failed
     ├── RewardError                a reward is not a finite number, or what makes rewards has no meaning; also a ValueError
     ├── ExportError                recorded entries cannot be handed to a store or written to a file
     ├── TransitionError            recorded calls cannot become training data
     ├── ClientError                a training server cannot be reached, is of another version, or refuses
     └── TrainError                 an update cannot go on (not finite, collapsed, no data)

``str(error)`` is the message followed by the hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lgov_core.types import Decision, PolicyViolation
from lgov_core.types.errors import LgovError, RewardError, TransitionError


class FileError(LgovError):
    """A file is missing, unreadable or wrong. ``path`` and ``line`` (1-based) say where, when known."""

    code = "file"

    def __init__(
        self, message: str, *, path: str | None = None, line: int | None = None, hint: str | None = None
    ) -> None:
        where = ":".join(str(part) for part in (path, line) if part is not None)
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.path = path
        self.line = line


class SettingsError(LgovError):
    """A setting has an unknown name, or a value without meaning."""

    code = "settings"


class PluginError(LgovError):
    """A plugin that takes part in decisions could not be loaded, or its hooks do not fit. Fatal: fails closed."""

    code = "plugin"


class PolicyError(LgovError):
    """A policy is missing or wrong, or it denied a call."""

    code = "policy"


class PolicyFileError(FileError, PolicyError):
    """A policy file is missing, unreadable or wrong. ``path`` and ``line`` (1-based) say where, when known.

    ``further`` holds the errors of other rules, when all were asked for (``lgov policy check``).
    """

    code = "policy_file"
    further: tuple[PolicyFileError, ...] = ()


class PolicyDenied(PolicyError):
    """A call was denied, and the caller asked for an exception instead of a decision (``decision``)."""

    code = "policy_denied"

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.denial_message())
        self.decision = decision


class PolicyViolationError(PolicyError):
    """A policy blocked a call, and the caller asked for an exception. ``violation`` has the policy, reason and penalty."""

    code = "policy_violation"

    def __init__(self, violation: PolicyViolation) -> None:
        super().__init__(f"Policy violation: {violation.description}")
        self.violation = violation


class AuditError(LgovError):
    """The audit record cannot be opened, read or written. Code that catches it must treat the call as denied."""

    code = "audit"


class AuditKeyError(AuditError):
    """A key that signs audit records is missing, unusable, or not the record's. It says nothing about the record."""

    code = "audit_key"


class AuditInUse(AuditError):
    """An audit record that is to be archived is open elsewhere. It says nothing about the record."""

    code = "audit_in_use"


class ScopeError(LgovError):
    """A rollout scope is missing where one is needed, or its ids do not fit."""

    code = "scope"


class KernelError(LgovError):
    """An agent, a kernel or an environment cannot be run as asked. Nothing was run."""

    code = "kernel"


class ArgumentError(KernelError, TypeError, ValueError):
    """An argument has an unknown name, or a value without meaning. Plain Python code can catch it as one of its own errors."""

    code = "argument"


class InstrumentationError(LgovError):
    """An adapter cannot govern a framework or a program. The program must not run ungoverned."""

    code = "instrument"


class StoreError(LgovError):
    """The trace store cannot be opened, read or written."""

    code = "store"


class AttemptEnded(StoreError):
    """A model call was answered after its attempt had ended: it led to nothing that the attempt did."""

    code = "attempt-ended"

    def __init__(self, rollout_id: str, attempt: int | None) -> None:
        super().__init__(
            f"attempt {attempt} of rollout {rollout_id} has ended",
            hint="make calls before the agent returns, and a new client for each rollout: its address names the attempt",
        )


class TraceError(LgovError):
    """Spans cannot be read from a request, or sent to a collector.

    ``status`` is the HTTP status that a request with such spans is answered with.
    """

    code = "trace"

    def __init__(self, message: str, *, status: int = 400, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class ModelError(LgovError):
    """A model cannot be found, checked, converted or loaded."""

    code = "model"


class EndpointError(LgovError):
    """The endpoint cannot do what was asked. ``status`` is the HTTP status that it answers with.

    ``refused``: no model has worked on the call, so that it costs nothing.
    """

    code = "endpoint"

    def __init__(self, message: str, *, status: int = 400, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.refused = status < 500 or status in (501, 503)


class ContextOverflow(EndpointError):
    """The prompt of a call has more tokens than its model reads. In the words of OpenAI, by which clients know it."""

    code = "context_length_exceeded"

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(
            f"Input tokens exceed the configured limit of {limit} tokens. This model's maximum context length is {limit} "
            f"tokens. However, your messages resulted in {tokens} tokens. Please reduce the length of the messages."
        )
        self.tokens = tokens
        self.limit = limit


class UpstreamError(EndpointError):
    """The server behind the endpoint failed or could not be reached.

    The message is for the agent, and so are ``headers``, which say when to ask again. For those who run the endpoint ``where``
    is the server's host and port, and ``detail`` what it sent instead of a reply. ``refused`` only where the connection could
    not be made, or the server answered with an error status.
    """

    code = "upstream"

    def __init__(
        self,
        message: str,
        *,
        status: int = 502,
        hint: str | None = None,
        where: str | None = None,
        detail: str | None = None,
        headers: Mapping[str, str] | None = None,
        refused: bool = False,
    ) -> None:
        super().__init__(message, status=status, hint=hint)
        self.refused = refused
        self.where = where
        self.detail = detail
        self.headers = headers or {}


class RewardFileError(FileError, RewardError):
    """A file of reward rules is missing, unreadable or wrong. ``path`` and ``line`` (1-based) say where, when known."""

    code = "reward_file"


class ExportError(LgovError):
    """Recorded entries cannot be sent to a store or written to a file. ``stored`` is the number of those that were."""

    code = "export"

    def __init__(self, message: str, *, stored: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.stored = stored


class TaskError(FileError):
    """Tasks are missing or wrong. ``path`` and ``line`` (1-based) say where, when known. Nothing was uploaded."""

    code = "task"


class SpanFileError(FileError, TransitionError):
    """A file of spans cannot be read."""

    code = "span_file"


class ClientError(LgovError):
    """A training server cannot be reached, has another version, or refused. ``status`` is the HTTP status, if any."""

    code = "client"

    def __init__(self, message: str, *, status: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class TrainError(LgovError):
    """A training cannot go on: a loss that is not finite, a collapsed policy, or no data."""

    code = "train"


def counted(count: int, singular: str, several: str = "") -> str:
    """A number and its noun: ``1 entry``, ``2 entries``; ``several`` defaults to ``singular`` with an s."""
    return f"{count} {singular if count == 1 else several or singular + 's'}"


def suggest_name(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """A hint: the name in ``names`` that is spelt most like ``name``, else ``otherwise``, or all that are known."""
    import difflib

    every = list(names)
    close = difflib.get_close_matches(name, every, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"write one of: {', '.join(every)}" if otherwise is None else otherwise
