"""Reads what programs pass in as values of this package: kernels, records, flight recorders, rollouts, violations.

The documented API takes any object, a test double too, which has an attribute of any name. Doubles are recognised here, and
nowhere else in lgov: what a double says about itself means nothing, so a kernel that is one governs nothing.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from lgov_core.errors import ArgumentError, ExportError, RewardError
from lgov_core.rl_governance.flight_recorder import began_at, entry_of, id_of
from lgov_core.scope import RolloutScope
from lgov_core.types import Decision, Outcome, PolicyViolation, PolicyViolationType, Severity

_RUNS: Final = ("execute", "execute_async")
_HOOKS: Final = ("on_policy_violation", "on_signal")
_SEVERITIES: Final = frozenset(severity.value for severity in Severity)
#: The attributes in which a recorder may have its entries; the first that holds a list.
_SOURCES: Final = ("get_log", "query_logs", "get_entries", "entries")

_LOG = logging.getLogger(__name__)


def _is_double(value: Any) -> bool:
    """Returns whether ``value`` has an attribute of any name, as a mock does."""
    try:
        return hasattr(value, "lgov_attribute_that_nothing_has")
    except Exception:  # noqa: BLE001 - it knows at least that it does not have this one
        return False


# ---------------------------------------------------------------------- kernels


def adapt_kernel(kernel: Any) -> AdaptedKernel:
    """Returns ``kernel``, any object, under one set of methods. Warns about one that governs nothing."""
    return AdaptedKernel(kernel)


class AdaptedKernel:
    """A kernel of any kind: lgov's own, another program's or a test double.

    ``governed`` is False for a double, a class, and a kernel that has neither a hook (``on_policy_violation``, ``on_signal``)
    nor ``execute`` or ``execute_async``; the last is warned about once. It turns False when a hook turns out to be
    asynchronous or its removal a double. What a kernel does not have is left out. Methods raise `ArgumentError` where asking
    the kernel for an attribute raises.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.name = type(kernel).__name__
        methods = [method for name in (*_RUNS, *_HOOKS) if (method := self.method(name)) is not None]
        self._is_double = any(_is_double(value) for value in (kernel, *methods))
        self.governed = bool(methods) and not self._is_double and not inspect.isclass(kernel)
        if not self.governed and not self._is_double:
            self._warn("has neither a hook nor execute: nothing is governed")

    def method(self, name: str) -> Callable[..., Any] | None:
        """Returns the method ``name`` of the kernel, or None."""
        try:
            method = getattr(self.kernel, name, None)
        except Exception as error:
            raise ArgumentError(
                f"a {self.name} cannot govern: its {name} raised {type(error).__name__}: {error}"
            ) from error
        return method if callable(method) else None

    def register(self, hook: str, callback: Callable[..., Any]) -> Callable[[], Any] | None:
        """Registers ``callback`` and returns its removal; None where there is no such hook, or it returns none.

        Raises `ArgumentError` when the hook does not accept callbacks.
        """
        register = self.method(hook)
        if register is None:
            return None
        try:
            removal = register(callback)
        except Exception as error:
            raise ArgumentError(
                f"a {self.name} cannot govern: its {hook} does not register a callback: {error}"
            ) from error
        if inspect.isawaitable(_never_awaited(removal)):
            if self.governed:
                self._warn(f"has an asynchronous {hook}, which is never awaited: its reports are missing")
            self.governed = False
            return None
        self.governed = self.governed and not _is_double(removal)
        return removal if callable(removal) else None

    def polled_violations(self) -> list[PolicyViolation]:
        """Reads ``get_recent_violations()`` of a kernel without ``on_policy_violation``. What cannot be read counts nothing."""
        recent = self.method("get_recent_violations")
        if recent is None or self.method("on_policy_violation") is not None:
            return []
        try:
            return [polled_violation(entry) for entry in recent() or ()]
        except Exception:  # noqa: BLE001 - as documented
            _LOG.exception("get_recent_violations of %s failed", self.name)
            return []

    def begin_rollout(self, scope: RolloutScope) -> Decision | None:
        """Lets the kernel judge the beginning of a rollout; None where it does not."""
        begin = None if self._is_double else self.method("begin_rollout")
        return None if begin is None else begin(scope)

    def end_rollout(self, scope: RolloutScope) -> None:
        """Lets the kernel judge the end of a rollout."""
        end = None if self._is_double else self.method("end_rollout")
        if end is not None:
            end(scope)

    def forget_signals(self, rollout_id: str) -> None:
        """Lets the kernel forget what it sent to a rollout by itself."""
        forget = self.method("forget_signals")
        if forget is not None:
            forget(rollout_id, automatic_only=True)

    def reset(self) -> None:
        """Resets the kernel."""
        reset = self.method("reset")
        if reset is not None:
            _never_awaited(reset())

    def policy_names(self) -> list[str]:
        """Returns the names of its policies, as far as it tells them."""
        names = self.method("get_policies")
        policies: Any = getattr(self.kernel, "policies", ()) if names is None else _never_awaited(names())
        if not isinstance(policies, Iterable):
            return []
        return [
            policy if isinstance(policy, str) else str(getattr(policy, "name", policy))
            for policy in cast("Iterable[Any]", policies)
        ]

    def _warn(self, what: str) -> None:
        warnings.warn(f"the kernel {self.name} {what}", UserWarning, stacklevel=5)


