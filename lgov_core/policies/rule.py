"""Rule: a policy and the actions that it covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.errors import PolicyError
from lgov_core.policies.conditions.conditions import Condition, ConditionError, condition_of
from lgov_core.policies.options import matches_any, string_tuple
from lgov_core.types import Action, Point, Policy, Severity


class Rule:
    """A policy and the actions it covers. Immutable once made; may be used from several threads at once.

    ``on`` are the points; when none are given, the policy's ``default_points``, and every point when it has none. At those
    among them that the policy has in ``listens_at`` it only takes note, so there nothing narrows the rule further.
    ``tools`` and ``agents`` are globs (letter case matters) for the action's name and agent; an action without an agent
    is covered by ``*`` only. ``when`` narrows it further: a condition (`Condition`, the mapping that a policy file would
    hold, or CEL as text) on the action as the transforms before it left it. When it is false the rule does not cover the
    action; when it cannot be evaluated, the action is denied. ``severity`` replaces that of the policy's blocking decisions.
    ``permits`` says whether its allow can permit an act, or only leaves it to other rules: as the policy's own ``permits``
    says unless given, and True for a policy without one.

    Raises `PolicyError` for what has no meaning.
    """

    __slots__ = (
        "agents", "bounded", "condition", "deferred", "listens_at", "name", "on", "permits", "policy", "reads_replies",
        "severity", "tools",
    )  # fmt: skip

    def __init__(
        self,
        policy: Policy,
        name: str = "",
        on: Sequence[Point] = (),
        tools: Sequence[str] = ("*",),
        agents: Sequence[str] = ("*",),
        severity: Severity | None = None,
        when: Condition | Mapping[str, Any] | str | None = None,
        permits: bool | None = None,
    ) -> None:
        if not isinstance(policy, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"rule {name!r}: {policy!r} is not a policy", hint="a policy has a name and judge()")
        self.policy = policy
        self.name = name or policy.name
        if not isinstance(self.name, str) or not self.name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"a rule's name is {self.name!r}", hint="give the rule or its policy a name")
        self.on = _points(self.name, on or getattr(policy, "default_points", tuple(Point)))
        self.listens_at = frozenset(self.on) & frozenset[Point](getattr(policy, "listens_at", ()))
        judged_texts = {Point.POST_MODEL_CALL, Point.OUTPUT} & (frozenset(self.on) - self.listens_at)
        #: Whether a streamed text must wait for the rule's decision.
        self.reads_replies = bool(judged_texts) and bool(getattr(policy, "reads_replies", True))
        self.tools = string_tuple(self.name, "tools", tools)
        self.agents = string_tuple(self.name, "agents", agents)
        self.severity = severity
        self.condition = None if when is None else condition_of(when, rule=self.name)
        self.bounded = bool(getattr(policy, "bounded", False))
        self.permits = bool(getattr(policy, "permits", True) if permits is None else permits)
        self.deferred = bool(getattr(policy, "deferred", False))

    def covers(self, action: Action) -> bool:
        """Whether the policy is asked about ``action``. A condition that cannot be evaluated counts: it denies."""
        if not self.reaches(action):
            return False
        if action.point in self.listens_at:
            return True
        try:
            return self.condition is None or self.condition.holds(action)
        except ConditionError:
            return True

    def reaches(self, action: Action) -> bool:
        """Whether point, name and agent are those of the rule, whatever its condition says."""
        if action.point in self.listens_at:
            return True
        return (
            action.point in self.on
            and matches_any(action.name, self.tools)
            and ("*" in self.agents or (isinstance(action.agent, str) and matches_any(action.agent, self.agents)))
        )


def _points(rule: str, points: object) -> tuple[Point, ...]:
    if isinstance(points, str) or not isinstance(points, Sequence):
        raise PolicyError(f"rule {rule}: on must be a list of points, not {points!r}", hint="write on: [...]")
    known = ", ".join(point.value for point in Point)
    found: list[Point] = []
    for point in points:
        try:
            found.append(Point(point))
        except ValueError as error:
            raise PolicyError(f"rule {rule}: there is no point {point!r}", hint=f"write one of: {known}") from error
    return tuple(found)
