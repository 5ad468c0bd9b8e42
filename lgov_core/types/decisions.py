"""Decisions: what the policies answered to an action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Any, Final


class Effect(IntEnum):
    """The effect of a decision, ordered by severity: the greatest of several wins."""

    ALLOW = 0
    WARN = 1
    TRANSFORM = 2
    ESCALATE = 3
    DENY = 4

    @property
    def label(self) -> str:
        """The name in lower case, as it is written in records."""
        return _LABELS[self]


_LABELS = tuple(effect.name.lower() for effect in Effect)
#: The labels of the effects that block.
BLOCKING: Final = frozenset(_LABELS[Effect.ESCALATE :])


class Severity(StrEnum):
    """How bad the finding of a decision is."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


@dataclass(slots=True)
class Decision:
    """The judgement of one action.

    ``effect`` is what happens; ``blocks`` is true for deny and escalate. ``arguments`` (or ``text``) replaces the action's
    own when the effect is transform; on a combined decision it may also be set beside a warn. ``abort`` asks for the end of
    the run instead of a message to the model. ``parts`` holds the decisions that were combined into this one, in the order in
    which they were taken, an approval's first. ``decision_id`` is the id of its audit entry, set once the entry is committed.
    ``latency_us`` is the time the judgement took, in microseconds, without the commit. ``shadowed`` is true when the policy
    set is in shadow mode: the effect recorded in ``parts`` was not enforced (`unenforced`). ``policy_digest`` is that of the
    policies of the governor that took the decision, set by it. ``fault`` is true when the act was denied because the
    judgement itself failed (a policy that raised or timed out, a record that could not be written): it says nothing about the
    agent, so it is not a violation and earns no penalty. ``approval`` is the command that answers the request for approval
    behind the decision: for people, not for the model.

    Read-only by convention (freezing it would cost several times its construction): make a variant with `changed`.
    """

    effect: Effect
    policy: str
    rule: str = ""
    reason: str = ""
    severity: Severity = Severity.LOW
    abort: bool = False
    arguments: Mapping[str, Any] | None = None
    text: str | None = None
    parts: tuple[Decision, ...] = ()
    decision_id: str | None = None
    latency_us: float = 0.0
    shadowed: bool = False
    fault: bool = False
    policy_digest: str = ""
    approval: str = ""

    @property
    def unenforced(self) -> Decision | None:
        """The most severe part that shadow mode kept from being enforced; None when nothing more severe was decided."""
        parts = (component for component in self.parts if component.shadowed and component.effect > self.effect)
        return max(parts, key=lambda component: component.effect, default=None)

    @property
    def blocks(self) -> bool:
        """True where the act must not go on."""
        return self.effect >= Effect.ESCALATE

    def changed(self, **changes: Any) -> Decision:
        """A copy with the given fields replaced; None leaves a field as it is (`dataclasses.replace` sets it to None)."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def denial_message(self, *, after: bool = False) -> str:
        """The text that the model reads instead of a result: which policy blocked the call, why, and what to do about it.

        A denial says that a repetition will be denied too, an escalation that the call has to be approved first.
        ``after``: the call was made, and its result is denied.
        """
        where = f"{self.policy}/{self.rule}" if self.rule else self.policy
        reason = (self.reason or "not allowed").rstrip(".")
        if after:
            return f"DENIED by policy {where}: {reason}. It was run, but its result is withheld; do not repeat it."
        if self.effect is Effect.ESCALATE:
            return (
                f"NOT RUN YET, needs approval by policy {where}: {reason}. Do something else meanwhile, or say that you are"
                " waiting; once it is approved, make exactly the same call again."
            )
        return f"DENIED by policy {where}: {reason}. It was not run; do not repeat it."


ALLOW = Decision(Effect.ALLOW, policy="lgov", rule="default", reason="Nothing speaks against it.")
