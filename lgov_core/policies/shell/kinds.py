"""What a word of each kind must be. A check raises `Refused`; kinds that are patterns are in ``commands.yaml``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from lgov_core.policies.shell.code import check_python, check_sed
from lgov_core.policies.shell.output import files_of
from lgov_core.policies.shell.refusal import Refused, unclear, unknown
from lgov_core.policies.shell.values import HOME, UNKNOWN, is_wild, shown

if TYPE_CHECKING:
    from lgov_core.policies.shell.call import Call
    from lgov_core.policies.shell.session import Session

Check = Callable[["Session", "Call", str], object]
_URL = re.compile(r"(?:(https?)://)?([A-Za-z0-9_.-]+|\[::1\])(?::(\d+))?(/.*|\?.*|)", re.DOTALL | re.IGNORECASE)
_LOCAL = re.compile(r"localhost|127(?:\.\d{1,3}){3}|0\.0\.0\.0|\[::1\]|host\.docker\.internal", re.IGNORECASE)
_HOST = re.compile(r"\+\w+|(?=.*[A-Za-z])[A-Za-z0-9][\w.-]*|\d{1,3}(?:\.\d{1,3}){3}")
#: Addresses at which a cloud gives out credentials.
_METADATA = re.compile(r"169\.254\.\d+\.\d+|metadata(?:\.google\.internal)?|100\.100\.100\.200|0x\w+", re.IGNORECASE)


def check_word(session: Session, call: Call, kind: str, word: str) -> None:
    """Checks a word as ``kind``: a pattern of the table with further checks, or one of `KINDS`."""
    pattern = session.table.pattern(kind)
    if pattern is None:
        KINDS[kind](session, call, word)
        return
    rule, expression, further = pattern
    session.budget.spend(5 + len(word) // 4)
    if expression.fullmatch(word) is None:
        raise Refused(rule, f"{call.entry.name} may not be given {shown(word)} here: it is no {kind} that is known.")
    for name in further:
        KINDS[name](session, call, word)


def _host(session: Session, call: Call, word: str) -> None:
    if _LOCAL.fullmatch(word) is None and (_HOST.fullmatch(word) is None or _METADATA.fullmatch(word)):
        raise Refused("shell-network", f"{shown(word)} is not a plain name of a machine that may be asked.")


def _url(session: Session, call: Call, word: str) -> None:
    """An address that is read; data is sent to this machine only."""
    match = _URL.fullmatch(word)
    if match is None:
        raise Refused("shell-network", f"{shown(word)} is not a plain http address that may be read.")
    _host(session, call, match[2])
    if _LOCAL.fullmatch(match[2]) is not None:
        return
    if call.of("local") or any(method not in ("GET", "HEAD") for method in call.of("method")):
        raise Refused("shell-network", f"Data is not sent to {match[2][:60]}; the network may only be read from.")
    if is_wild(word):
        raise Refused("shell-network", f"The address {shown(word)} carries what is not written out.")
    session.places.fetched = True


def _download(session: Session, call: Call, word: str) -> None:
    _url(session, call, word)
    session.places.write(re.split(r"[?#]", word)[0].rstrip("/").rpartition("/")[2] or "index.html")


def _own(session: Session, call: Call, word: str) -> None:
    """A file of the project that may be run: ``tests/test_a.py::test_one``, ``./cmd/...``."""
    path = word.partition("::")[0].removesuffix("/...")
    if re.search(r"[@\\{}$|<>]|://", path) or path == "-":
        raise Refused("shell-network", f"{shown(word)} is not surely a file of this folder.")
    if path not in (".", "..."):
        session.places.at_home(path)
        session.places.mention(path)
        session.places.unwritten(path)


def _package(session: Session, call: Call, word: str) -> None:
    if word.startswith((".", "/")):
        _own(session, call, word.partition("[")[0])


def _patch(session: Session, call: Call, word: str) -> None:
    session.places.inside(word)
    if session.places.fetched:
        raise Refused("shell-program", f"{shown(word)} may be what this text fetches; look at it first.")


def _chdir(session: Session, call: Call, word: str) -> None:
    session.places.inside(word)
    session.state.go(word)
    session.state.failed = ()


def _script(session: Session, call: Call, word: str) -> None:
    if word != "-":
        session.program(word)
    elif not call.entry.stdin:
        raise unclear("A program that is read from the input is not known.")


def _delete_found(session: Session, call: Call, word: str) -> None:
    session.places.exact, before = True, session.places.exact
    for found in files_of(call):
        session.places.delete(found)
    session.places.exact = before


def _read_value(session: Session, call: Call, word: str) -> None:
    session.places.mention(word)
    name, at, path = word.rpartition("@")
    if at and name in ("", f"{word.partition('=')[0]}="):
        session.places.read(path)
        session.places.inside(path)


def _assign(session: Session, call: Call, word: str) -> None:
    name, equals, value = word.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        raise unclear(f"It is not clear which variable {shown(word)} sets.")
    session.check_variable(name, [value])


def _setting(session: Session, call: Call, word: str) -> None:
    """``NAME=value`` for another process, or the name of a variable or target to hand on."""
    name, equals, value = word.partition("=")
    if equals and call.entry.name in ("make", "rake"):
        if re.search(r"[;|`\n$&<>]", value):
            raise unclear(f"{name[:40]} holds more than a value.")
        session.places.argument(value)
        session.check_variable(name.rstrip(":+?"), [value])
    elif not equals:
        session.state.values(name)
        session.places.argument(name)


def _variable(session: Session, call: Call, word: str) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", word):
        raise unclear(f"{shown(word)} is not a plain name of a variable.")
    session.state.values(word)


def _filled(session: Session, call: Call, word: str) -> None:
    """A variable that is given what is read."""
    _variable(session, call, word)
    given = call.given
    parts = len(call.of("filled")) != 1 or given.source == "file" or {"-n", "-N", "-d", "-t"} & call.options
    if parts or any("\\" in value for value in given.values):
        values = [UNKNOWN]
    else:
        values = [line.strip() for value in given.values for line in value.split("\n")]
    session.check_variable(word, values)
    session.state.assign(word, values)


def _shell(session: Session, call: Call, word: str) -> None:
    """A shell of its own: only the environment comes from here, and that is not followed."""
    before, functions = session.state.copy(), session.functions
    session.state.variables, session.functions = {}, {}
    session.script(word, call.given, call.of("positional")[1:])
    session.state.replace(before)
    session.functions = functions


def _volume(session: Session, call: Call, word: str) -> None:
    """``folder:place`` or ``name:place`` of a container."""
    source = word.partition(":")[0]
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*", source) is None or ":" not in word:
        if source == UNKNOWN or source.startswith(HOME):
            raise Refused("shell-dangerous", f"{shown(word)} gives a container a folder outside of this one.")
        session.places.inside(source)
        session.places.mention(source)


def _archive(session: Session, call: Call, word: str) -> None:
    makes = {"-c", "--create"} & call.options
    (session.places.write if makes else session.places.read)(word)


def _unpacked(session: Session, call: Call, word: str) -> None:
    """The folder of ``tar -C``: what is unpacked goes there, what is packed comes from there."""
    (session.places.inside if {"-c", "--create"} & call.options else session.places.write)(word)


def _unpacks_here(session: Session, call: Call, word: str) -> None:
    if not {"-C", "--directory"} & call.options:
        session.places.inside(".")


def _reads_here(session: Session, call: Call, word: str) -> None:
    if not call.of("tree"):
        session.places.tree(".")


def _inside(session: Session, call: Call, word: str) -> None:
    session.places.inside(word)
    session.places.mention(word)


def _choice(session: Session, call: Call, word: str) -> None:
    raise unknown(f"{shown(word)} is not among what {call.entry.name} may be given here.")


def _tree(session: Session, call: Call, word: str) -> None:
    session.places.read(word)
    session.places.tree(word)


def _text(session: Session, call: Call, word: str) -> None:
    """Any text; the kinds of commands are judged as commands."""


#: Every kind of word that is not a pattern, and the steps of those that are.
KINDS: dict[str, Check] = {
    **dict.fromkeys(("text", "positional", "look", "eval", "module", "command", "tool", "exec", "environment"), _text),
    "one": _choice,
    "read": lambda session, call, word: session.places.read(word),
    "tree": _tree,
    "tree_here": _reads_here,
    "data": _read_value,
    "local": _read_value,
    "mention": lambda session, call, word: session.places.mention(word),
    "argument": lambda session, call, word: session.places.argument(word),
    "inside": _inside,
    "inhere": _unpacks_here,
    "own": _own,
    "local_package": _package,
    "patch": _patch,
    "chdir": _chdir,
    "link": _inside,
    "write": lambda session, call, word: session.places.write(word),
    "append": lambda session, call, word: session.places.write(word, may_be_secret=True),
    "changed": lambda session, call, word: session.places.write(word, notes=False),
    "build": lambda session, call, word: session.build(word),
    "move": lambda session, call, word: session.places.move(word),
    "delete": lambda session, call, word: session.places.delete(word),
    "deltree": lambda session, call, word: session.places.delete(word, recursive=True),
    "delfound": _delete_found,
    "archive": _archive,
    "unpacked": _unpacked,
    "script": _script,
    "assign": _assign,
    "setting": _setting,
    "variable": _variable,
    "filled": _filled,
    "go": lambda session, call, word: session.state.go(word),
    "shell": _shell,
    "python": lambda session, call, word: check_python(word, session),
    "sed": lambda session, call, word: check_sed(word, session),
    "url": _url,
    "fetched": lambda session, call, word: _url(session, call, word) if "/" in word else None,
    "download": _download,
    "host": _host,
    "volume": _volume,
}
