"""Checks a word of a command by its kind: which file it reads or writes, what it sends, in which language it is.

Kinds that are patterns are in ``commands.yaml``; each check raises `ShellRefusal`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from lgov_core.places import FileChange
from lgov_core.policies.shell.calls import Call, files_of
from lgov_core.policies.shell.filenames import Effect
from lgov_core.policies.shell.languages import LANGUAGES, check_sed, check_sql
from lgov_core.policies.shell.syntax import (
    PIPE,
    STAR,
    UNKNOWN,
    ShellRefusal,
    is_wild,
    literal,
    sends,
    shown,
    unclear,
    unknown,
)
from lgov_core.policies.shell.table import Table, names, pattern
from lgov_core.policies.shell.workspace import Workspace

Check = Callable[[Workspace, Call, str], object]


def check_word(workspace: Workspace, call: Call, kind: str, word: str) -> None:
    """Checks a word as ``kind``: a pattern of the table with further checks, or one of `CHECKS`."""
    entry = pattern(kind)
    if entry is None:
        CHECKS[kind](workspace, call, word)
        return
    rule, expression, further = entry
    workspace.budget.spend(5 + len(word) // 4)
    if expression.fullmatch(word) is None:
        raise ShellRefusal(
            rule, f"{call.entry.name} may not be given {shown(word)} here: as {kind} it is not understood."
        )
    for name in further:
        check_word(workspace, call, name, word)


def _url(workspace: Workspace, call: Call, word: str) -> None:
    """An address, which ``egress`` judges. The host is the boundary: what is attached is judged as what is read."""
    judge, name = workspace.grants.url, call.entry.name
    if judge is None:
        raise sends(name)
    if is_wild(word):
        raise sends(name, f"would be given the address {shown(word)}, which is not written out.")
    if name == "wget" and "--max-redirect=0" not in call.options:
        raise sends(name, "follows to hosts that are not judged; write --max-redirect=0.")
    reason = judge(word)
    if reason is not None:
        raise ShellRefusal("shell-network", reason)


def _download(workspace: Workspace, call: Call, word: str) -> None:
    _url(workspace, call, word)
    workspace.write(re.split(r"[?#]", word)[0].rstrip("/").rpartition("/")[2] or "index.html")


def _attached(workspace: Workspace, call: Call, word: str) -> None:
    """Data that is sent: ``@file``, ``name=@file``, ``name=<file`` are the contents of a file."""
    match = re.fullmatch(r"(?:[^=@<]*=?)[@<](.*?)(?:;.*)?", word, re.DOTALL)
    if match is not None:
        workspace.read(match[1])
        workspace.inside(match[1])
    workspace.mention(word)


def _into(workspace: Workspace, call: Call, word: str) -> None:
    """The file or folder that files are copied to, moved to or linked from: each gets its name there."""
    sources = [source for kind in ("read", "tree", "move", "here", "link") for source in call.words_of(kind)]
    if any(is_wild(source) and not literal(source).strip("/") for source in sources if source[:1] != "/"):
        raise unclear("A file that * finds may have the name of an option, such as -t.git; write ./* instead.")
    if call.entry.name != "rsync":
        sources = [source.rstrip("/") for source in sources]
    whole = {
        "-T",
        "--no-target-directory",
        *(("-n", "--no-dereference") if call.entry.name == "ln" else ()),
    } & call.options
    folders = any(map(call.words_of, ("tree", "move", "here", "link")))
    how = None if not folders else "becomes" if whole else "enters"
    workspace.into(word, sources, moved=bool(call.words_of("move") or call.words_of("link")), folders=how)
    for source in call.words_of("tree"):
        if not is_wild(source):  # it writes through the links that are there
            workspace.pass_on("fills", word if whole else f"{word}/{source.rstrip('/').rpartition('/')[2]}")


def _link(workspace: Workspace, call: Call, word: str) -> None:
    symbolic = bool({"-s", "--symbolic"} & call.options)
    if not symbolic:  # of a link, another one
        workspace.pass_on("carries", word)
    workspace.makes_archives = True
    workspace.link(word, next(iter(call.words_of("into")), None), symbolic=symbolic)


def _followed(workspace: Workspace, call: Call, word: str) -> None:
    workspace.read(word)
    if word not in ("-", PIPE):
        workspace.search(word)
        workspace.pass_on("follows", word)


def _searched(workspace: Workspace, call: Call, word: str) -> None:
    """A tree whose files are read, all but those that options leave out."""
    folders = call.words_of("unpacked")
    if len(folders) > 1:
        raise unclear("It is not clear in which of several folders this packs; name one.")
    if folders:
        workspace.read(f"{folders[0]}/{word}")
        workspace.search(f"{folders[0]}/{word}")
    workspace.read(word)
    selections = [(kind.name, glob) for kind, glob in call.checks if kind.name in ("filter", "excluded")]
    globs = tuple((kind == "filter" and not glob.startswith("!"), glob.removeprefix("!")) for kind, glob in selections)
    apart = tuple(glob.rstrip("/") for glob in call.words_of("apart"))
    if call.entry.name == "rg":
        kinds = call.words_of("typed")
        others = not any(selects for selects, _ in globs) and not (kinds and names("harmless_types").issuperset(kinds))
        hidden = bool({"-.", "--hidden", "-u", "--unrestricted"} & call.options)
    else:
        others, hidden = not (globs and globs[0][0]), True
    workspace.search(word, globs=globs, folders=apart, others=others, hidden=hidden)


def _with_links(effect: Effect) -> Check:
    """An option by which a command follows the links in the trees that it is given, or makes the same ones elsewhere."""

    def check(workspace: Workspace, call: Call, word: str) -> None:
        trees = [word for kind in ("tree", "searched", "read", "here") for word in call.words_of(kind)]
        for tree in trees or ["."]:
            if effect == "follows":
                workspace.read(tree)
            workspace.pass_on(effect, tree)

    return check


def _edited(workspace: Workspace, call: Call, word: str) -> None:
    """A file that sed changes in its place: it is known how where it puts one text into it, as that is written."""
    pieces = [piece for program in call.words_of("sed") for piece in check_sed(program)]
    plain = len(pieces) < 2 and not any(re.search(r"[&\\]|\A\Z", piece) for piece in pieces)
    workspace.write(word, change=FileChange(pieces=tuple(pieces)) if plain else None)


def _compressed(workspace: Workspace, call: Call, word: str) -> None:
    """A file that another takes the place of, without the last part of its name."""
    workspace.write(word)
    for sign in ".-_":
        workspace.write(word.rpartition(sign)[0] or word)
    workspace.makes_archives = True


def _packing(workspace: Workspace, call: Call, word: str) -> None:
    """A file that another with a longer name takes the place of."""
    workspace.write(word)
    workspace.makes_archives = True


def _parts(workspace: Workspace, call: Call, word: str) -> None:
    """A file whose parts get names of their own, with an x where no other beginning is given."""
    workspace.read(word)
    workspace.makes_archives = True
    if not call.words_of("prefix"):
        workspace.write(f"x{STAR}")


def _packed(workspace: Workspace, call: Call, word: str) -> None:
    """An archive. The names that it holds are not known: they may not get into a folder that the text works in."""
    workspace.read(word)
    if not {"-l", "-t", "-Z", "-v", "-p"} & call.options:
        if re.search(r"[*?\[\\]", word):
            raise unclear(f"It is not clear which archives {shown(word)} names; write one name.")
        for name in (word, f"{word}.zip", f"{word}.ZIP"):
            _unpack(workspace, call, name)


def _unpacked(workspace: Workspace, call: Call, word: str) -> None:
    """The folder that the commands of an archive work in; `_unpack` judges what gets into it."""
    workspace.inside(word)


def _unpack(workspace: Workspace, call: Call, archive: str) -> None:
    folder, *others = call.words_of("unpacked") or ["."]
    if others:
        raise unclear("It is not clear into which of several folders this unpacks; name one.")
    if not all(map(str.isdecimal, call.words_of("number"))):
        raise unclear("It is not clear how many leading names this leaves out; write a number.")
    strip = max(map(int, call.words_of("number")), default=0)
    program = call.entry.name
    if program == "tar":
        packed = [name for name, options in _PACKED_BY.items() if options & call.options]
        if len(packed) > 1 or "--zstd" in call.options:
            raise unclear("It is not clear how this archive is packed; leave that to tar.")
        program = "".join(packed) or program
    workspace.unpack(archive, folder, -1 if "-j" in call.options and program == "unzip" else strip, program)


def _sql(dialect: str) -> Check:
    return lambda workspace, call, word: check_sql(word, dialect, workspace.grants.sql)


def _language(name: str) -> Check:
    def check(workspace: Workspace, call: Call, word: str) -> None:
        workspace.budget.spend(50 + 10 * len(word))
        LANGUAGES[name](word)

    return check


def _delete_found(workspace: Workspace, call: Call, word: str) -> None:
    workspace.exact, before = True, workspace.exact
    for file in files_of(call):
        workspace.delete(file)
    workspace.exact = before


def _user(workspace: Workspace, call: Call, word: str) -> None:
    """A user of this machine: ``ps -u`` takes any other word for options, of which ``e`` shows the environment."""
    if word not in _users():
        check_word(workspace, call, "bsd", word)


@lru_cache(1)
def _users() -> frozenset[str]:
    with suppress(OSError), open("/etc/passwd", encoding="utf-8", errors="replace") as file:
        return frozenset(line.partition(":")[0] for line in file)
    return frozenset()


def _filled(workspace: Workspace, call: Call, word: str) -> None:
    """A variable that is given the next line of the input."""
    check_word(workspace, call, "variable", word)
    whole = len(call.words_of("filled")) == 1 and not {"-n", "-N", "-d", "-t"} & call.options
    if whole and call.input.source != "file" and not any("\\" in value for value in call.input.values):
        values = [line.strip() for value in call.input.values for line in value.split("\n")]
    else:
        values = [UNKNOWN]
    workspace.assign(word, *values)


def _choice(workspace: Workspace, call: Call, word: str) -> None:
    raise unknown(f"{shown(word)} is not among what {call.entry.name} may be given here.")


#: Options of ``tar`` by the program that it unpacks with.
_PACKED_BY = {"gzip": {"-z", "--gzip"}, "bzip2": {"-j", "--bzip2"}, "xz": {"-J", "--xz"}}
#: Options of ``tar`` that make an archive.
_PACKS = {"-c", "--create"}
#: Kinds of words that the session runs as commands, or that are any text.
_TEXTS = ("text", "pair", "look", "command", "exec", "environment", "shell")
#: Every kind of word that is not a pattern, and the further checks of those that are.
CHECKS: dict[str, Check] = {
    **dict.fromkeys(_TEXTS, lambda workspace, call, word: None),
    **{name: _language(name) for name in LANGUAGES},
    **{dialect: _sql(dialect) for dialect in ("sqlite", "postgres", "duckdb")},
    "one": _choice,
    "read": lambda workspace, call, word: workspace.read(word),
    "tree": lambda workspace, call, word: workspace.read(word),
    "searched": _searched,
    "followed": _followed,
    "follows": _with_links("follows"),
    "carries": _with_links("carries"),
    "attached": _attached,
    "mention": lambda workspace, call, word: workspace.mention(word),
    **dict.fromkeys(("excluded", "apart", "typed"), lambda workspace, call, word: None),
    "argument": lambda workspace, call, word: workspace.argument(word),
    "within": lambda workspace, call, word: workspace.inside(word),
    "filter": lambda workspace, call, word: word.startswith("!") or workspace.mention(word),
    "write": lambda workspace, call, word: workspace.write(word),
    "prefix": lambda workspace, call, word: workspace.write(word + STAR),
    "zipped": lambda workspace, call, word: [workspace.write(name) for name in (word, f"{word}.zip")],
    "parts": _parts,
    "packing": _packing,
    "edited": _edited,
    "touched": lambda workspace, call, word: workspace.write(
        word, may_be_secret=True, change=FileChange("", appended=True)
    ),
    "append": lambda workspace, call, word: workspace.write(word, may_be_secret=True),
    "into": _into,
    "link": _link,
    "move": lambda workspace, call, word: workspace.move(word),
    "delete": lambda workspace, call, word: workspace.delete(word),
    "deltree": lambda workspace, call, word: workspace.delete(word, recursive=True),
    "delfound": _delete_found,
    "compressed": _compressed,
    "packed": _packed,
    "extract": lambda workspace, call, word: _unpack(workspace, call, next(reversed(call.words_of("archive")), "-")),
    "archived": lambda workspace, call, word: (workspace.write if _PACKS & call.options else workspace.read)(word),
    "unpacked": _unpacked,
    "set": lambda workspace, call, word: workspace.check_variable(*word.split("=", 1), handed=True),
    "user": _user,
    "value": lambda workspace, call, word: workspace.state.values(word),
    "filled": _filled,
    "go": lambda workspace, call, word: workspace.state.go(word),
    "url": _url,
    "download": _download,
}


@lru_cache(1)
def default_table() -> Table:
    """The table of ``commands.yaml``."""
    return Table(CHECKS)
