"""The base class of the built-in policies, the dry run in which they keep their counts in memory, and their data files."""

from __future__ import annotations

import inspect
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, ClassVar, Self

from lgov_core.types import Decision, Effect, ObservingPolicy, Point, Policy, PolicyFactory, Severity

__all__ = ["BoundedPolicy", "ObservingPolicy", "Policy", "PolicyFactory"]


class Unclear(Exception):
    """A text that programs may read in several ways: ``rule`` is a slug, ``reason`` says what to write instead."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule, self.reason = rule, reason


class BoundedPolicy:
    """Base of the built-in policies: remembers what it was made with, and shortens the making of decisions.

    It promises bounded cost; a policy that may wait says so by ``bounded = False``.
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


_IN_DRY_RUN: ContextVar[bool] = ContextVar("lgov_dry_run", default=False)


@contextmanager
def dry_run() -> Generator[None]:
    """Policies that are made inside the block share no file with other processes."""
    token = _IN_DRY_RUN.set(True)
    try:
        yield
    finally:
        _IN_DRY_RUN.reset(token)


def in_dry_run() -> bool:
    """Returns whether the running code is within a `dry_run`."""
    return _IN_DRY_RUN.get()


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of ``package``. Its content is read once in a process; may be used from several threads at once.

    A list of words is text, separated by spaces. A regular expression is text, or a list of alternatives; ``<<name>>`` in
    it stands for an entry of ``fragments``.
    """

    package: str
    file: str

    @property
    def content(self) -> Mapping[str, Any]:
        """The whole file."""
        return _content(self.package, self.file)

    @cache  # noqa: B019 - the files are constants of modules
    def words(self, table: str, key: str | None = None) -> frozenset[str]:
        """The words of ``table``, or of its entry ``key``; none where it has no such key."""
        entry: Any = self.content[table]
        return frozenset(str(entry if key is None else entry.get(key, "")).split())

    @cache  # noqa: B019 - the files are constants of modules
    def pattern(self, name: str) -> re.Pattern[str]:
        """The regular expression ``name``, among ``expressions`` or at the top of the file."""
        regex: str | list[str] = self.content.get("expressions", self.content).get(name) or self.content[name]
        return re.compile(self.written_out(regex if isinstance(regex, str) else "|".join(regex)))

    def written_out(self, regex: str) -> str:
        """``regex`` with its fragments written out."""
        fragments: Mapping[str, str] = self.content.get("fragments", {})
        return re.sub(r"<<(\w+)>>", lambda name: self.written_out(fragments[name[1]]), regex)


@cache
def _content(package: str, file: str) -> Mapping[str, Any]:
    import yaml

    return yaml.safe_load(files(package).joinpath(file).read_text(encoding="utf-8"))
