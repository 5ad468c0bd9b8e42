"""PolicySet: several policies, each with the actions it covers, that judge as one and fail closed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Final, Literal, get_args

from lgov_core.errors import PolicyError
from lgov_core.governor.combine import BadAnswer, checked, combine, complete, fault, fold, private_copy
from lgov_core.governor.conditions import ConditionError
from lgov_core.governor.options import one_of
from lgov_core.governor.rules import Rule, digest_of
from lgov_core.hookspecs import hookimpl
from lgov_core.policies.base import BoundedPolicy
from lgov_core.types import Action, Decision, Effect, ObservingPolicy, Point, Policy, Severity

#: The rule of a set's own answer, where none of its rules answers.
DEFAULT_RULE: Final = "default"
Default = Literal["deny", "allow"]
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


class _RulesByName:
    """The rules that may reach an action of one point, by its name: most rules name their tools in full."""

    def __init__(self, rules: Sequence[Rule], point: Point) -> None:
        self._named: dict[str, list[tuple[int, Rule]]] = {}
        self._always: list[tuple[int, Rule]] = []
        for place in enumerate(rules):
            tools = place[1].tools
            if point in place[1].listens_at or any(char in glob for glob in tools for char in "*?["):
                self._always.append(place)
            elif point in place[1].on:
                for name in set(tools):
                    self._named.setdefault(name, []).append(place)

    def rules_for(self, name: str) -> list[Rule]:
        """In the order of the set."""
        return [rule for _, rule in sorted([*self._named.get(name, ()), *self._always], key=itemgetter(0))]


class PolicySet:
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

    A set is a `Policy`, ``bounded`` when all its policies are, and a plugin with the eight decision hooks: give it to a
    governor one way or the other, not both. May be called from several threads at once. Fails closed.
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
        made = [rule if isinstance(rule, Rule) else Rule(rule) for rule in rules]
        self.rules = tuple(sorted(made, key=lambda rule: rule.deferred))
        self.default: Default = default
        self.mode: SetMode = mode
        self.name = name
        self.version = version
        self.reads_replies = any(rule.reads_replies for rule in self.rules)
        self.bounded = all(rule.bounded for rule in self.rules)
        self.digest = digest if digest is not None else digest_of(self.rules, default, mode, name, version)
        self._by_name = {point: _RulesByName(self.rules, point) for point in Point}
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

    def judge(self, action: Action) -> Decision:
        """The combined verdict; never None, because a set always has its default."""
        taken: list[Decision] = []
        permitted = False
        current = action
        if type(action.name) is not str or not action.name.isprintable():  # globs of names mean one line
            taken.append(self._deny("action-unclear", "The name of this action is not text on one line."))
        for rule in () if taken else self._by_name[action.point].rules_for(action.name):
            if rule.deferred and any(decision.effect is Effect.DENY for decision in taken):
                continue
            decision = ask(rule, current)
            if decision is not None:
                # Of equal answers the first is shown and searched: that of a person, where one was asked.
                taken.insert(0 if rule.deferred else len(taken), decision)
                current = fold(current, decision)
                permitted = permitted or rule.permits
        if not permitted and not any(decision.effect is Effect.DENY for decision in taken):
            taken += self._by_default(action, covered=bool(taken))
        shadow_of = self.name if self.mode == "shadow" else None
        return combine(taken, original=action, folded=current, shadow_of=shadow_of)

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

    def _by_default(self, action: Action, *, covered: bool) -> list[Decision]:
        """The set's own answer to what no rule permits; none where rules of restricting kinds have answered already."""
        if action.point is Point.PRE_TOOL_CALL and self.default == "deny":
            why = ": the rules that cover it only restrict." if covered else "."
            return [self._deny(DEFAULT_RULE, f"No policy allows {action.name[:80]}{why}")]
        why = "the default is allow" if action.point is Point.PRE_TOOL_CALL else "only tool calls need one"
        return [] if covered else [Decision(Effect.ALLOW, self.name, DEFAULT_RULE, f"No rule covers this; {why}.")]

    def _deny(self, rule: str, reason: str) -> Decision:
        return Decision(Effect.DENY, self.name, rule, reason, Severity.MEDIUM)

    # ------------------------------------------------------------------ the set as a plugin

    @hookimpl
    def lgov_agent_startup(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs`; the other seven decision hooks do the same at their points."""
        return self.judge(action)

    lgov_input = lgov_pre_model_call = lgov_post_model_call = lgov_agent_startup
    lgov_pre_tool_call = lgov_post_tool_call = lgov_output = lgov_agent_shutdown = lgov_agent_startup

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """See `lgov_core.hookspecs.lgov_observe`."""
        self.observe(event)


def ask(rule: Rule, action: Action) -> Decision | None:
    """What ``rule`` answers to an action; None when it does not cover it.

    Never raises an `Exception`: what goes wrong is a deny. The answer bears the name of the rule, a slug and a reason.
    """
    if not rule.reaches(action):
        return None
    if rule.condition is not None and action.point not in rule.listens_at:
        try:
            if not rule.condition.holds(action):
                return None
        except ConditionError as error:
            reason = f"The condition of rule {rule.name} cannot be checked: {error}."
            return Decision(
                Effect.DENY, rule.name, "condition-error", reason, Severity.MEDIUM, fault=error.not_the_agents
            )
        except Exception as error:  # noqa: BLE001 - as below
            return fault(
                rule.name, "condition-error", f"The condition of rule {rule.name} raised {type(error).__name__}."
            )
    try:
        if not rule.bounded:
            action = action.changed(arguments=private_copy(action.arguments), context=private_copy(action.context))
        answer = checked(rule.policy.judge(action))
    except BadAnswer as error:
        return fault(rule.name, "policy-error", f"The policy {rule.name} {error}.")
    except Exception as error:  # noqa: BLE001 - whatever a policy raises is its denial
        # The class of an error is named, its message is not: it may hold what the tool was called with.
        return fault(rule.name, "policy-error", f"The policy {rule.name} raised {type(error).__name__}.")
    if answer is None:
        return None
    severity = rule.severity if answer.effect >= Effect.ESCALATE else None
    return complete(answer, answer.policy if answer.parts else rule.name, severity)
