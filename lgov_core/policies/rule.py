"""Rule: a policy, and the actions about which it is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A policy and the actions it covers.

    ``on`` are the points; when none are given, the policy's ``default_points``, and every point when it has none.
    ``tools`` and ``agents`` are globs (letter case matters) for the action's name and agent; an action without an agent
    is covered by ``*`` only. ``when`` narrows it further: a condition (`Condition`, the mapping that a policy file would
    hold, or CEL as text) on the action as the transforms before it left it. When it is false the rule does not cover the
    action; when it cannot be told, the action is denied. ``severity`` replaces that of the policy's blocking decisions.

    Raises `PolicyError` for what has no meaning.
    """

    policy: Policy
    name: str = ""
    on: Sequence[Point] = ()
    tools: Sequence[str] = ("*",)
    agents: Sequence[str] = ("*",)
    severity: Severity | None = None
    when: Condition | Mapping[str, Any] | str | None = None
    condition: Condition | None = field(default=None, init=False, repr=False)
    bounded: bool = field(default=False, init=False, repr=False)
    deferred: bool = field(default=False, init=False, repr=False)
    fits_agent: Fits | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(
                f"rule {self.name!r}: {self.policy!r} is no policy", hint="a policy has a name and judge()"
            )
        name = self.name or self.policy.name
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"a rule's name is {name!r}", hint="give the rule or its policy a name")
        points: Sequence[Point] = self.on or getattr(self.policy, "default_points", _EVERY_POINT)
        agents = string_tuple(name, "agents", self.agents)
        settle: Callable[[str, Any], None] = lambda slot, value: object.__setattr__(self, slot, value)  # noqa: E731
        settle("name", name)
        settle("on", _points(name, points))
        settle("tools", string_tuple(name, "tools", self.tools))
        settle("agents", agents)
        settle("condition", None if self.when is None else condition_of(self.when, rule=name))
        settle("bounded", bool(getattr(self.policy, "bounded", False)))
        settle("deferred", bool(getattr(self.policy, "deferred", False)))
        settle("fits_agent", None if "*" in agents else one_of_globs(agents))

    def covers(self, action: Action) -> bool:
        """Whether the rule has a say about ``action``. A condition that cannot be told counts: it denies."""
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
            and ("*" in self.tools or one_of_globs(self.tools)(action.name))
            and (self.fits_agent is None or (action.agent is not None and self.fits_agent(action.agent)))
        )


def one_of_globs(globs: Sequence[str]) -> Fits:
    """A test whether a text fits one of ``globs``; letter case matters. Compiled once, here."""
    literal = frozenset(glob for glob in globs if not _WILD.search(glob))
    wild = tuple(re.compile(translate(glob)).match for glob in globs if _WILD.search(glob))
    return lambda text: text in literal or any(match(text) for match in wild)


def is_literal(glob: str) -> bool:
    """Whether ``glob`` fits no text but itself."""
    return _WILD.search(glob) is None


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
