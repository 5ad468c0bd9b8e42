"""From decisions to violations, and from violations to the rollout that they belong to."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lgov_core.errors import ArgumentError
from lgov_core.kernel.signals import SIGNAL_POLICY
from lgov_core.policies.base import Policy
from lgov_core.reward.violation import PolicyViolation, PolicyViolationType, violation_of
from lgov_core.scope import current_scope
from lgov_core.types import Decision, Outcome, Severity

_SEVERITIES: Final = frozenset(severity.value for severity in Severity)
_NOTHING_UNGOVERNED: Final = (
    "pass a KernelSpace, or an object with execute and on_policy_violation; nothing is run ungoverned"
)


def found_by(decision: Decision, names: Mapping[str, str]) -> PolicyViolation | None:
    """`violation_of`, with the type SIGNAL_SENT where a signal stopped the act."""
    violation = violation_of(decision, names)
    if violation is None or violation.policy_name != SIGNAL_POLICY:
        return violation
    return replace(violation, violation_type=PolicyViolationType.SIGNAL_SENT)


def outcome_of(decision: Decision) -> Outcome:
    """How an attempt ends on which this denial fell."""
    return Outcome.INFRASTRUCTURE if decision.fault else Outcome.BLOCKED


def shown_name(policy: Policy) -> str:
    """What violations call a policy: the name it was given, or its class where it was given none."""
    try:
        default = inspect.signature(type(policy)).parameters["name"].default
    except (KeyError, TypeError, ValueError):
        return policy.name
    return type(policy).__name__ if policy.name == default else policy.name


class Listeners:
    """Callbacks that hear of something. ``wide`` makes the several arguments for those that require as many."""

    def __init__(self, wide: Callable[[Any], tuple[Any, ...]], narrow: Callable[[Any], Any]) -> None:
        self._wide, self._narrow = wide, narrow
        self._calls: tuple[Callable[[Any], Any], ...] = ()
        self._lock = threading.Lock()

    def add(self, callback: Callable[..., Any], width: int) -> Callable[[], None]:
        """Adds a callback; one that requires ``width`` arguments gets them, any other gets one. Returns its removal.

        Raises `ArgumentError` for a callback that could never hear of anything, see `require_callback`.
        """
        require_callback(callback, width)
        if _required(callback) == width:

            def call(event: Any) -> Any:
                return callback(*self._wide(event))
        else:

            def call(event: Any) -> Any:
                return callback(self._narrow(event))

        with self._lock:
            self._calls = (*self._calls, call)

        def remove() -> None:
            with self._lock:
                self._calls = tuple(one for one in self._calls if one is not call)

        return remove

    def tell(self, event: Any) -> list[Exception]:
        """Calls every callback and returns what they raised."""
        failed: list[Exception] = []
        for call in self._calls:
            try:
                require_done(call(event))
            except Exception as error:  # noqa: BLE001 - the others must hear of it all the same
                failed.append(error)
        return failed


def require_callback(callback: Any, width: int = 1) -> None:
    """Raises `ArgumentError` unless ``callback`` can be called with one argument, or with ``width`` of them.

    Nobody waits for a coroutine here: what an asynchronous callback does would never be done.
    """
    if not callable(callback):
        raise ArgumentError(f"{callback!r} cannot be called", hint="pass a function")
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
        raise ArgumentError(f"{callback!r} is asynchronous, and nobody would wait for it", hint="pass a plain function")
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):  # a built-in that does not tell
        return
    for count in {1, width}:
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return
    raise ArgumentError(f"{callback!r} does not take one argument", hint="give it one parameter")


def require_done(answer: Any) -> None:
    """Raises `ArgumentError` when a callback or a hook answered something that must still be awaited."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ArgumentError("it is asynchronous, and nobody would wait for it", hint="make it a plain function")