def _never_awaited(value: Any) -> Any:
    """Closes a coroutine, which would warn when it is thrown away."""
    if inspect.iscoroutine(value):
        value.close()
    return value


def require_record(recorder: Any) -> None:
    """Raises `ArgumentError` for an object that cannot record decisions; a double would say that it has."""
    if _is_double(recorder) or not has_methods(recorder, "commit", "commit_outcome"):
        raise ArgumentError(
            f"a {type(recorder).__name__} cannot record decisions", hint="pass a FlightRecorder or an AuditLog"
        )


# ---------------------------------------------------------------------- stores


def has_methods(value: Any, *names: str) -> bool:
    """Returns whether ``value`` has all these methods."""
    return all(callable(getattr(value, name, None)) for name in names)


def is_trace_store(store: Any) -> bool:
    """Returns whether ``store`` takes and gives spans as lgov's own `TraceStore` does."""
    return has_methods(store, "add_span", "spans", "add_rewards", "flush") and not hasattr(store, "emit_span")


def has_reports(store: Any) -> bool:
    """Returns whether ``store`` keeps the statistics of workers: ``report_worker`` and ``worker_reports``."""
    return has_methods(store, "report_worker", "worker_reports") and not _is_double(store)


# ---------------------------------------------------------------------- violations


def polled_violation(entry: Any) -> PolicyViolation:
    """Reads an entry of ``get_recent_violations``: a mapping or an object. Its severity is low unless it names one."""
    if isinstance(entry, PolicyViolation):
        return entry

    def field(kind: type, default: Any, *names: str) -> Any:
        values = (entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None) for name in names)
        return next((value for value in values if isinstance(value, kind)), default)

    blocked = field(bool, False, "blocked", "action_blocked")
    policy, description = field(str, "unknown", "policy", "policy_name"), field(str, "", "description")
    return _violation(policy, description, field(str, Severity.LOW.value, "severity"), blocked)


def _violation(policy: str, description: str, severity: str, blocked: bool) -> PolicyViolation:
    kind = PolicyViolationType.BLOCKED if blocked else PolicyViolationType.WARNED
    return PolicyViolation(kind, policy, description, severity, action_blocked=blocked)


def reported_violation(*report: Any, **named: Any) -> PolicyViolation:
    """Reads what a kernel gives its callbacks: a `PolicyViolation`, an object or a mapping with its fields, or
    ``(policy_name, description, severity, blocked)``.

    A report that cannot be understood counts as a blocked violation of high severity: it must not count as harmless.
    """
    if len(report) == 1 and isinstance(report[0], PolicyViolation):
        return report[0]
    source: dict[str, Any] = dict(named)
    if len(report) == 1:
        only = report[0]
        if isinstance(only, Mapping):
            source |= {str(key): value for key, value in cast("Mapping[Any, Any]", only).items()}
        else:
            for key in ("policy_name", "policy", "description", "severity", "action_blocked", "blocked", "penalty"):
                if hasattr(only, key):
                    source[key] = getattr(only, key)
    else:
        source |= dict(zip(("policy_name", "description", "severity", "blocked"), report, strict=False))
    policy = source.get("policy_name", source.get("policy"))
    raw: Any = source.get("severity")
    written: Any = getattr(raw, "value", raw)
    severity: Any = written.strip().lower() if isinstance(written, str) else None
    blocked = source.get("action_blocked", source.get("blocked"))
    if policy is None or severity not in _SEVERITIES or not isinstance(blocked, bool):
        what = ", ".join(repr(value)[:200] for value in report) or repr(source)[:200]
        weight = severity if severity in _SEVERITIES else Severity.HIGH.value
        return _violation(str(policy or "unknown"), f"The kernel reported something unclear: {what}", weight, True)
    return _violation(str(policy), str(source.get("description", "")), severity, blocked)


def priced_violation(violation: Any) -> tuple[Any, Any]:
    """Returns severity and penalty of a `PolicyViolation`, an object or a mapping; each is None where it has none."""
    if isinstance(violation, Mapping):
        fields = cast("Mapping[str, Any]", violation)
        severity, penalty = fields.get("severity"), fields.get("penalty")
    else:
        severity, penalty = getattr(violation, "severity", None), getattr(violation, "penalty", None)
    # The classes of other programs may have a penalty of 0 by default.
    stated = not _is_double(penalty) and (penalty != 0 or isinstance(violation, PolicyViolation))
    return severity, penalty if stated else None


# ---------------------------------------------------------------------- rollouts


