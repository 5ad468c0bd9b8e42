"""The table of known commands: ``commands.yaml``, and the entries of a policy's own ``commands``.

An entry says what a command may be given; everything else is unknown. Its keys:

- ``flags``: options without a value, ``-#`` for ``-20``, ``-[abc]`` for ``-a -b -c``. A long one may carry a plain ``=value``.
- ``values``: options with a value, and the kind of it: ``{"-o --output": write}``. ``kind?`` is a value that may be missing.
- ``args``: kinds of the operands: ``"text read*"``. ``*`` takes any number, ``?`` may be missing, ``!`` takes all words that
  follow as they are, options included.
- ``sub``: sub-commands, each an entry. ``when``: keys that hold where one of these options is given (``-e+-i``: both are).
- ``acts``: kinds that an option without a value is checked as.
- ``like``: names of ``groups`` or commands whose flags and values it has too.
- ``any: true``: unknown options are taken as arguments. ``plain: true``: text that is not known does no harm.
- ``long: true``: options of more than one letter begin with a single ``-``. ``dashless: true``: the first word is options.
- ``prints``: what its output may be used for, ``{"": kind, "--option": kind}``. ``stdin: words``: its input are words.
- ``first: true``: options end at the first operand. ``needs``: the kinds of words or options of which it has one.
- ``sends: true``: it reaches the network, and is judged by ``egress``. ``history: true``: it loads the repository's
  configuration, which must run nothing. ``wary: true``: some of its options run programs or write elsewhere, so that a
  wildcard may not become one.

A string in the place of an entry is the name of another command that takes the same.
Kinds: `CHECKS` in `lgov_core.policies.shell.kinds`, and the ``patterns`` of ``commands.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from lgov_core.errors import PolicyError

PATH = Path(__file__).with_name("commands.yaml")
#: An entry for a name that may be run with any arguments.
FREE: dict[str, Any] = {"any": True, "args": "argument*"}
_VERSION = re.compile(r"-?\d+(?:\.\d+)*$")


@lru_cache(1)
def data() -> Mapping[str, Any]:
    """The contents of ``commands.yaml``, read once."""
    import yaml

    return yaml.load(PATH.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@lru_cache(32)
def names(section: str, key: str | None = None) -> frozenset[str]:
    """A list of names or globs in ``commands.yaml``."""
    return frozenset((data()[section] if key is None else data()[section][key]).split())


@lru_cache(32)
def globs(key: str) -> re.Pattern[str]:
    """A list of globs in the section ``files`` as one pattern."""
    return re.compile("|".join(map(translate, names("files", key))))


@lru_cache(32)
def regex(section: str, key: str) -> re.Pattern[str]:
    """A regular expression in ``commands.yaml``, or a list of alternatives."""
    value = data()[section][key]
    return re.compile(value if isinstance(value, str) else "|".join(value))


@lru_cache(128)
def pattern(kind: str) -> tuple[str, re.Pattern[str], tuple[str, ...]] | None:
    """The rule, the pattern and the further checks of a kind in the section ``patterns``; None for other kinds."""
    if kind not in data()["patterns"]:
        return None
    rule, expression, *further = data()["patterns"][kind]
    return rule, re.compile(expression, re.DOTALL), tuple(name for text in further for name in text.split())


@lru_cache(1)
def allowed_values() -> Mapping[str, str]:
    """The values that a variable may be set to which is otherwise not set, as regular expressions by name."""
    return _spread(data()["variables"]["allowed"])


def without_version(name: str) -> str:
    """``python`` for ``python3.12``."""
    return _VERSION.sub("", name) if len(name) < 64 else name


@dataclass(frozen=True)
class Kind:
    """The kind of a word: a name, or a name with a list of what it may be; and how many words it takes."""

    name: str
    choices: tuple[str, ...] = ()
    count: str = ""


@dataclass(frozen=True)
class Entry:
    """The options and words that one command may be given. The module's documentation describes the fields."""

    name: str
    flags: frozenset[str] = frozenset()
    values: Mapping[str, Kind] = field(default_factory=dict[str, Kind])
    args: tuple[Kind, ...] = ()
    sub: Mapping[str, Any] = field(default_factory=dict[str, Any])
    when: tuple[tuple[tuple[frozenset[str], ...], Mapping[str, Any]], ...] = ()
    acts: Mapping[str, Kind] = field(default_factory=dict[str, Kind])
    prints: Mapping[str, str] = field(default_factory=dict[str, str])
    stdin: str = ""
    any: bool = False
    plain: bool = False
    long: bool = False
    dashless: bool = False
    first: bool = False
    needs: tuple[str, ...] = ()
    sends: bool = False
    history: bool = False
    wary: bool = False


_KEYS = frozenset({each.name for each in fields(Entry)} - {"name"} | {"like"})


