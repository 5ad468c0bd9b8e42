"""What a policy is: something that judges one action at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self, TypeAlias, runtime_checkable

from lgov_core.types import Action, Decision, Effect, Point, Severity


@runtime_checkable
class Policy(Protocol):
    """Judges actions.

    ``judge`` returns a `Decision`, or None when the policy has no opinion on this action (which is not an allow: a set
    whose policies all have no opinion falls back to its default). It may be called from several threads at once. When it
    raises, the caller denies. ``bounded`` says that its cost is bounded by construction, so that it may run without a
    watchdog; leave it out (or False) for anything that may wait.

    More attributes are optional. ``default_points`` are the points at which a rule that names none asks the policy; a
    policy without them is asked at every point.
    ``observe(event)`` makes it an `ObservingPolicy`. ``continue_from(previous)`` takes over what ``previous``, the policy of
    the same rule before its file was changed, has counted; see `ReloadingPolicySet`. ``deferred`` (True) has it asked
    after all others, and only about what none of them denies. ``timeout_s`` is how long the governor waits for one that is
    not bounded, when that is longer than usual.
    """

    name: str

    def judge(self, action: Action) -> Decision | None:
        """The verdict on ``action``, or None for no opinion."""
        ...


@runtime_checkable
class ObservingPolicy(Protocol):
    """A policy that is also notified of decisions and outcomes, because it keeps count of something.

    ``observe`` gets every event that ``lgov_observe`` gets, on the thread where it happened, after the decision is
    committed: an ``ObservedDecision`` (which says whether what the policy allowed was denied by another), a
    ``ToolOutcome``, and so on. It must not block. When it raises, the error is counted on the governor.
    """

    name: str

    def observe(self, event: Any) -> None:
        """Takes note of ``event``."""
        ...


#: Makes a policy: called with the rule's name as ``name`` and the entries of ``with`` as keyword arguments.
PolicyFactory: TypeAlias = Callable[..., Policy]


class BoundedPolicy:
    """Base of the built-in policies: remembers what it was made with, and shortens the making of decisions.

    It promises bounded cost; a policy that may wait says so by ``bounded = False``.
    """

    bounded: bool = True
    default_points: ClassVar[tuple[Point, ...]] = (Point.PRE_TOOL_CALL,)
    name: str
    #: What it was made with, by option: for the digest of the set it is in.
    made_with: Mapping[str, Any]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Remembers what the policy is made with."""
        made = super().__new__(cls)
        names = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
        made.made_with = MappingProxyType({**dict(zip(names, args, strict=False)), **options})
        return made

    def allow(self, rule: str = "") -> Decision:
        """An allow by this policy."""
        return Decision(Effect.ALLOW, self.name, rule)

    def deny(self, rule: str, reason: str, severity: Severity = Severity.HIGH) -> Decision:
        """A deny by this policy: ``rule`` is a stable slug, ``reason`` a sentence the model can act on."""
        return Decision(Effect.DENY, self.name, rule, reason, severity)

    def escalate(self, rule: str, reason: str, severity: Severity = Severity.HIGH) -> Decision:
        """Blocks until the call is approved; arguments as for `deny`."""
        return Decision(Effect.ESCALATE, policy=self.name, rule=rule, reason=reason, severity=severity)

    def transform(
        self, rule: str, reason: str, *, arguments: Mapping[str, Any] | None = None, text: str | None = None
    ) -> Decision:
        """Lets the action go on with ``arguments`` or ``text`` (or both) in place of its own."""
        return Decision(Effect.TRANSFORM, policy=self.name, rule=rule, reason=reason, arguments=arguments, text=text)
