"""The base class of policies that never wait, as most of the built-in ones."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

from lgov_core.types import Decision, Effect, ObservingPolicy, Point, Policy, PolicyFactory, Severity

__all__ = ["BoundedPolicy", "ObservingPolicy", "Policy", "PolicyFactory"]


class Unclear(Exception):
    """A text that programs may read in several ways: ``rule`` is a slug, ``reason`` says what to write instead."""

    def __init__(self, rule: str, reason: str) -> None:
        self.rule, self.reason = rule, reason


class BoundedPolicy:
    """Base of policies whose ``judge`` never waits, so that it **has no timeout**; it also shortens the making of decisions.

    A subclass that may wait says ``bounded = False``; any other class with a name and a ``judge`` has a timeout.
    """

    bounded: bool = True
    #: Whether its allow permits an act. A policy that only restricts leaves it False: what nothing permits gets the default.
    permits: bool = False
    default_points: ClassVar[tuple[Point, ...]] = (Point.PRE_TOOL_CALL,)
    name: str
    #: What it was made with, by option: for the digest of the set it is in.
    made_with: Mapping[str, Any]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Remembers what the policy is made with."""
        policy = super().__new__(cls)
        names = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
        policy.made_with = MappingProxyType({**dict(zip(names, args, strict=False)), **options})
        return policy

    def allow(self, rule: str = "") -> Decision:
        """An allow by this policy."""
        return Decision(Effect.ALLOW, self.name, rule, "")

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