class Table:
    """Commands by name. ``kinds`` are the kinds of words that are not patterns.

    Entries are compiled when they are first used; may be shared by threads.
    """

    def __init__(self, kinds: Collection[str], commands: Mapping[str, Any] | None = None) -> None:
        self._kinds = kinds
        self.commands = _spread(data()["commands"]) if commands is None else commands
        self._compiled: dict[str, Entry] = {}

    def extended(self, commands: Mapping[str, Any]) -> Table:
        """A table with further commands, which replace those of the same name. Raises `PolicyError` for a bad entry."""
        table = Table(self._kinds, {**self.commands, **commands})
        for name in commands:
            table.entry(name)
        return table

    def known(self, name: str) -> str | None:
        """The name of a command in the table: ``sed`` for ``sed-4.9``. None for unknown commands."""
        return next((candidate for candidate in (name, without_version(name)) if candidate in self.commands), None)

    def entry(self, name: str) -> Entry:
        """The entry of a command in the table."""
        return self._compile(name, self.commands[name])

    def sub(self, entry: Entry, name: str) -> Entry | None:
        """The entry of a sub-command, or None."""
        raw = entry.sub.get(name)
        return None if raw is None else self._compile(f"{entry.name} {name}", raw)

    def switched(self, entry: Entry, options: set[str]) -> Entry:
        """The entry as it is where some of ``options`` are given."""
        for conditions, changes in entry.when:
            if any(condition <= options for condition in conditions):
                entry = self._with(entry, changes)
        return entry

    def _compile(self, name: str, raw: Any) -> Entry:
        if name not in self._compiled:
            for _ in range(3):
                if isinstance(raw, str):
                    raw = self.commands.get(raw, raw)
            raw = {} if raw is None or raw is True else raw
            if not isinstance(raw, Mapping):
                hint = "write a mapping such as {args: 'read*'}"
                raise PolicyError(f"shell: the command {name!r} is {raw!r}", hint=hint)
            self._compiled[name] = self._with(Entry(name), cast("Mapping[str, Any]", raw))
        return self._compiled[name]

    def _with(self, entry: Entry, changes: Mapping[str, Any]) -> Entry:
        """``entry`` with the keys of ``changes``; flags and values are added to those that it has."""
        wrong = set(changes) - _KEYS
        if wrong:
            hint = f"the keys are {', '.join(sorted(_KEYS))}"
            raise PolicyError(f"shell: the command {entry.name!r} has the key {min(map(str, wrong))!r}", hint=hint)

        def kinds(parts: Any) -> tuple[Kind, ...]:
            listed = parts.split() if isinstance(parts, str) else [parts] if isinstance(parts, Mapping) else parts
            return tuple(self._kind(entry.name, raw) for raw in listed)

        def kinds_by_option(options: Mapping[str, Any]) -> dict[str, Kind]:
            return {option: self._kind(entry.name, kind) for option, kind in _spread(options).items()}

        readers: dict[str, Callable[[Any], Any]] = {
            **dict.fromkeys(("any", "plain", "long", "dashless", "first", "sends", "history", "wary"), bool),
            "stdin": str,
            "needs": lambda words: tuple(words.split()),
            "args": kinds,
            **dict.fromkeys(("values", "acts"), kinds_by_option),
            "flags": _flags,
            "sub": _spread,
            "prints": lambda printed: {"": printed} if isinstance(printed, str) else _spread(printed),
            "when": lambda cases: tuple(
                (tuple(frozenset(option.split("+")) for option in options.split()), keys)
                for options, keys in cases.items()
            ),
        }
        fields = {key: readers[key](value) for key, value in changes.items() if key != "like"}
        flags, values = entry.flags, dict(entry.values)
        for other in str(changes.get("like", "")).split():
            shared = data()["groups"].get(other, self.commands.get(other, {}))
            both = self._with(Entry(other), {key: shared[key] for key in ("flags", "values", "like") if key in shared})
            flags, values = flags | both.flags, {**values, **both.values}
        fields["flags"] = flags | fields.get("flags", frozenset())
        fields["values"] = {**values, **fields.get("values", {})}
        return replace(entry, **fields)

    def _kind(self, command: str, raw: Any) -> Kind:
        count, choices, name = "", (), raw
        if isinstance(raw, Mapping) and len(cast("Mapping[str, Any]", raw)) == 1:
            (name, listed), *_ = cast("Mapping[str, Any]", raw).items()
            choices = tuple(map(str, listed))
        if isinstance(name, str) and name[-1:] in "*?!":
            name, count = name[:-1], name[-1]
        if not isinstance(name, str) or not (name in self._kinds or name in data()["patterns"]):
            hint = f"kinds: {', '.join([*self._kinds, *data()['patterns']])}"
            raise PolicyError(f"shell: the command {command!r} has a word of kind {raw!r}", hint=hint)
        return Kind(name, choices, count)


def _flags(text: str) -> frozenset[str]:
    """Options without a value; ``-[abc]`` is ``-a -b -c``."""
    flags: set[str] = set()
    for option in text.split():
        flags.update([f"-{letter}" for letter in option[2:-1]] if option.startswith("-[") else [option])
    return frozenset(flags)


def _spread(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with keys of several names, spread to one name a key."""
    return {name: value for key, value in mapping.items() for name in (str(key).split() or [""])}
