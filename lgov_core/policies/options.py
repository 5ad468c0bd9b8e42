"""The options of a kind of policy as one schema: its constructor, the ``with:`` of a policy file and the reference read it.

    class LoopOptions(PolicyOptions, frozen=True):
        max_repeats: Count = 3
        name: Text = "LoopPolicy"

    class LoopPolicy(BoundedPolicy):
        @takes(LoopOptions)
        def __init__(self, options: LoopOptions) -> None: ...

    LoopPolicy(max_repeats=5, name="no loops")

What is wrong with an option is a `PolicyError` that names it and says what to write, however the policy is made.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, wraps
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Concatenate, Final, Optional, ParamSpec, TypeVar, cast

import msgspec
from msgspec import Meta

from lgov_core._util.json_text import sorted_json
from lgov_core._util.schema import Mistake, checked
from lgov_core.errors import PolicyError
from lgov_core.governor.rules import Rule
from lgov_core.settings import without_password
from lgov_core.types import Policy

Text = Annotated[str, Meta(min_length=1, description="text, in quotes")]
Texts = Annotated[Sequence[Text], Meta(description="a list of strings")]
#: One name or several.
Names = Annotated[str | Sequence[str], Meta(description="a name, or a list of names")]
Count = Annotated[int, Meta(ge=1, description="a whole number above 0")]
#: Finite: no budget, period or wait is longer than this.
Positive = Annotated[float, Meta(gt=0, le=1e15, description="a number above 0")]
YesOrNo = Annotated[bool, Meta(description="true or false")]

_P = ParamSpec("_P")
_Options = TypeVar("_Options", bound="PolicyOptions")
_Self = TypeVar("_Self")
_NO_FILE = Annotated[None, Meta(description="a function")]
_PATH: Any = Optional[Annotated[str, Meta(pattern=r"^(?!\w+://).", description="the path of a file, not an address")]]  # noqa: UP045 - a value
_ADDRESS: Any = Optional[Text]  # noqa: UP045 - as above


class PolicyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the options of a kind of policy. Each has a ``name``."""

    #: The options that name files and folders: relative ones in a policy file count from its folder.
    paths: ClassVar[tuple[str, ...]] = ()
    #: Those of them that lgov obeys, and those that it writes itself: closed to what it governs.
    obeyed: ClassVar[tuple[str, ...]] = ()
    kept: ClassVar[tuple[str, ...]] = ()
    #: Those of them that may be the address of a database.
    addresses: ClassVar[tuple[str, ...]] = ()
    #: What Python may give for an option beside what a file may, which is nothing where the option is no path.
    in_python: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType({})
    #: Options that a file must give, although Python need not.
    needed_in_files: ClassVar[tuple[str, ...]] = ()
    #: Values of options that a file does not give, where they differ from Python's.
    defaults_in_files: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    @classmethod
    @cache
    def types_in_files(cls) -> Mapping[str, Any]:
        """The type of what a policy file may give, by option."""
        types = {option.name: option.type for option in msgspec.structs.fields(cls) if option.name != "name"}
        types.update(dict.fromkeys(set(cls.in_python).intersection(cls.paths), _PATH))
        types.update(dict.fromkeys(cls.addresses, _ADDRESS))
        return {option: kind for option, kind in types.items() if option in cls.paths or option not in cls.in_python}

    def checked(self) -> Any:
        """These options with values of their types. Raises `PolicyError` for one that has no meaning."""
        types = {**self.types_in_files(), "name": str}
        values = msgspec.structs.asdict(self)
        for option, value in values.items():
            if isinstance(value, self.in_python.get(option, ())):
                continue
            kind = types.get(option, _NO_FILE)
            try:
                values[option] = checked(value, kind)
            except Mistake as mistake:
                path = mistake.path or _wrong_key(value, kind)
                raise self._error(option, value, path, mistake.expected) from Mistake((option, *path), mistake.expected)
        return type(self)(**values)

    def _error(self, option: str, value: Any, path: tuple[str | int, ...], expected: str) -> PolicyError:
        owner = str(msgspec.structs.asdict(self)["name"])
        for step in path:
            value = value[step]
        where = ": ".join([option, *(str(step) for step in path if isinstance(step, str))])
        value = without_password(value) if isinstance(value, str) else value
        return PolicyError(f"{owner}: {where} {'holds' if path else 'is'} {value!r:.200}", hint=f"write {expected}")


