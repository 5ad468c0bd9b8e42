"""PolicySet: several policies, each with the actions it covers, that judge as one and fail closed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from lgov_core.errors import PolicyError
from lgov_core.hookspecs import hookimpl
from lgov_core.policies.base import BoundedPolicy, ObservingPolicy, Policy
from lgov_core.policies.combine import combine, fold
from lgov_core.policies.options import string_tuple
from lgov_core.types import Action, Decision, Effect, Point, Severity

Default = Literal["deny", "allow"]
SetMode = Literal["enforce", "shadow"]


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A policy and the actions it covers.

    ``on`` are the points; ``tools`` and ``agents`` are globs (letter case matters) for the action's name and agent; an
    action without an agent is covered by ``*`` only. ``severity`` replaces that of the policy's blocking decisions.
    """

    policy: Policy
    name: str = ""
    on: tuple[Point, ...] = (Point.PRE_TOOL_CALL,)
    tools: tuple[str, ...] = ("*",)
    agents: tuple[str, ...] = ("*",)
    severity: Severity | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(
                f"rule {self.name!r}: {self.policy!r} is no policy", hint="a policy has a name and judge()"
            )
        object.__setattr__(self, "name", self.name or self.policy.name)
        object.__setattr__(self, "on", tuple(Point(point) for point in self.on))
        object.__setattr__(self, "tools", string_tuple(self.name, "tools", self.tools))
        object.__setattr__(self, "agents", string_tuple(self.name, "agents", self.agents))

    def covers(self, action: Action) -> bool:
        """Whether the policy is asked about ``action``."""
        return (
            action.point in self.on
            and any(glob == "*" or fnmatchcase(action.name, glob) for glob in self.tools)
            and any(
                glob == "*" or (action.agent is not None and fnmatchcase(action.agent, glob)) for glob in self.agents
            )
        )


class ConstantPolicy(BoundedPolicy):
    """Gives the same answer to every action it is asked about. May be called from several threads at once."""

    def __init__(
        self, effect: Effect, *, name: str = "constant", reason: str = "", severity: Severity = Severity.HIGH
    ) -> None:
        if effect is Effect.TRANSFORM or not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"{name}: a constant answer is allow, warn, escalate or deny, with a reason in words")
        self.effect = effect
        self.name = name
        self.reason = reason
        self.severity = severity

    def judge(self, action: Action) -> Decision | None:
        """The one answer."""
        blocks = self.effect >= Effect.ESCALATE
        reason = self.reason or (f"{action.name[:80]} is not allowed." if blocks else "")
        severity = self.severity if blocks else Severity.LOW
        return Decision(self.effect, policy=self.name, rule=self.effect.label, reason=reason, severity=severity)


