"""The table of known commands: ``commands.yaml``, and the entries of a policy's own ``commands``.

An entry says what a command may be given; everything else is unknown. Its keys:

- ``flags``: options without a value, ``-#`` for ``-20``, ``-[abc]`` for ``-a -b -c``. A long one may carry a plain ``=value``.
- ``values``: options with a value, and the kind of it: ``{"-o --output": write}``. ``kind?`` is a value that may be missing.
- ``args``: kinds of the operands: ``"text read*"``. ``*`` takes any number, ``?`` may be missing, ``!`` takes all words that
  follow as they are, options included. ``after``: the same for what stands behind ``--``.
- ``sub``: sub-commands, each an entry. ``when``: keys that hold where one of these options is given (``-e+-i``: both are).
- ``acts``: kinds that an option without a value is checked as.
- ``like``: names of ``groups`` or commands whose flags and values it has too.
- ``any: true``: unknown options are taken as arguments. ``plain: true``: text that is not known does no harm.
- ``long: true``: options of more than one letter begin with a single ``-``. ``dashless: true``: the first word is options.
- ``work: true``: it runs what lies in the current folder, which must be of the project (``ours``: or writable).
- ``runs``: files of that folder that it takes commands from.
- ``prints``: what its output may be used for, ``{"": kind, "--option": kind}``. ``stdin``: what it does with its input.
- ``first: true``: options end at the first operand. ``needs: word`` (or ``any``): it has an operand (or an option).

A string in the place of an entry is the name of another command that takes the same. Kinds: `lgov_core.policies.shell.kinds`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, cast

from lgov_core.errors import PolicyError

PATH = Path(__file__).with_name("commands.yaml")
#: An entry for a name that may be run with any arguments.
FREE: dict[str, Any] = {"any": True, "args": "argument*"}
_VERSION = re.compile(r"-?\d+(?:\.\d+)*$")


@dataclass(frozen=True)
class Kind:
    """The kind of a word: a name, or a name with a list of what it may be; and how many words it takes."""

    name: str
    choices: tuple[str, ...] = ()
    count: str = ""


@dataclass(frozen=True)
class Entry:
    """What one command may be given. See the module's documentation for the fields."""

    name: str
    flags: frozenset[str] = frozenset()
    values: Mapping[str, Kind] = field(default_factory=dict[str, Kind])
    args: tuple[Kind, ...] = ()
    after: tuple[Kind, ...] | None = None
    sub: Mapping[str, Any] = field(default_factory=dict[str, Any])
    when: tuple[tuple[tuple[frozenset[str], ...], Mapping[str, Any]], ...] = ()
    acts: Mapping[str, Kind] = field(default_factory=dict[str, Kind])
    prints: Mapping[str, str] = field(default_factory=dict[str, str])
    runs: tuple[str, ...] = ()
    stdin: str = ""
    any: bool = False
    plain: bool = False
    long: bool = False
    dashless: bool = False
    work: str = ""
    first: bool = False
    needs: str = ""


_KEYS = frozenset({each.name for each in fields(Entry)} - {"name"} | {"like"})