def _wrong_key(value: Any, kind: Any) -> tuple[str, ...]:
    """The way to the first entry of a mapping that is not of its ``kind``."""
    for key, item in value.items() if isinstance(value, Mapping) else ():
        try:
            checked({key: item}, kind)
        except Mistake:
            return (key,)
    return ()


def takes(
    kind: Callable[_P, _Options],
) -> Callable[[Callable[[_Self, _Options], None]], Callable[Concatenate[_Self, _P], None]]:
    """Makes an ``__init__`` that takes the options of ``kind`` out of one that takes them checked, as one value."""

    def decorated(init: Callable[[_Self, _Options], None]) -> Callable[Concatenate[_Self, _P], None]:
        @wraps(init)
        def __init__(self: _Self, *args: _P.args, **options: _P.kwargs) -> None:
            init(self, kind(*args, **options).checked())

        signature = inspect.signature(kind)
        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        made: Any = __init__
        made.__signature__ = signature.replace(parameters=[itself, *signature.parameters.values()])
        made.options = kind
        return cast("Callable[Concatenate[_Self, _P], None]", __init__)

    return decorated


def options_kind(factory: Any) -> type[PolicyOptions] | None:
    """The options that ``factory`` takes; None for one that is not made with `takes`, as those of plugins may be."""
    return getattr(getattr(factory, "__init__", None), "options", None)


def folder_joined(folder: str | os.PathLike[str] | None, value: Any) -> Any:
    """``value``, a path or a list of them, with ``folder`` before those that are relative; an address stays as it is."""
    if isinstance(value, list | tuple):
        return [folder_joined(folder, item) for item in cast("Sequence[Any]", value)]
    relative = isinstance(value, str) and value and not value.startswith("~") and "://" not in value
    return os.path.join(folder, value) if folder is not None and relative else value


# ---------------------------------------------------------------------- digests

#: Bound to the digest, so that it never equals one of a document.
_TAG: Final = "lgov policy set made in Python, 1"


_MAX_DEPTH: Final = 20


def digest_of(rules: Iterable[Rule], default: str, mode: str, name: str, version: int) -> str:
    """SHA-256, in hex, of what a set is made of.

    It covers the set's own settings and of each rule, in order: name, points, globs, condition, severity, the class of
    its policy and what that was made with. Equal digests therefore mean equally made sets. Not covered, because nothing
    can be read off it: the code of a policy (of a function only its name counts), the state of one that keeps count, and
    the options of a policy of your own that neither extends `BoundedPolicy` nor is a dataclass nor has a ``made_with``
    mapping.
    """
    content = {
        "tag": _TAG,
        "name": name,
        "version": version,
        "mode": mode,
        "default": default,
        "rules": [_rule(rule) for rule in rules],
    }
    return hashlib.sha256(sorted_json(content).encode()).hexdigest()


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "on": [point.value for point in rule.on],
        "tools": list(rule.tools),
        "agents": list(rule.agents),
        "severity": None if rule.severity is None else str(rule.severity),
        "when": None if rule.condition is None else _plain(rule.condition.source, 0),
        "policy": _policy(rule.policy),
    }


def _policy(policy: Policy) -> dict[str, Any]:
    description: dict[str, Any] = {"class": _name_of(type(policy)), "name": policy.name}
    digest = getattr(policy, "digest", None)
    if isinstance(digest, str):
        description["digest"] = digest
        return description
    options = getattr(policy, "made_with", None)
    if not isinstance(options, Mapping):
        options = _fields(policy) if is_dataclass(policy) else {}
    description["with"] = _plain(options, 0)
    return description


def _plain(value: Any, depth: int) -> Any:
    """``value`` in what JSON can say, the same for equal values, without addresses of objects."""
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return {f"{type(key).__name__} {key}": _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return {"set": sorted(json.dumps(_plain(item, depth + 1), sort_keys=True) for item in value)}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, msgspec.Struct):
        return _plain(msgspec.structs.asdict(value), depth + 1)
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": _name_of(type(value)), "fields": _plain(_fields(value), depth + 1)}
    return {"object": _name_of(value if callable(value) and hasattr(value, "__qualname__") else type(value))}


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name, None) for field in fields(value)}


def _name_of(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"
