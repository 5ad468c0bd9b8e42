"""The rules that an action is judged by, as data: a rule, and an ordered set of rules with a default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import pluggy

from lgov_core.errors import PolicyError
from lgov_core.governor.conditions import Condition, condition_of
from lgov_core.governor.options import string_tuple
from lgov_core.governor.patterns import matches_any
from lgov_core.types import Action, Decision, Effect, Point, Policy, Severity

#: The rule of a set's own answer, where none of its rules answers.
DEFAULT_RULE: Final = "default"
Default: TypeAlias = Literal["deny", "allow"]
_Judge = TypeVar("_Judge", bound=Callable[..., Decision])


@dataclass(slots=True, eq=False, repr=False)
class Rule:
    """A policy and the actions it covers. Immutable once made; may be used from several threads at once.

    ``on`` are the points (default: the policy's ``default_points``, or every point), with those that its ``settles_at`` has
    for them. At those among them in its ``listens_at`` it only takes note, so there nothing narrows the rule further.
    ``tools`` and ``agents`` are globs (letter case matters) for the action's name and agent; an action without an agent
    is covered by ``*`` only. ``when`` narrows it further: a condition (`Condition`, the mapping that a policy file would
    hold, or CEL as text) on the action as the transforms before it left it. When it is false the rule does not cover the
    action; when it cannot be evaluated, the action is denied. ``severity`` replaces that of the policy's blocking decisions.
    ``permits`` says whether its allow can permit an act, or only leaves it to other rules: as the policy's own ``permits``
    says unless given, and True for a policy without one.

    Raises `PolicyError` for what has no meaning.
    """

    policy: Policy
    name: str = ""
    on: Sequence[Point] = ()
    tools: Sequence[str] = ("*",)
    agents: Sequence[str] = ("*",)
    severity: Severity | None = None
    when: InitVar[Condition | Mapping[str, Any] | str | None] = None
    permits: bool | None = None
    condition: Condition | None = field(init=False)
    listens_at: frozenset[Point] = field(init=False)
    #: Whether a streamed text must wait for the rule's decision.
    reads_replies: bool = field(init=False)
    bounded: bool = field(init=False)
    deferred: bool = field(init=False)
    #: The time limit of the policy's own, in seconds; None without one.
    timeout_s: float | None = field(init=False)
    #: The rules of a policy that is nothing but rules, as they are now; None for any other policy.
    members: Callable[[], OrderedRules] | None = field(init=False, default=None)
    #: Whether the policy is called in the thread of the caller.
    in_place: bool = field(init=False)
    #: Whether a judgement may have to wait.
    waits: bool = field(init=False)
    #: Whether it stands outside of sets: its decisions keep their names, and it may answer an awaitable.
    standalone: bool = field(init=False, default=False)

    def __post_init__(self, when: Condition | Mapping[str, Any] | str | None) -> None:
        policy = self.policy
        if not isinstance(policy, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"rule {self.name!r}: {policy!r} is not a policy", hint="a policy has a name and judge()")
        self.name = self.name or policy.name
        if not isinstance(self.name, str) or not self.name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"a rule's name is {self.name!r}", hint="give the rule or its policy a name")
        on = _points(self.name, self.on or getattr(policy, "default_points", tuple(Point)))
        later: Mapping[Point, Point] = getattr(policy, "settles_at", {})
        self.on = tuple(dict.fromkeys((*on, *(later[point] for point in on if point in later))))
        self.listens_at = frozenset(self.on) & frozenset[Point](getattr(policy, "listens_at", ()))
        judged_texts = {Point.POST_MODEL_CALL, Point.OUTPUT} & (frozenset(self.on) - self.listens_at)
        self.reads_replies = bool(judged_texts) and bool(getattr(policy, "reads_replies", True))
        self.tools = string_tuple(self.name, "tools", self.tools)
        self.agents = string_tuple(self.name, "agents", self.agents)
        self.condition = None if when is None else condition_of(when, rule=self.name)
        self.bounded = bool(getattr(policy, "bounded", False))
        self.permits = bool(getattr(policy, "permits", True) if self.permits is None else self.permits)
        self.deferred = bool(getattr(policy, "deferred", False))
        timeout_s = getattr(policy, "timeout_s", None)
        self.timeout_s = float(timeout_s) if isinstance(timeout_s, int | float) else None
        if getattr(policy.judge, "by_rules", False):
            self.members = policy.in_force  # pyright: ignore[reportAttributeAccessIssue]
        self.in_place = self.bounded or inspect.iscoroutinefunction(policy.judge)
        self.waits = not self.bounded or self.members is not None

    def reaches(self, action: Action) -> bool:
        """Returns whether point, name and agent are those of the rule, whatever its condition says."""
        return (
            action.point in self.on
            and ("*" in self.tools or matches_any(action.name, self.tools))
            and ("*" in self.agents or (isinstance(action.agent, str) and matches_any(action.agent, self.agents)))
        )


def own_rule(policy: Policy, name: str) -> Rule:
    """The rule of a policy that was given to a governor directly: it is asked about everything."""
    rule = Rule(policy, name or type(policy).__name__, on=tuple(Point))
    rule.standalone = rule.waits = True
    return rule


def hook_rule(impl: pluggy.HookImpl) -> Rule:
    """The rule of a decision hook of a plug-in."""
    hook = _Hook(impl)
    return own_rule(cast(Policy, hook), hook.name)


class _Hook:
    """A decision hook as a policy, with what its plug-in says of its cost and its place."""

    def __init__(self, impl: pluggy.HookImpl) -> None:
        self.name = impl.plugin_name
        self.judge: Callable[[Action], Any] = impl.function
        if "action" not in impl.argnames:
            self.judge = lambda _action: impl.function()
        self.bounded = bool(getattr(impl.plugin, "bounded", False))
        self.deferred = bool(getattr(impl.plugin, "deferred", False))
        self.timeout_s = getattr(impl.plugin, "timeout_s", None)
        self.reads_replies = getattr(impl.plugin, "reads_replies", True)


# ---------------------------------------------------------------------- sets


class OrderedRules:
    """Rules in the order in which they are asked, and the ``default`` for what none of them permits.

    In ``shadow`` mode everything is judged, and nothing is blocked or changed. Immutable.
    """

    def __init__(self, rules: Iterable[Rule], *, default: Default, shadow: bool, name: str) -> None:
        self.rules = tuple(sorted(rules, key=lambda rule: rule.deferred))
        self.default: Default = default
        self.shadow = shadow
        self.name = name
        # Most rules name their tools in full, so the rules of a name are known before it comes; None is any other name.
        self._named: dict[tuple[Point, str | None], tuple[Rule, ...]] = {}
        for point in Point:
            named: dict[str | None, list[Rule]] = {None: []}
            for rule in (rule for rule in self.rules if point in rule.on):
                if point in rule.listens_at or any(map(_is_glob, rule.tools)):
                    for listed in named.values():
                        listed.append(rule)
                else:
                    for tool in dict.fromkeys(rule.tools):
                        named.setdefault(tool, list(named[None])).append(rule)
            self._named.update({(point, name): tuple(listed) for name, listed in named.items()})

    def named(self, point: Point, name: str) -> tuple[Rule, ...]:
        """The rules that may cover an action of this name at this point, in order."""
        return self._named.get((point, name)) or self._named[point, None]

    def in_force(self) -> OrderedRules:
        """Itself: an evaluator walks its rules (`by_rules`)."""
        return self

    def by_default(self, action: Action, *, covered: bool) -> list[Decision]:
        """The set's own answer to what no rule permits; none where rules of restricting kinds have answered already."""
        if action.point is Point.PRE_TOOL_CALL and self.default == "deny":
            why = ": the rules that cover it only restrict." if covered else "."
            reason = f"No policy allows {action.name[:80]}{why}"
            return [Decision(Effect.DENY, self.name, DEFAULT_RULE, reason, Severity.MEDIUM)]
        why = "the default is allow" if action.point is Point.PRE_TOOL_CALL else "only tool calls need one"
        return [] if covered else [Decision(Effect.ALLOW, self.name, DEFAULT_RULE, f"No rule covers this; {why}.")]


def _is_glob(tool: str) -> bool:
    return any(character in tool for character in "*?[")


def by_rules(judge: _Judge) -> _Judge:
    """Marks the ``judge`` of a policy that is nothing but the rules that its ``in_force()`` returns.

    An evaluator then walks these rules itself. A subclass with another ``judge`` loses the mark, and is asked by it.
    """
    judge.by_rules = True  # pyright: ignore[reportFunctionMemberAccess]
    return judge


def _points(rule: str, points: object) -> tuple[Point, ...]:
    if isinstance(points, str) or not isinstance(points, Sequence):
        raise PolicyError(f"rule {rule}: on must be a list of points, not {points!r}", hint="write on: [...]")
    names = ", ".join(point.value for point in Point)
    converted: list[Point] = []
    for point in points:
        try:
            converted.append(Point(point))
        except ValueError as error:
            raise PolicyError(f"rule {rule}: there is no point {point!r}", hint=f"write one of: {names}") from error
    return tuple(converted)
