"""What a word of each kind must be. A check raises `Refused`; ``text`` and the like have none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from lgov_core.policies.shell.code import check_awk, check_jq, check_python, check_sed, check_sql
from lgov_core.policies.shell.refusal import Refused, unclear, unknown
from lgov_core.policies.shell.urls import check_host, check_url
from lgov_core.policies.shell.values import HOME, STAR, UNKNOWN, is_wild, shown

if TYPE_CHECKING:
    from lgov_core.policies.shell.call import Call
    from lgov_core.policies.shell.session import Session

Check = Callable[["Session", "Call", str], None]
#: Modes of files that add no special bits and let nobody else write.
_MODE = re.compile(r"0?[0-7][0-7][0145]|[ugoa]*[+=-][rwxX]*(?:,[ugoa]*[+=-][rwxX]*)*")
_WORLD_WRITE = re.compile(r"(?:^|,)(?:[ug]*[oa][ugoa]*)?[+=][rxX]*w.*")
_PACKAGE = re.compile(r"(?:@[\w.-]+/)?[A-Za-z0-9][\w.+-]*(?:\[[\w,.-]+\])?(?:(?:@|[=<>!~^]=?|===)[\w.^~<>=*,! -]+)?")
_REFSPEC = re.compile(r"[A-Za-z0-9][\w./@{}~^-]*(?::[A-Za-z0-9][\w./-]*)?")


def _nothing(session: Session, call: Call, word: str) -> None:
    """Any text."""


def _plain_name(session: Session, call: Call, word: str) -> None:
    if "/" in word or UNKNOWN in word:
        raise unclear(f"{shown(word)} must be a plain name here.")


def _number(session: Session, call: Call, word: str) -> None:
    if not re.fullmatch(r"[+-]?\d[\w.,:%+-]*|auto|max|", word):
        raise unclear(f"{shown(word)} must be a number here.")


def _look(session: Session, call: Call, word: str) -> None:
    session.budget.spend(2)


def _own(session: Session, call: Call, word: str) -> None:
    if word in (".", "./...", "..."):
        return
    path = word.partition("::")[0].removesuffix("/...")
    if re.search(r"[@\\{}$|<>]|://", path) or path == "-":
        raise Refused("shell-network", f"{shown(word)} is not surely a file of this folder.")
    session.places.inside(path)
    session.places.mention(path)
    session.places.unwritten(path)


def _patch(session: Session, call: Call, word: str) -> None:
    session.places.inside(word)
    if session.places.fetched:
        raise Refused("shell-program", f"{shown(word)} may be what this text fetches; look at it first.")


def _inside(session: Session, call: Call, word: str) -> None:
    session.places.inside(word)
    session.places.mention(word)


def _chdir(session: Session, call: Call, word: str) -> None:
    session.places.inside(word)
    session.state.go(word)
    session.state.failed = ()


def _link(session: Session, call: Call, word: str) -> None:
    session.places.inside(word)
    session.places.mention(word)


def _append(session: Session, call: Call, word: str) -> None:
    session.places.write(word, may_be_secret=True)


def _page(session: Session, call: Call, word: str) -> None:
    if word.startswith("+"):
        raise unclear(f"{shown(word)} is a command of the pager; leave it out.")
    session.places.read(word)


def _script(session: Session, call: Call, word: str) -> None:
    if word != "-":
        session.program(word)
    elif not call.entry.stdin:
        raise unclear("A program that is read from the input is not known.")


def _found(session: Session, call: Call, word: str) -> None:
    session.places.mention(word)
    call.patterns.append(word)


def _app(session: Session, call: Call, word: str) -> None:
    if re.fullmatch(r"[\w.]+(?::\w+(?:\(\))?)?", word) is None:
        raise unknown(f"{shown(word)} is not the plain name of an application.")


def _delete_found(session: Session, call: Call, word: str) -> None:
    for found in session.files_of(call):
        session.places.delete(found)


def _read_value(session: Session, call: Call, word: str) -> None:
    if word.startswith("@"):
        session.places.read(word[1:])


def _assign(session: Session, call: Call, word: str) -> None:
    name, equals, value = word.partition("=")
    if is_wild(name) or not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        raise unclear(f"It is not clear which variable {shown(word)} sets.")
    if equals:
        session.check_variable(name, [value])
    elif call.entry.name != "env":
        session.state.values(name)


def _variable(session: Session, call: Call, word: str) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", word):
        raise unclear(f"{shown(word)} is not a plain name of a variable.")
    session.state.values(word)


def _filled(session: Session, call: Call, word: str) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", word):
        raise unclear(f"{shown(word)} is not a plain name of a variable.")
    alone = len(call.of("filled")) == 1 and call.given.source != "file"
    parts = not alone or {"-n", "-N", "-d", "-t"} & call.options or any("\\" in value for value in call.given.values)
    values = [UNKNOWN] if parts else [line.strip() for value in call.given.values for line in value.split("\n")]
    session.check_variable(word, values)
    session.state.assign(word, values)


def _array(session: Session, call: Call, word: str) -> None:
    _filled(session, call, word)
    session.state.assign(f"{word}[@]", session.state.variables[word])


def _go(session: Session, call: Call, word: str) -> None:
    if session.trapped:
        raise unclear("Where a trap runs after this is not certain; set it behind the last cd.")
    if word == "-":
        session.state.go_back()
    else:
        session.state.go(word)


def _shell(session: Session, call: Call, word: str) -> None:
    """A shell of its own: only the environment comes from here, and that is not followed."""
    before, functions = session.state.copy(), session.functions
    session.state.variables, session.functions = {}, {}
    session.script(word, call.given, call.of("positional")[1:])
    session.state.replace(before)
    session.functions = functions


def _trap(session: Session, call: Call, word: str) -> None:
    if word != "-":
        before = session.state.copy()
        session.state.variables = {}  # it runs later, when they hold something else
        session.script(word, call.given, None)
        session.state.variables = before.variables
        session.state.merge(before)
        session.trapped = True


def _code(check: Callable[[str], None]) -> Check:
    def checked(session: Session, call: Call, word: str) -> None:
        session.budget.spend(50 + 4 * len(word))
        if UNKNOWN in word:
            raise unknown(f"The program of {call.entry.name} is not known; write it out.")
        check(word)

    return checked


def _python(session: Session, call: Call, word: str) -> None:
    session.budget.spend(50 + 20 * len(word))
    if is_wild(word):
        raise unknown("The Python program is not known; write it out.")
    check_python(word, session.places)


def _pid(session: Session, call: Call, word: str) -> None:
    if not re.fullmatch(r"\$!|%\d+|[1-9]\d{2,}|" + STAR, word):
        raise Refused("shell-dangerous", f"{shown(word)} is not one process of this text; name one by its number.")


def _mode(session: Session, call: Call, word: str) -> None:
    if _MODE.fullmatch(word) is None or _WORLD_WRITE.match(word):
        raise Refused("shell-dangerous", f"The mode {shown(word)} gives away more than reading, or is not understood.")


def _package(session: Session, call: Call, word: str) -> None:
    local = re.sub(r"\[[\w,.-]+\]$", "", word)
    if local == "." or local.startswith(("./", "/", "..")):
        return _own(session, call, local)
    if _PACKAGE.fullmatch(word) is None:
        raise Refused("shell-network", f"{shown(word)} is not the name of a package of the registry.")
    return None


def _remote(session: Session, call: Call, word: str) -> None:
    if re.fullmatch(r"[A-Za-z][\w-]*(?:/[\w./-]+)?", word) is None:
        raise Refused("shell-network", f"{shown(word)} is not the name of a remote of this repository.")


def _source(session: Session, call: Call, word: str) -> None:
    if re.fullmatch(r"[A-Za-z][\w-]*", word) is None:
        session.places.fetched = check_url(word) or session.places.fetched


def _refspec(session: Session, call: Call, word: str) -> None:
    if _REFSPEC.fullmatch(word) is None:
        raise Refused("shell-dangerous", f"{shown(word)} forces or removes a branch of the remote, or is not known.")


def _url(session: Session, call: Call, word: str) -> None:
    local = bool(call.of("local")) or any(method not in ("GET", "HEAD") for method in call.of("method"))
    session.places.fetched = check_url(word, local=local) or session.places.fetched


def _method(session: Session, call: Call, word: str) -> None:
    if word not in ("GET", "HEAD", "POST", "PUT", "PATCH"):
        raise Refused("shell-network", f"The method {shown(word)} is not allowed; only reading is.")


def _volume(session: Session, call: Call, word: str) -> None:
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
    if not {"-C", "--directory", "-d"} & call.options:
        session.places.work_here()


def _reads_here(session: Session, call: Call, word: str) -> None:
    if not call.of("tree"):
        session.places.tree(".")


def _local_path(session: Session, call: Call, word: str) -> None:
    if ":" in word:
        raise Refused("shell-network", f"{shown(word)} names another machine; only local folders are copied.")


def _here(session: Session, call: Call, word: str) -> None:
    _local_path(session, call, word)
    session.places.inside(word)
    session.places.mention(word)


def _into(session: Session, call: Call, word: str) -> None:
    _local_path(session, call, word)
    session.places.write(word)


def _clear(session: Session, call: Call, word: str) -> None:
    if UNKNOWN in word or word.startswith("@") or "%output" in word or "%{stderr" in word or "service=" in word:
        raise Refused("shell-network", f"{shown(word)} would be sent, and is not written out.")
    session.places.mention(word)


def _download(session: Session, call: Call, word: str) -> None:
    _url(session, call, word)
    session.places.write(re.split(r"[?#]", word)[0].rstrip("/").rpartition("/")[2] or "index.html")


def _named(session: Session, call: Call, word: str) -> None:
    """Files the changes of which are undone: single ones, written out."""
    if is_wild(word) or "." not in word.rpartition("/")[2].strip(".") or word.startswith(":"):
        raise Refused("shell-delete", f"Undoing all changes of {shown(word)} cannot be undone; name single files.")
    session.places.inside(word)


def _ref(session: Session, call: Call, word: str) -> None:
    if UNKNOWN in word or not re.fullmatch(r"[A-Za-z0-9_][^:*\s]*|@.*|-", word) or word.strip("./") == "":
        raise Refused("shell-delete", f"{shown(word)} is not surely a branch or commit; changes may be lost.")


def _setting(session: Session, call: Call, word: str) -> None:
    """``NAME=value`` for another process, or the name of a variable or target to hand on."""
    name, equals, value = word.partition("=")
    if equals and call.entry.name in ("make", "gmake", "rake", "rails"):
        if re.search(r"[;|`\n$&<>]", value):
            raise unclear(f"{name[:40]} holds more than a value.")
        session.places.argument(value)
        session.check_variable(name.rstrip(":+?"), [value])
    elif not equals:
        session.state.values(name)
        session.places.argument(name)


def _image(session: Session, call: Call, word: str) -> None:
    if re.fullmatch(f"[A-Za-z0-9][\\w./:@{STAR}-]*", word) is None:
        raise Refused("shell-program", f"{shown(word)} is not the name of an image.")


def _resource(session: Session, call: Call, word: str) -> None:
    if UNKNOWN in word or "secret" in word.lower():
        raise Refused("shell-secret", f"{shown(word)} may be secrets of the cluster, which are not shown.")


def _node(session: Session, call: Call, word: str) -> None:
    if (
        re.fullmatch(
            r"(?:console\.log\()?(?:require\(['\"]\./[\w./-]*package\.json['\"]\)|process\.versions?)(?:\.\w+)*\)?;?|(?:console\.log\()?[\d\s+*/%()-]+\)?;?",
            word,
        )
        is None
    ):
        raise unknown(f"The program of {call.entry.name} is not judged; put it into a file of the project.")


def _media(session: Session, call: Call, word: str) -> None:
    if ":" in word or "%" in word:
        raise unclear(f"{shown(word)} is not a plain file.")
    session.places.read(word)


def _media_out(session: Session, call: Call, word: str) -> None:
    if ":" in word:
        raise Refused("shell-network", f"{shown(word)} is not a plain file.")
    session.places.write(word)


def _go_text(session: Session, call: Call, word: str) -> None:
    if UNKNOWN in word or "-ext" in word or "exec" in word:
        raise unclear(f"{shown(word)} may make the compiler run something else.")


def _go_package(session: Session, call: Call, word: str) -> None:
    if re.fullmatch(r"\./\.\.\.|[\w.-]+(?:/[\w.-]+)*(?:@[\w.-]+)?", word) is None:
        raise Refused("shell-network", f"{shown(word)} is not the name of a module.")


def _sbt(session: Session, call: Call, word: str) -> None:
    if (
        re.fullmatch(
            r"(?:clean|compile|test|package|run|update|scalafmt\w*|assembly|Test/compile|(?:testOnly|testQuick)(?: [\w.*]+)*)",
            word,
        )
        is None
    ):
        raise unknown(f"The task {shown(word)} is not known here.")


def _date_format(session: Session, call: Call, word: str) -> None:
    if not word.startswith("+") or "/" in word or UNKNOWN in word:
        raise unclear(f"{shown(word)} is not a plain format of a date; dates are only shown.")


def _key(session: Session, call: Call, word: str) -> None:
    if "=" in word or is_wild(word):
        raise Refused("shell-dangerous", f"{shown(word)} would change a setting of the system.")


def _in_container(session: Session, call: Call, word: str) -> None:
    container, colon, path = word.partition(":")
    if not colon:
        session.places.write(word)
    elif is_wild(word) or "/" in container:
        raise unclear(f"{shown(word)} is not a plain path of a container.")
    else:
        session.places.mention(path)


def _choice(session: Session, call: Call, word: str) -> None:
    raise unknown(f"{shown(word)} is not among what {call.entry.name} may be given here.")


#: Every kind of word, and what is checked about it.
KINDS: dict[str, Check] = {
    "text": _nothing,
    "positional": _nothing,
    "name": _plain_name,
    "number": _number,
    "one": _choice,
    "look": _look,
    "read": lambda session, call, word: session.places.read(word),
    "tree": lambda session, call, word: (session.places.read(word), session.places.tree(word))[0],
    "data": _read_value,
    "local": _read_value,
    "own": _own,
    "inside": _inside,
    "page": _page,
    "patch": _patch,
    "chdir": _chdir,
    "link": _link,
    "write": lambda session, call, word: session.places.write(word),
    "append": _append,
    "build": lambda session, call, word: session.build(word),
    "move": lambda session, call, word: session.places.move(word),
    "delete": lambda session, call, word: session.places.delete(word),
    "deltree": lambda session, call, word: session.places.delete(word, recursive=True),
    "found": _found,
    "app": _app,
    "delfound": _delete_found,
    "script": _script,
    "argument": lambda session, call, word: session.places.argument(word),
    "assign": _assign,
    "variable": _variable,
    "filled": _filled,
    "array": _array,
    "go": _go,
    "shell": _shell,
    "trap": _trap,
    "eval": _nothing,
    "python": _python,
    "awk": _code(check_awk),
    "sed": _code(check_sed),
    "jq": _code(check_jq),
    "sql": _code(check_sql),
    "module": _nothing,
    "command": _nothing,
    "tool": _nothing,
    "exec": _nothing,
    "pid": _pid,
    "mode": _mode,
    "package": _package,
    "remote": _remote,
    "source": _source,
    "refspec": _refspec,
    "url": _url,
    "host": lambda session, call, word: check_host(word),
    "method": _method,
    "volume": _volume,
    "changed": lambda session, call, word: session.places.write(word, notes=False),
    "archive": _archive,
    "unpacked": _unpacked,
    "inhere": _unpacks_here,
    "tree_here": _reads_here,
    "here": _here,
    "into": _into,
    "clear": _clear,
    "download": _download,
    "named": _named,
    "ref": _ref,
    "setting": _setting,
    "image": _image,
    "resource": _resource,
    "node": _node,
    "media": _media,
    "media_out": _media_out,
    "gotext": _go_text,
    "gopkg": _go_package,
    "sbt": _sbt,
    "key": _key,
    "dateformat": _date_format,
    "incontainer": _in_container,
    "sqltext": _code(check_sql),
    "environment": _nothing,
}
