"""Rule: a policy and the actions that it covers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import Any, TypeAlias

from lgov_core.errors import PolicyError
from lgov_core.policies.base import Policy
from lgov_core.policies.conditions.conditions import Condition, ConditionError, condition_of
from lgov_core.policies.options import string_tuple
from lgov_core.types import Action, Point, Severity

#: Says whether a text fits one of several globs.
Fits: TypeAlias = Callable[[str], bool]

_WILD = re.compile(r"[*?\[]")
_EVERY_POINT = tuple(Point)


class Rule:
    """A policy and the actions it covers. Immutable once made; may be used from several threads at once.

    ``on`` are the points; when none are given, the policy's ``default_points``, and every point when it has none.
    ``tools`` and ``agents`` are globs (letter case matters) for the action's name and agent; an action without an agent
    is covered by ``*`` only. ``when`` narrows it further: a condition (`Condition`, the mapping that a policy file would
    hold, or CEL as text) on the action as the transforms before it left it. When it is false the rule does not cover the
    action; when it cannot be evaluated, the action is denied. ``severity`` replaces that of the policy's blocking decisions.

    Raises `PolicyError` for what has no meaning.
    """

    __slots__ = (
        "agents", "bounded", "condition", "deferred", "fits_agent", "fits_tool", "name", "on", "policy",
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
    ) -> None:
        if not isinstance(policy, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"rule {name!r}: {policy!r} is not a policy", hint="a policy has a name and judge()")
        self.policy = policy
        self.name = name or policy.name
        if not isinstance(self.name, str) or not self.name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"a rule's name is {self.name!r}", hint="give the rule or its policy a name")
        self.on = _points(self.name, on or getattr(policy, "default_points", _EVERY_POINT))
        self.tools = string_tuple(self.name, "tools", tools)
        self.agents = string_tuple(self.name, "agents", agents)
        self.severity = severity
        self.condition = None if when is None else condition_of(when, rule=self.name)
        self.bounded = bool(getattr(policy, "bounded", False))
        self.deferred = bool(getattr(policy, "deferred", False))
        #: Whether the name of a tool, or an agent, fits the globs; None for every name.
        self.fits_tool = None if "*" in self.tools else one_of_globs(self.tools)
        self.fits_agent = None if "*" in self.agents else one_of_globs(self.agents)

    def covers(self, action: Action) -> bool:
        """Whether the policy is asked about ``action``. A condition that cannot be evaluated counts: it denies."""
        if not self.reaches(action):
            return False
        try:
            return self.condition is None or self.condition.holds(action)
        except ConditionError:
            return True

    def reaches(self, action: Action) -> bool:
        """Whether point, name and agent are those of the rule, whatever its condition says."""
        return (
            action.point in self.on
            and (self.fits_tool is None or self.fits_tool(action.name))
            and (self.fits_agent is None or (action.agent is not None and self.fits_agent(action.agent)))
        )


def one_of_globs(globs: Sequence[str]) -> Fits:
    """A test whether a text fits one of ``globs``; letter case matters. Compiled once, here."""
    literal = frozenset(glob for glob in globs if not _WILD.search(glob))
    wild = tuple(re.compile(translate(glob)).match for glob in globs if _WILD.search(glob))
    return lambda text: text in literal or any(match(text) for match in wild)


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
