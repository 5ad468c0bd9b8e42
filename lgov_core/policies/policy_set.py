"""PolicySet: several policies, each with the actions it covers, that judge as one and fail closed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from lgov_core.errors import PolicyError
from lgov_core.flow import run_flow
from lgov_core.governor.judging import RuleVerdict, judge_set
from lgov_core.governor.options import one_of
from lgov_core.governor.rules import Default, OrderedRules, Rule, by_rules
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.options import digest_of
from lgov_core.types import Action, Decision, Effect, ObservingPolicy, Point, Policy, Severity, new_id

SetMode = Literal["enforce", "shadow"]


class ConstantPolicy(BoundedPolicy):
    """Gives the same answer to every action it is asked about. May be called from several threads at once."""

    permits = True

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
        return Decision(self.effect, self.name, self.effect.label, reason, severity)


class PolicySet(OrderedRules):
    """Judges with every rule that covers an action.

    A bare policy among ``rules`` is a `Rule` without further restriction. Rules are asked in order, those whose policy is
    ``deferred`` (approvals) last, and only when no other denies. Transforms fold: a later rule gets the arguments as the
    earlier ones left them; then the most severe effect wins, of equals the deferred rule's, then the first's. A policy that
    raises, or answers anything but a `Decision` or None, is a deny by its rule (``policy-error``), as is a condition that
    cannot be determined (``condition-error``); the others are still asked. A policy that does not promise bounded cost gets a
    copy of the arguments.

    A call (``pre_tool_call``) is allowed when a rule that ``permits`` answers and no rule blocks; ``default`` is the answer
    when no such rule does. A rule of a kind that only restricts (personal data, budgets, ...) never allows, whatever it
    answers; one whose policy returns None does not cover the action. At other points no rule has to permit.

    In every decision and part ``policy`` is the rule's name, ``rule`` a slug, and ``reason`` is never empty. With ``mode``
    ``shadow`` everything is judged and recorded in ``parts`` (marked ``shadowed``), nothing is blocked or changed.
    ``digest`` is a SHA-256 in hex: of the document the set was loaded from, or else of what `digest_of` says.

    A set is a `Policy`, ``bounded`` when all its policies are; a governor walks its rules in their place among its own
    (`lgov_core.governor.judging`). May be called from several threads at once. Fails closed.
    """

    default_points: ClassVar[tuple[Point, ...]] = tuple(Point)
    permits: ClassVar[bool] = True

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
        one_of(name, "default", default, get_args(Default))
        one_of(name, "mode", mode, get_args(SetMode))
        if isinstance(rules, str) or not isinstance(rules, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"{name}: {rules!r} is not a list of rules", hint="write PolicySet([policy])")
        listed = [rule if isinstance(rule, Rule) else Rule(rule) for rule in rules]
        super().__init__(listed, default=default, shadow=mode == "shadow", name=name)
        self.mode: SetMode = mode
        self.version = version
        self.reads_replies = any(rule.reads_replies for rule in self.rules)
        self.bounded = all(rule.bounded for rule in self.rules)
        self.digest = digest if digest is not None else digest_of(self.rules, default, mode, name, version)
        policies = {id(rule.policy): rule.policy for rule in self.rules}
        self._observing = tuple(policy for policy in policies.values() if isinstance(policy, ObservingPolicy))
        self.stateful = any(getattr(policy, "stateful", True) for policy in self._observing)
        waits = [getattr(rule.policy, "timeout_s", None) for rule in self.rules]
        self.timeout_s = max((wait for wait in waits if isinstance(wait, int | float)), default=None)

    @classmethod
    def of(cls, *policies: Policy, default: Default = "deny") -> PolicySet:
        """An enforcing set of ``policies``, in this order."""
        return cls(policies, default=default)

    def in_shadow(self) -> PolicySet:
        """The same set, judging and recording without enforcing."""
        return PolicySet(
            self.rules, default=self.default, mode="shadow", name=self.name, version=self.version, digest=self.digest
        )

    @by_rules
    def judge(self, action: Action) -> Decision:
        """The combined verdict; never None, because a set always has its default.

        Without a governor there is no time limit: each policy is called in the caller's thread.
        """
        return run_flow(judge_set(self, action))

    def ping(self) -> None:
        """Raises what a policy's ``ping`` raises: it cannot be asked now."""
        for rule in self.rules:
            getattr(rule.policy, "ping", lambda: None)()

    def flush(self) -> None:
        """Has its policies write what they could not before."""
        for rule in self.rules:
            getattr(rule.policy, "flush", lambda: None)()

    def observe(self, event: Any) -> None:
        """Hands ``event`` to the policies that keep count; each gets it once. What one raises is raised at the end."""
        failed: Exception | None = None
        for policy in self._observing:
            try:
                policy.observe(event)
            except Exception as error:  # noqa: BLE001 - the others get the event all the same
                failed = failed or error
        if failed is not None:
            raise failed


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdicts of all rules in order, and the answer of the set as a whole."""

    verdicts: tuple[RuleVerdict, ...]
    decision: Decision


def explain(policies: PolicySet, action: Action) -> Explanation:
    """Judges ``action`` and keeps the verdict of every rule on the way.

    Policies that keep count (budgets, rates, loops) count it: use a set of its own.
    """
    if action.operation_id is None:
        action = replace(action, operation_id=new_id("op"))  # by it stateful policies recognise the action
    verdicts: list[RuleVerdict] = []
    decision = run_flow(judge_set(policies, action, trace=verdicts))
    return Explanation(tuple(verdicts), decision)


def in_shadow_mode(policies: Iterable[Policy]) -> bool:
    """True where one of these policies enforces nothing."""
    return any(isinstance(policy, PolicySet) and policy.mode == "shadow" for policy in policies)


def trusted_programs(policies: Iterable[Policy]) -> list[str]:
    """The programs that rules of these policies let run the folder's code outside of a box: their ``runs_code``."""
    programs: dict[str, None] = {}
    for policy in policies:
        if getattr(policy.judge, "by_rules", False):
            members: OrderedRules = policy.in_force()  # pyright: ignore[reportAttributeAccessIssue]
            programs.update(dict.fromkeys(trusted_programs(rule.policy for rule in members.rules)))
        programs.update(dict.fromkeys(getattr(policy, "runs_code", ())))
    return list(programs)
