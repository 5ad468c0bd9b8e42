"""The options of policies: checks of them, words and patterns from data files, and the dry run, which touches no file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, cast

from lgov_core.errors import PolicyError
from lgov_core.governor.patterns import matches_any
from lgov_core.types import Decision, Effect, Policy

#: In the context of an action that a set in shadow mode judges: nothing comes of it, so nobody is to be asked.
SHADOW: Final = "lgov.shadow"
#: In the context of a tool call whose framework can pause the run and carry a question to a person: its name for the call.
CARRIED: Final = "lgov.carried"
#: In the context of a tool call whose session's id is made anew in each process, so that it names none of the user: True.
UNNAMED: Final = "lgov.unnamed"
#: The rule of the decision by which people approved a call.
APPROVED: Final = "approved"
#: The rule by which a person's answer denies a call.
REJECTED: Final = "approval-rejected"
#: The kind of the entry of the record about a person's answer, whose rule is one of these two.
ANSWER: Final = "approval"


def carrying(policies: Iterable[Policy], tool: str | None = None) -> Iterator[Any]:
    """The approval policies among ``policies`` and in their sets whose question a framework carries, or that about ``tool``."""
    for policy in policies:
        if getattr(policy.judge, "by_rules", False):
            rules: Any = policy.in_force().rules  # pyright: ignore[reportAttributeAccessIssue]
            yield from carrying((rule.policy for rule in rules if tool is None or matches_any(tool, rule.tools)), tool)
        elif getattr(policy, "via", None) == "framework":
            yield policy


def open_question(decision: Decision) -> Any:
    """The `OpenQuestion` that stands between a call and its permission; None where there is none, or something denies it."""
    if decision.effect is not Effect.ESCALATE:
        return None
    return next((each.question for each in (decision, *decision.parts) if each.question is not None), None)


def string_tuple(owner: str, option: str, value: object) -> tuple[str, ...]:
    """``value`` as a tuple when it is a sequence of strings; a lone string is a mistake. Raises `PolicyError`."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise PolicyError(f"{owner}: {option} must be a list of strings, not {value!r}", hint=f"write {option}: [...]")
    for item in value:
        if not isinstance(item, str) or not item:
            raise PolicyError(f"{owner}: {option} holds {item!r}, which is not text", hint="put it in quotes")
    return tuple(value)


def argument_names(owner: str, argument: str | Sequence[str], what: str) -> tuple[str, ...]:
    """The names, one or several, of the tool arguments that hold ``what``. Raises `PolicyError` where there is none."""
    names = (argument,) if isinstance(argument, str) else string_tuple(owner, "argument", argument)
    if not names or not all(names):
        raise PolicyError(f"{owner}: argument is empty", hint=f"name the tool argument that holds {what}")
    return names


def one_of(owner: str, option: str, value: object, choices: Sequence[str]) -> str:
    """``value`` when it is one of ``choices``. Raises `PolicyError`."""
    if not isinstance(value, str) or value not in choices:
        raise PolicyError(f"{owner}: {option} is {value!r}", hint=f"write one of: {', '.join(choices)}")
    return value


def names(text: str) -> tuple[str, ...]:
    """The words of a text: a long list of names, written as prose."""
    return tuple(text.split())


def several_policies(policies: Any) -> tuple[Policy, ...]:
    """The policies in ``policies``. Raises `PolicyError` when something else is among them."""
    if isinstance(policies, str) or not isinstance(policies, Iterable):
        raise PolicyError(f"{policies!r} is not a policy or a list of policies", hint="pass policies or a PolicySet")
    several = tuple(cast("Iterable[Any]", policies))
    for policy in several:
        if inspect.isclass(policy) or not isinstance(policy, Policy):
            raise PolicyError(
                f"{policy!r} is not a policy", hint="pass an instance of a class with a name and judge(action)"
            )
    return several


def positive_number(owner: str, option: str, value: object) -> float:
    """``value`` as a float when it is a finite number above 0. Raises `PolicyError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise PolicyError(f"{owner}: {option} is {value!r}", hint=f"write a number above 0, as in {option}: 10")
    return float(value)


def positive_integer(owner: str, option: str, value: object) -> int:
    """``value`` when it is a whole number above 0. Raises `PolicyError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PolicyError(f"{owner}: {option} is {value!r}", hint=f"write a whole number above 0, as in {option}: 10")
    return value


def require_declared(name: str, options: Mapping[str, object], declared: type) -> None:
    """Raises `TypeError`, as a call of ``name`` would, for a keyword that the TypedDict ``declared`` does not have."""
    if unknown := sorted(options.keys() - declared.__annotations__.keys()):
        raise TypeError(f"{name}() got an unexpected keyword argument {unknown[0]!r}")


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