class PolicySet:
    """Judges with every rule that covers an action.

    A bare policy among ``rules`` is asked at every point. Transforms fold in order: a later rule sees the arguments as
    the earlier ones left them; then the most severe effect wins. A policy that raises, or answers something that is not
    a `Decision` or None, counts as a deny in its slot (rule ``policy-error``) and the others are still asked.

    ``default`` is the answer to an act (``pre_tool_call``) that no rule covers, or on which every rule that does has no
    opinion; at other points such an action is allowed. A set without rules therefore denies every act. With ``mode``
    ``shadow`` everything is judged and recorded in ``parts`` (marked ``shadowed``), nothing is blocked or changed.
    ``digest`` is the SHA-256 of the document the set was loaded from, in hex, or None.

    A set is a `Policy`, ``bounded`` when all its policies are, and a plugin: it implements the eight decision hooks.
    Give it to a governor one way or the other, not both. May be called from several threads at once. Fails closed.
    """

    def __init__(
        self,
        rules: Iterable[Rule | Policy] = (),
        *,
        default: Default = "deny",
        mode: SetMode = "enforce",
        name: str = "policies",
        version: int = 1,
        digest: str | None = None,
    ) -> None:
        if default not in ("deny", "allow"):
            raise PolicyError(f"{name}: default {default!r} is unknown", hint="write deny or allow")
        if mode not in ("enforce", "shadow"):
            raise PolicyError(f"{name}: mode {mode!r} is unknown", hint="write enforce or shadow")
        self.rules = tuple(rule if isinstance(rule, Rule) else Rule(rule, on=tuple(Point)) for rule in rules)
        self.default: Default = default
        self.mode: SetMode = mode
        self.name = name
        self.version = version
        self.digest = digest
        self.bounded = all(bool(getattr(rule.policy, "bounded", False)) for rule in self.rules)
        policies = {id(rule.policy): rule.policy for rule in self.rules}
        self._observing = tuple(policy for policy in policies.values() if isinstance(policy, ObservingPolicy))

    @classmethod
    def of(cls, *policies: Policy, default: Default = "deny") -> PolicySet:
        """An enforcing set of ``policies``, in this order."""
        return cls(policies, default=default)

    def in_shadow(self) -> PolicySet:
        """The same set, judging and recording without enforcing."""
        return PolicySet(
            self.rules,
            default=self.default,
            mode="shadow",
            name=self.name,
            version=self.version,
            digest=self.digest,
        )

    def judge(self, action: Action) -> Decision:
        """The combined verdict; never None, because a set always has its default."""
        taken: list[Decision] = []
        current = action
        for rule in self.rules:
            if not rule.covers(current):
                continue
            decision = ask(rule, current)
            if decision is not None:
                taken.append(decision)
                current = fold(current, decision)
        if not taken:
            taken.append(self._by_default(action))
        if self.mode == "shadow":
            parts = tuple(replace(p, shadowed=True) for decision in taken for p in (decision.parts or (decision,)))
            return Decision(Effect.ALLOW, policy=self.name, rule="shadow", parts=parts, shadowed=True)
        return combine(taken, original=action, folded=current)

    def observe(self, event: Any) -> None:
        """Hands ``event`` to the policies that keep count; each gets it once. What one raises is raised at the end."""
        failed: Exception | None = None
        for policy in self._observing:
            try:
                policy.observe(event)
            except Exception as error:  # noqa: BLE001 - the others must hear of it all the same
                failed = failed or error
        if failed is not None:
            raise failed

    def _by_default(self, action: Action) -> Decision:
        if action.point is not Point.PRE_TOOL_CALL or self.default == "allow":
            return Decision(Effect.ALLOW, policy=self.name, rule="default")
        reason = f"No policy allows {action.name[:80]}."
        return Decision(Effect.DENY, policy=self.name, rule="default", reason=reason, severity=Severity.MEDIUM)

    # ------------------------------------------------------------------ the set as a plugin

    @hookimpl
    def lgov_agent_startup(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_agent_startup`."""
        return self.judge(action)

    @hookimpl
    def lgov_input(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_input`."""
        return self.judge(action)

    @hookimpl
    def lgov_pre_model_call(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_pre_model_call`."""
        return self.judge(action)

    @hookimpl
    def lgov_post_model_call(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_post_model_call`."""
        return self.judge(action)

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_pre_tool_call`."""
        return self.judge(action)

    @hookimpl
    def lgov_post_tool_call(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_post_tool_call`."""
        return self.judge(action)

    @hookimpl
    def lgov_output(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_output`."""
        return self.judge(action)

    @hookimpl
    def lgov_agent_shutdown(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_agent_shutdown`."""
        return self.judge(action)

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """See `lgov_core.hookspecs.lgov_observe`."""
        self.observe(event)


def ask(rule: Rule, action: Action) -> Decision | None:
    """What the rule's policy says about an action that the rule covers; whatever goes wrong there is a deny."""
    try:
        answer: object = rule.policy.judge(action)
    except Exception as error:  # noqa: BLE001 - whatever a policy raises is a deny in its slot
        return _broken(rule, f"raised {type(error).__name__}")
    if answer is None:
        return None
    if inspect.iscoroutine(answer):
        answer.close()
    if not isinstance(answer, Decision):  # pyright: ignore[reportUnnecessaryIsInstance]
        return _broken(rule, f"answered {type(answer).__name__} instead of a Decision")
    if not isinstance(answer.effect, Effect):  # pyright: ignore[reportUnnecessaryIsInstance]
        return _broken(rule, "answered an effect that does not exist")
    if answer.effect is Effect.TRANSFORM and answer.arguments is None and answer.text is None:
        return _broken(rule, "answered a transform without saying into what")
    if rule.severity is not None and answer.blocks:
        return replace(answer, severity=rule.severity)
    return answer


def _broken(rule: Rule, what: str) -> Decision:
    # The class of an error is named, its message is not: it may hold what the tool was called with.
    name = rule.policy.name
    reason = f"The policy {name} {what}."
    return Decision(Effect.DENY, policy=name, rule="policy-error", reason=reason, severity=Severity.CRITICAL)