class Table:
    """Commands by name. Entries are compiled when they are first used; may be shared by threads."""

    def __init__(self, data: Mapping[str, Any], commands: Mapping[str, Any]) -> None:
        self._data, self._commands, self._groups = data, commands, data["groups"]
        self._compiled: dict[str, Entry] = {}
        self._patterns: dict[str, tuple[str, re.Pattern[str], list[str]]] = {}

    def extended(self, commands: Mapping[str, Any]) -> Table:
        """A table with further commands, which replace those of the same name. Raises `PolicyError` for a bad entry."""
        made = Table(self._data, {**self._commands, **commands})
        for name in commands:
            made.entry(name)
        return made

    @cached_property
    def closed_variables(self) -> re.Pattern[str]:
        """Variables of the environment that no text may set."""
        return re.compile("|".join(self._data["variables"]["closed"]))

    @cached_property
    def allowed_values(self) -> Mapping[str, str]:
        """What a closed variable may be set to all the same, as a regular expression."""
        return _spread(self._data["variables"]["allowed"])

    @property
    def files(self) -> Mapping[str, str]:
        """Names and places of files, as globs."""
        return self._data["files"]

    @cached_property
    def python(self) -> tuple[frozenset[str], frozenset[str], Mapping[str, tuple[str, ...]]]:
        """What Python on a command line may use: builtins, methods, and names by module."""
        data = self._data["python"]
        modules = {module: tuple(str(names).split()) for module, names in data["modules"].items()}
        return frozenset(data["builtins"].split()), frozenset(data["methods"].split()), modules

    def pattern(self, kind: str) -> tuple[str, re.Pattern[str], list[str]] | None:
        """The rule, pattern and further checks of a kind that is a pattern."""
        if kind not in self._data["patterns"]:
            return None
        if kind not in self._patterns:
            rule, pattern, *further = self._data["patterns"][kind]
            for escape in ("\\ue000", "\\ue001", "\\ue002", "\\ue009"):
                pattern = pattern.replace(escape, chr(int(escape[2:], 16)))
            steps = [str(name) for part in further for name in part.split()]
            self._patterns[kind] = (rule, re.compile(pattern, re.DOTALL), steps)
        return self._patterns[kind]

    @property
    def names(self) -> list[str]:
        """The names of all commands."""
        return list(self._commands)

    def known(self, name: str) -> str | None:
        """The name under which a command stands in the table: ``python3.12`` is ``python``."""
        if name in self._commands:
            return name
        plain = _VERSION.sub("", name)
        return plain if plain in self._commands else None

    def entry(self, name: str) -> Entry:
        """The entry of a command that the table knows."""
        if name not in self._compiled:
            self._compiled[name] = self._compile(name, self._commands[name])
        return self._compiled[name]

    def sub(self, entry: Entry, name: str) -> Entry | None:
        """The entry of a sub-command, or None."""
        given = entry.sub.get(name)
        if given is None:
            return None
        called = f"{entry.name} {name}"
        if called not in self._compiled:
            if isinstance(given, str) and given in entry.sub:
                given = entry.sub[given]
            self._compiled[called] = self._compile(called, given)
        return self._compiled[called]

    def switched(self, entry: Entry, options: set[str]) -> Entry:
        """The entry as it is where some of ``options`` are given."""
        for asked, changes in entry.when:
            if any(wanted <= options for wanted in asked):
                entry = self._with(entry, changes)
        return entry

    # ------------------------------------------------------------------ compiling

    def _compile(self, name: str, given: Any) -> Entry:
        for _ in range(3):
            if isinstance(given, str) and given in self._commands:
                given = self._commands[given]
        if given is None or given is True:
            given = {}
        if not isinstance(given, Mapping):
            hint = "write a mapping such as {args: 'read*'}"
            raise PolicyError(f"shell: the command {name!r} is {given!r}", hint=hint)
        return self._with(Entry(name), cast("Mapping[str, Any]", given))

    def _with(self, entry: Entry, given: Mapping[str, Any]) -> Entry:
        wrong = set(given) - _KEYS
        if wrong:
            hint = f"the keys are {', '.join(sorted(_KEYS))}"
            raise PolicyError(f"shell: the command {entry.name!r} has the key {min(map(str, wrong))!r}", hint=hint)
        flags, values = set(entry.flags), dict(entry.values)
        for other in str(given.get("like", "")).split():
            shared = self._groups.get(other, self._commands.get(other, {}))
            both = self._with(Entry(other), {key: shared[key] for key in ("flags", "values", "like") if key in shared})
            flags.update(both.flags)
            values.update(both.values)
        flags.update(_flags(given))
        values.update(self._values(entry.name, given.get("values", {})))
        made: dict[str, Any] = {"flags": frozenset(flags), "values": values}
        made.update({key: bool(given[key]) for key in ("any", "plain", "long", "dashless", "first") if key in given})
        made.update({key: str(given[key]) for key in ("stdin", "needs", "work") if key in given})
        for key in ("args", "after"):
            if key in given:
                made[key] = tuple(self._kind(entry.name, part) for part in _parts(given[key]))
        if "when" in given:
            made["when"] = tuple(
                (tuple(frozenset(option.split("+")) for option in options.split()), keys)
                for options, keys in given["when"].items()
            )
        if "acts" in given:
            made["acts"] = self._values(entry.name, given["acts"])
        if "prints" in given:
            printed = given["prints"]
            made["prints"] = {"": printed} if isinstance(printed, str) else _spread(printed)
        if "runs" in given:
            made["runs"] = tuple(str(given["runs"]).split())
        if "sub" in given:
            made["sub"] = _spread(given["sub"])
        return replace(entry, **made)

    def _kind(self, command: str, given: Any) -> Kind:
        from lgov_core.policies.shell.kinds import KINDS

        count, choices, name = "", (), given
        if isinstance(given, Mapping) and len(cast("Mapping[str, Any]", given)) == 1:
            (name, listed), *_ = cast("Mapping[str, Any]", given).items()
            choices = tuple(map(str, listed))
        if isinstance(name, str) and name[-1:] in "*?!":
            name, count = name[:-1], name[-1]
        if not isinstance(name, str) or not (name in KINDS or name in self._data["patterns"]):
            hint = f"kinds: {', '.join([*KINDS, *self._data['patterns']])}"
            raise PolicyError(f"shell: the command {command!r} has a word of kind {given!r}", hint=hint)
        return Kind(name, choices, count)

    def _values(self, command: str, given: Mapping[str, Any]) -> dict[str, Kind]:
        return {option: self._kind(command, kind) for option, kind in _spread(given).items()}


def _flags(given: Mapping[str, Any]) -> list[str]:
    """Options without a value; ``-[abc]`` is ``-a -b -c``."""
    found: list[str] = []
    for option in str(given.get("flags", "")).split():
        letters = re.fullmatch(r"-\[(.+)\]", option)
        found.extend([f"-{letter}" for letter in letters[1]] if letters else [option])
    return found


def _spread(given: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with keys of several names, spread to one name a key."""
    return {name: value for key, value in given.items() for name in (str(key).split() or [""])}


def _parts(given: Any) -> list[Any]:
    return given.split() if isinstance(given, str) else [given] if isinstance(given, Mapping) else list(given)


@lru_cache(1)
def default_table() -> Table:
    """The table of ``commands.yaml``, read once."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load(PATH.read_bytes(), loader)
    return Table(data, _spread(data["commands"]))