@dataclass(frozen=True, slots=True)
class JudgedRollout:
    """The facts of a rollout that a reward needs. ``violations`` is None where they are unknown; ``ended`` is False for
    one that was blocked, cut short or raised.
    """

    violations: tuple[Any, ...] | None
    success: bool
    outcome: Any
    ended: bool


def adapt_rollout(rollout: Any, kernel: Any = None) -> JudgedRollout:
    """Reads a `GovernedRollout`, or whatever has ``success`` and ``violations``.

    Without ``violations`` those of ``kernel.get_recent_violations()`` count. Raises `RewardError` for a ``success`` that is
    neither true nor false: the text "False" would count as a success.
    """
    violations = _listed(getattr(rollout, "violations", None))
    if violations is None:
        recent: Any = getattr(kernel, "get_recent_violations", None)
        violations = _listed(recent()) if callable(recent) else None
    success: Any = getattr(rollout, "success", False)
    if not _says_yes_or_no(success) and not _is_double(success):
        raise RewardError(
            f"a {type(rollout).__name__} cannot be scored: its success is {success!r}", hint="write True or False"
        )
    error, outcome = getattr(rollout, "error", None), getattr(rollout, "outcome", None)
    cut_short = isinstance(outcome, str) and outcome not in (Outcome.SUCCEEDED, Outcome.FAILED)
    ended = not isinstance(error, str | BaseException) and not cut_short
    return JudgedRollout(violations, bool(success), outcome, ended)


def _listed(violations: Any) -> tuple[Any, ...] | None:
    is_list = isinstance(violations, Sequence) and not isinstance(violations, str | bytes)
    return tuple(cast("Sequence[Any]", violations)) if is_list else None


def _says_yes_or_no(success: Any) -> bool:
    """Returns whether it is a bool or as good as one, such as numpy's."""
    try:
        return bool(success in (True, False))
    except Exception:  # noqa: BLE001 - what cannot be compared, such as an array, is neither
        return False


# ---------------------------------------------------------------------- flight recorders

Entries: TypeAlias = Sequence[Mapping[str, Any]]
#: Returns the entries after a position, oldest first. The last entry that was seen tells where to go on when the recorder has
#: forgotten old ones.
RecorderReader: TypeAlias = Callable[[int, "Mapping[str, Any] | None"], Entries]


def adapt_recorder(recorder: Any) -> RecorderReader:
    """Returns a reader of the entries of ``recorder``, whichever of the documented methods it has.

    Raises `ExportError` for an object that is not a recorder; the reader does for an answer that is not a list of entries.
    """
    names = [name for name in _SOURCES[:3] if callable(getattr(recorder, name, None))]
    names += ["entries"] if hasattr(recorder, "entries") else []
    if inspect.isclass(recorder) or not names:
        raise ExportError(
            f"a {type(recorder).__name__} is not a flight recorder: it has no {', '.join(_SOURCES)}",
            hint="pass a FlightRecorder",
        )
    if _is_double(recorder):
        return lambda position, last: _entries_of_double(recorder, names)[position:]
    name = names[0]
    source: Any = getattr(recorder, name)
    read: Any = source if callable(source) else lambda: list(getattr(recorder, name))
    takes: frozenset[str] = frozenset()
    with contextlib.suppress(TypeError, ValueError):  # a built-in without a signature
        takes = frozenset(inspect.signature(read).parameters)
    options = {"limit": 2**31 - 1} if "limit" in takes else {}
    flush = getattr(recorder, "flush", None)

    def entries(**position: int) -> Entries:
        if callable(flush):  # a recorder that buffers shows only what it has written
            flush()
        listed = _checked(read(**options, **position), recorder)
        newest_first = name == "query_logs" and len(listed) > 1 and began_at(listed[0]) > began_at(listed[-1])
        return listed[::-1] if newest_first else listed

    if "after" in takes:
        return lambda position, last: entries(after=position)

    def entries_after(position: int, last: Mapping[str, Any] | None) -> Entries:
        listed = entries()
        if last is None:
            return listed
        seen = id_of(last)
        if len(listed) >= position and (seen is None or id_of(listed[position - 1]) == seen):
            return listed[position:]
        # Entries were forgotten meanwhile: go on after the last one seen, or with all when that is gone as well.
        positions = [at for at, entry in enumerate(listed) if seen is not None and id_of(entry) == seen]
        return listed[positions[-1] + 1 :] if positions else listed

    return entries_after


def _entries_of_double(double: Any, names: Sequence[str]) -> Entries:
    """Returns the entries of a test double: of the first name that holds a list."""
    for name in names:
        value = getattr(double, name)
        entries = value() if callable(value) else value
        if isinstance(entries, list | tuple):
            return _checked(entries, double)
    return []


def _checked(entries: Any, recorder: Any) -> Entries:
    if not isinstance(_never_awaited(entries), Sequence) or isinstance(entries, str | bytes):
        raise ExportError(f"the recorder {type(recorder).__name__} did not return a list of entries")
    return [entry_of(entry) for entry in cast("Sequence[Any]", entries)]
