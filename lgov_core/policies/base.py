"""What a policy is: something that judges one action at a time."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from lgov_core.types import Action, Decision, Effect, Severity


@runtime_checkable
class Policy(Protocol):
    """Judges actions.

    ``judge`` returns a `Decision`, or None when the policy has no opinion on this action (which is not an allow: a set
    whose policies all have no opinion falls back to its default). It may be called from several threads at once. When it
    raises, the caller denies. ``bounded`` says that its cost is bounded by construction, so that it may run without a
    watchdog; leave it out (or False) for anything that may wait.
    """

    name: str

    def judge(self, action: Action) -> Decision | None:
        """The verdict on ``action``, or None for no opinion."""
        ...


class BoundedPolicy:
    """Base of the built-in policies: names itself, promises bounded cost, and shortens the making of decisions."""

    bounded: ClassVar[bool] = True
    name: str

    def allow(self, rule: str = "") -> Decision:
        """An allow by this policy."""
        return Decision(Effect.ALLOW, policy=self.name, rule=rule)

    def deny(self, rule: str, reason: str, severity: Severity = Severity.HIGH) -> Decision:
        """A deny by this policy: ``rule`` is a stable slug, ``reason`` a sentence the model can act on."""
        return Decision(Effect.DENY, policy=self.name, rule=rule, reason=reason, severity=severity)