def _required(callback: Callable[..., Any]) -> int:
    """How many positional arguments must be given; -1 where it cannot be known."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError):
        return -1
    return sum(one.kind in kinds and one.default is inspect.Parameter.empty for one in parameters)


# ---------------------------------------------------------------------- the other side: who listens to a kernel


@dataclass(slots=True)
class Collected:
    """What was reported for one rollout so far, in order."""

    rollout_id: str
    violations: list[PolicyViolation] = field(default_factory=lambda: [])
    signals: list[str] = field(default_factory=lambda: [])


class RolloutWatch:
    """Listens to a kernel and puts what it reports on the rollout that it belongs to.

    The kernel may be any object with ``execute`` (or, where ``needs_execute`` says so, only ``execute_async``) and
    ``on_policy_violation``; ``on_signal`` is used where it is there. A report may be a `PolicyViolation`, an object or a
    mapping with its fields, or ``(policy_name, description, severity, blocked)``. It belongs to the ``rollout_id`` that
    it names (an attribute, a key or a keyword argument), else to the rollout of the running code. ``heard`` is told
    each violation with its rollout's id and whether that rollout is being collected here. A report that cannot be
    understood counts as a blocked violation of high severity. Raises `ArgumentError` for a kernel that cannot be used.
    """

    def __init__(
        self,
        kernel: Any,
        *,
        heard: Callable[[PolicyViolation, str | None, bool], None],
        methods: tuple[str, ...] = ("execute", "execute_async"),
    ) -> None:
        require_kernel(kernel, methods)
        self._kernel, self._heard = kernel, heard
        self._open: dict[str, Collected] = {}
        self._lock = threading.Lock()
        self._removals: list[Any] | None = None
        self.listen()

    def listen(self) -> None:
        """Registers with the kernel, unless that is done. Raises `ArgumentError` when it does not let itself be heard."""
        if self._removals is not None:
            return
        removals: list[Any] = []
        try:
            for hook, callback in (("on_policy_violation", self._violation), ("on_signal", self._signal)):
                if callable(register := _method(self._kernel, hook)):
                    removals.append(self._registered(hook, register, callback))
        except BaseException:
            for removal in removals:
                if callable(removal):
                    removal()
            raise
        self._removals = [removal for removal in removals if callable(removal)]

    def _registered(self, hook: str, register: Callable[..., Any], callback: Callable[..., Any]) -> Any:
        what = f"a {type(self._kernel).__name__} cannot govern: its {hook}"
        try:
            removal = register(callback)
            require_done(removal)
        except Exception as error:
            raise ArgumentError(f"{what} does not register a callback: {error}", hint=_NOTHING_UNGOVERNED) from error
        if answers_to_anything(removal):
            raise ArgumentError(f"{what} is a stand-in, behind which is nothing", hint=_NOTHING_UNGOVERNED)
        return removal

    def stop(self) -> None:
        """Takes back what was registered. A kernel whose hooks return no removal goes on reporting."""
        if not self._removals:
            return
        for removal in self._removals:
            removal()
        self._removals = None

    def begin(self, rollout_id: str) -> Collected | None:
        """Starts to collect for a rollout; None when that is being done already."""
        with self._lock:
            if rollout_id in self._open:
                return None
            collected = self._open[rollout_id] = Collected(rollout_id)
            return collected

    def end(self, rollout_id: str) -> None:
        """Stops collecting for a rollout."""
        with self._lock:
            self._open.pop(rollout_id, None)

    def _violation(self, *report: Any, **named: Any) -> None:
        rollout_id = _named_rollout(report, named)
        violation = as_violation(*report, **{key: value for key, value in named.items() if key != "rollout_id"})
        with self._lock:
            collected = self._open.get(rollout_id) if rollout_id is not None else None
            if collected is not None:
                collected.violations.append(violation)
        self._heard(violation, rollout_id, collected is not None)

    def _signal(self, *report: Any, **named: Any) -> None:
        rollout_id = _named_rollout(report, named)
        what = report[0] if report else named.get("signal", "")
        name = what if isinstance(what, str) else getattr(what, "name", what)
        with self._lock:
            collected = self._open.get(rollout_id) if rollout_id is not None else None
            if collected is not None:
                collected.signals.append(str(name))


def require_kernel(kernel: Any, methods: tuple[str, ...]) -> None:
    """Raises `ArgumentError` unless ``kernel`` has one of ``methods`` and reports its violations.

    What has an attribute of any name (a mock, a ``__getattr__`` that knows everything) has them only by chance.
    """
    if kernel is None or inspect.isclass(kernel):
        raise ArgumentError(f"{kernel!r} is no kernel", hint=_NOTHING_UNGOVERNED)
    what = f"a {type(kernel).__name__} cannot govern"
    runs = [method for name in methods if callable(method := _method(kernel, name))]
    if not runs:
        raise ArgumentError(f"{what}: it has no {' or '.join(methods)}", hint=_NOTHING_UNGOVERNED)
    reports = _method(kernel, "on_policy_violation")
    if not callable(reports):
        raise ArgumentError(f"{what}: it has no on_policy_violation", hint=_NOTHING_UNGOVERNED)
    if any(answers_to_anything(part) for part in (kernel, reports, *runs)):
        raise ArgumentError(f"{what}: it is a stand-in, behind which is nothing", hint=_NOTHING_UNGOVERNED)


def _method(kernel: Any, name: str) -> Any:
    try:
        return getattr(kernel, name, None)
    except Exception as error:
        raise ArgumentError(
            f"a {type(kernel).__name__} cannot govern: its {name} raised {type(error).__name__}: {error}",
            hint=_NOTHING_UNGOVERNED,
        ) from error


def answers_to_anything(thing: Any) -> bool:
    """Whether it has an attribute of any name, as a mock does: then nothing that it has means anything."""
    try:
        return hasattr(thing, "lgov_asks_for_what_nobody_has")
    except Exception:  # noqa: BLE001 - it knows at least that it does not have this one
        return False


def as_violation(*report: Any, **named: Any) -> PolicyViolation:
    """A `PolicyViolation` out of whatever a kernel reports; see `RolloutWatch`."""
    if len(report) == 1 and isinstance(report[0], PolicyViolation):
        return report[0]
    source: dict[str, Any] = dict(named)
    if len(report) == 1:
        only = report[0]
        if isinstance(only, Mapping):
            source |= {str(key): value for key, value in only.items()}
        else:
            for key in ("policy_name", "policy", "description", "severity", "action_blocked", "blocked", "penalty"):
                if hasattr(only, key):
                    source[key] = getattr(only, key)
    else:
        source |= dict(zip(("policy_name", "description", "severity", "blocked"), report, strict=False))
    policy = source.get("policy_name", source.get("policy"))
    given: Any = source.get("severity")
    written: Any = getattr(given, "value", given)
    severity: Any = written.strip().lower() if isinstance(written, str) else None
    blocked = source.get("action_blocked", source.get("blocked"))
    if policy is None or severity not in _SEVERITIES or not isinstance(blocked, bool):
        # What is unclear must not pass for harmless.
        what = ", ".join(repr(part)[:200] for part in report) or repr(source)[:200]
        return PolicyViolation(
            violation_type=PolicyViolationType.BLOCKED,
            policy_name=str(policy or "unknown"),
            description=f"The kernel reported something unclear: {what}",
            severity=severity if severity in _SEVERITIES else Severity.HIGH.value,
            action_blocked=True,
        )
    return PolicyViolation(
        violation_type=PolicyViolationType.BLOCKED if blocked else PolicyViolationType.WARNED,
        policy_name=str(policy),
        description=str(source.get("description", "")),
        severity=severity,
        action_blocked=blocked,
    )


def _named_rollout(report: tuple[Any, ...], named: Mapping[str, Any]) -> str | None:
    for source in (named, *report):
        found = source.get("rollout_id") if isinstance(source, Mapping) else getattr(source, "rollout_id", None)
        if isinstance(found, str):
            return found
    scope = current_scope()
    return None if scope is None else scope.rollout_id
