"""Which files a text may read, write, remove and run, and which variables it may set, in the folders it may be in."""

from __future__ import annotations

import ast
import os.path
import posixpath
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import pairwise

from lgov_core.policies.content.secrets import CREDENTIAL_NAMES
from lgov_core.policies.shell.syntax import (
    ANY,
    BELOW,
    HOME,
    PIPE,
    STAR,
    UNKNOWN,
    Budget,
    ShellRefusal,
    as_glob,
    is_wild,
    literal,
    shown,
    unclear,
    unknown,
)
from lgov_core.policies.shell.table import allowed_values, data, globs, names, regex
from lgov_core.policies.shell.words import State

_SCRATCH = ("/tmp", "/var/tmp")
#: Wildcards of one word beyond which it may be anything.
MAX_WILD = 24
#: A quoted wildcard that another program expands, in names with a leading dot too.
_WILDCARDS = str.maketrans({"*": f"{BELOW}{STAR}", "?": ANY, "[": ANY})
_CREDENTIALS = re.compile("|".join(map(translate, CREDENTIAL_NAMES)))


class Workspace:
    """The effects that one text has, and may have, on files and variables; used by one thread.

    Each check raises `ShellRefusal`.

    ``writable`` are folders in which files may be changed, ``home`` is the folder in which the text starts.
    """

    def __init__(self, home: str, writable: Sequence[str]) -> None:
        self.home, self.writable = home, tuple(writable)
        self.state, self.budget = State(home), Budget()
        #: What the text has written, and whether it has fetched anything from another machine.
        self.written: set[str] = set()
        self.fetched = False
        #: Whether it has changed files of the project, which the project's tools may run.
        self.changed = False
        #: Whether it has unpacked files, of whatever names.
        self.unpacked = False
        #: Whether the shell shows the lines that it runs.
        self.shows = False
        #: Programs that it has compiled from sources of the project.
        self.built: set[str] = set()
        #: Files and folders that it has moved: a build does not make them again.
        self.moved: set[str] = set()
        #: Whether names of files that a search finds are passed on unchanged, not split at spaces.
        self.exact = False

    def read(self, word: str) -> None:
        """Refuses a file whose contents are secret, or may be because its name is not certain."""
        if word in ("-", PIPE):
            return
        paths = self._paths(word)
        self.mention(word)
        for path in paths:
            self.budget.spend(20 + len(path) // 8)
            if _is_secret(self._relative(path) if self._is_ours(path) else path):
                raise _secret(word)
        if BELOW in word:
            self.tree(word.partition(BELOW)[0] or ".")

    def mention(self, word: str) -> None:
        """Refuses a word that names a secret anywhere in it: a program with arguments of its own may read it."""
        self.budget.spend(20 + len(word) // 8)
        for piece in {word, *re.split(r"[=:@,]", word.removeprefix("file://")), re.sub(r"^-\w(?=[/~.])", "", word)}:
            climbed = re.sub(r"^(?:\.{1,2}/+)*\.\./+", "/", piece)
            # Programs expand wildcards of their own: ``git log -- '*.env'``.
            readings = {piece, climbed, re.sub(r"^:\([a-z,]*\)|^:/", "", piece).translate(_WILDCARDS)}
            if piece and any(map(_is_secret, readings)):
                raise _secret(word)

    def tree(self, word: str) -> None:
        """Refuses a folder that is read as a whole when there are secrets in it."""
        if any(regex("paths", "holding_secrets").fullmatch(path) for path in self._paths(word)):
            raise ShellRefusal("shell-secret", f"{shown(word)} holds secrets somewhere below; name the files.")

    def argument(self, word: str) -> None:
        """Refuses an argument of a project's own program that names a secret or a place outside of the project."""
        if word == UNKNOWN:
            return
        self.mention(word)
        for piece in {word, word.rpartition("=")[2], re.sub(r"^-\w", "", word)}:
            if piece.startswith(("/", "../", HOME)) and not globs("system").match(piece) and piece != PIPE:
                self.inside(piece)

    def inside(self, word: str) -> None:
        """Refuses what may lie outside of the project and the writable folders."""
        if not all(map(self._is_ours, self._paths(word))):
            raise ShellRefusal(
                "shell-write", f"{shown(word)} lies outside of {', '.join((self.home, *self.writable))}."
            )

    def enter(self, word: str) -> None:
        """Goes to a folder of the project or a writable one, for one command that fails where the folder is missing."""
        self.inside(word)
        self.state.go(word)
        self.state.failed = ()

    def write(self, word: str, *, may_be_secret: bool = False, track: bool = True) -> None:
        """Refuses what may lie outside of the writable folders, or makes other programs run code.

        Without ``track`` the text may still run the file.
        """
        if word in names("files", "sinks"):
            return
        if word.startswith(("|", "!")):
            raise unclear(f"{shown(word)} is not a plain file.")
        for path in self._paths(word):
            self.budget.spend(20 + len(path) // 8)
            if not any(_inside(path, root) for root in self.writable):
                raise ShellRefusal("shell-write", f"{shown(word)} lies outside of {', '.join(self.writable)}.")
            below = self._relative(path).split("/")
            if any(_is_protected(name) for name in (*below, *("/".join(pair) for pair in pairwise(below)))):
                raise ShellRefusal("shell-write", f"{shown(word)} makes other programs run what is in it.")
            if not may_be_secret and _is_secret("/".join(below)):
                raise _secret(word)
            if track:
                self.changed |= _inside(path, self.home) and not globs("outputs").match(below[-1])
                if BELOW in path:
                    raise ShellRefusal("shell-write", f"{shown(word)} may be any file; name the files.")
                self.written.add(path)
                self.built.discard(path)

    def move(self, word: str) -> None:
        """Refuses what may not be written, and the folders that the text works in."""
        self.write(word)
        self.moved.update(self._paths(word))
        self._keep_roots(word)

    def delete(self, word: str, *, recursive: bool = False) -> None:
        """Refuses what is not one file (or, when ``recursive``, a tree that a build makes again) in a writable folder."""
        try:
            self.write(word, track=False)
        except ShellRefusal as refused:
            rule = "shell-delete" if refused.rule == "shell-write" else refused.rule
            raise ShellRefusal(rule, refused.reason) from None
        self._keep_roots(word)
        for path in self._paths(word):
            if recursive and any(_inside(moved, path) or _inside(path, moved) for moved in self.moved):
                raise ShellRefusal("shell-delete", f"{shown(word)} is or holds what this text moves.")
            if BELOW in path and not self.exact:
                raise ShellRefusal(
                    "shell-delete", "A name with a space would be several; use find -delete or xargs -0."
                )
            if self._is_scratch(path) or any(map(_is_regenerable, self._relative(path).split("/"))):
                continue
            folder, _, name = path.rpartition("/")
            deep = STAR in folder or BELOW in path
            left_over = as_glob(name.replace(BELOW, "")) in names("files", "left_overs")
            if is_wild(path) and not left_over and (deep or name[:1] in (STAR, ANY, UNKNOWN)):
                raise ShellRefusal("shell-delete", f"{shown(word)} may be anything; name the files.")
            if recursive and regex("paths", "one_file").fullmatch(name) is None:
                raise ShellRefusal(
                    "shell-delete", f"Removing the tree {shown(word)} cannot be undone; remove single files."
                )

    def _keep_roots(self, word: str) -> None:
        """Refuses devices, and folders that the text works in."""
        holds = any(_inside(root, path) for path in self._paths(word) for root in self._roots())
        if holds or word in names("files", "sinks"):
            raise ShellRefusal("shell-delete", f"{shown(word)} is a device or the working folder, or holds it.")

    def _is_scratch(self, path: str) -> bool:
        """Returns whether a path surely lies in ``/tmp``, and is not where the text works."""
        if not any(_inside(path, root) and path != root for root in _SCRATCH) or _inside(path, self.home):
            return False
        if posixpath.dirname(path) in _SCRATCH and path.endswith(f"/{STAR}"):  # which may be empty
            return False
        glob, depth = as_glob(path), path.count("/")
        roots = [root.split("/") for root in self._roots() if root not in _SCRATCH]
        return not any(len(root) > depth and fnmatchcase("/".join(root[: depth + 1]), glob) for root in roots)

    def program(self, word: str) -> None:
        """Refuses a program that is neither the project's nor built by this text, or a secret, which errors would show."""
        self.mention(word)
        self.project_file(word)

    def project_file(self, word: str) -> None:
        """Refuses a file that is run and is neither the project's nor built by this text."""
        paths = self._paths(word)
        if self.built.issuperset(paths):
            return
        for path in paths:
            if is_wild(path) or "://" in word or not _inside(path, self.home) or ".git" in path.split("/"):
                raise ShellRefusal("shell-program", f"{shown(word)} is not a program of {self.home}.")
        self.unwritten(word)
        self.unchanged(word, self.changed)

    def unchanged(self, word: str, changed: bool) -> None:
        """Refuses a program that runs files of the project which the same text has changed or fetched."""
        if changed or self.fetched:
            raise ShellRefusal(
                "shell-program", f"{shown(word)} may run what this text changes or fetches; make it a call of its own."
            )

    def unwritten(self, word: str) -> None:
        """Refuses a program that the same text has written, or may have fetched."""
        if self.fetched or not self.written.isdisjoint(self._paths(word)):
            raise ShellRefusal(
                "shell-program", f"{shown(word)} may be what this text writes or fetches; look at it first."
            )

    def is_secret(self, word: str) -> bool:
        """Returns whether a file is known to hold secrets."""
        return any(map(_is_secret, self._paths(word)))

    def by_name(self, values: Sequence[str]) -> None:
        """Refuses a value of ``PATH`` with a folder in which the text has written, or may have fetched, programs."""
        for folder in {folder for value in values for folder in value.split(":") if folder.startswith("/")}:
            folder = os.path.normpath(folder)
            written = any(_inside(path, folder) or _inside(folder, path) for path in self.written)
            if self._is_ours(folder) and (written or self.fetched):
                raise ShellRefusal(
                    "shell-program", f"A program in {shown(folder)} may be what this text writes or fetches."
                )

    def modules(self, named: Iterable[str]) -> None:
        """Refuses Python that looks for modules in the current folder, where the text has written one of its own.

        That is one of ``named``, or one of a name that Python's own modules have.
        """
        folders = [*self.state.folders]
        here = [f"{path}/".removeprefix(f"{folder}/").rstrip("/") for folder in folders for path in self.written]
        own = {re.split(r"[./]", path, maxsplit=1)[0] for path in here if path.endswith((".py", ".pyc", ".so"))}
        if self.unpacked or "" in here or own & {*sys.stdlib_module_names, *named}:
            raise ShellRefusal("shell-program", "Python may import what this text writes; make it a call of its own.")

    def at_home(self, word: str) -> None:
        """Refuses what may lie outside of the folder that the text starts in: programs and settings come from there."""
        if not all(_inside(path, self.home) for path in self._paths(word)):
            raise ShellRefusal("shell-program", f"{shown(word)} lies outside of {self.home}, where programs are.")

    def build(self, word: str) -> None:
        """A program that a compiler writes; the text may run it unless it has written or fetched sources."""
        trusted, changed = not self.written and not self.fetched, self.changed
        self.write(word)
        if trusted:
            self.written.clear()
            self.changed = changed
            self.built.update(self._paths(word))

    def check_variable(self, name: str, *values: str) -> None:
        """Refuses to set a variable that makes programs run something else, or send things elsewhere."""
        if any("$(" in value or "`" in value for value in values):
            raise unclear(f"{name[:40]} would hold a command that programs may run; leave it out.")
        if name == "PATH":
            self.by_name(values)
        if name == "PYTHONPATH":
            for entry in filter(None, ":".join(values).split(":")):
                self.program(entry)
        closed = regex("variables", "closed").fullmatch(name) is not None
        allowed = allowed_values().get(name, "(?!)" if closed else "")
        if name.isupper() and not closed and any(map(self._leads_away, values)):
            closed, allowed = True, "(?!)"
        if closed and not all(re.fullmatch(allowed, value) for value in values):
            raise ShellRefusal(
                "shell-environment", f"Setting {name[:40]} changes what other programs run; leave it out."
            )

    def _leads_away(self, value: str) -> bool:
        """Returns whether a value that programs may read from the environment is an option, a setting or a place elsewhere."""
        if value.startswith("-") or re.match(r"[\w.]+=", value):
            return True
        return value.startswith(("/", "..", HOME)) and not _inside(os.path.normpath(value), self.home)

    def assign(self, name: str, *values: str) -> None:
        """Gives a variable one of ``values``. Refuses what `check_variable` refuses."""
        self.check_variable(name, *values)
        self.state.assign(name, values)

    def _paths(self, word: str) -> list[str]:
        """Where a word may lead, from every folder that the text may be in."""
        folders = self.state.folders
        self.budget.spend((4 + len(word) // 16) * len(folders))
        if UNKNOWN in word or "\n" in word or not word:
            raise unclear("It is not clear which file this is; write its name out.")
        if ".." in re.split(f"[{STAR}{BELOW}]", word, maxsplit=1)[-1] and is_wild(word):
            raise unclear("A wildcard followed by .. may lead anywhere; write the name out.")
        return list({os.path.normpath(os.path.join(folder, word)).replace("//", "/") for folder in folders})

    def _roots(self) -> tuple[str, ...]:
        return (*self.writable, self.home, *self.state.folders)

    def _is_ours(self, path: str) -> bool:
        return any(_inside(path, root) for root in (self.home, *self.writable))

    def _relative(self, path: str) -> str:
        """A path relative to the deepest of our folders that holds it."""
        root = max((root for root in (self.home, *self.writable) if _inside(path, root)), key=len)
        return posixpath.relpath(path, root)


def _secret(word: str) -> ShellRefusal:
    return ShellRefusal("shell-secret", f"{shown(word)} holds keys, credentials or private history.")


def _is_regenerable(name: str) -> bool:
    if is_wild(name.replace(BELOW, "")):
        return as_glob(name) in names("files", "regenerable")
    return globs("regenerable").match(name.replace(BELOW, "")) is not None


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


@lru_cache(4096)
def _is_protected(name: str) -> bool:
    name = name.lower().replace(BELOW, "")
    if globs("protected").match(name) is not None:
        return True
    hidden = name[:1] == "." and is_wild(name)
    return hidden and any(fnmatchcase(protected, as_glob(name)) for protected in names("files", "protected"))


def _is_secret(word: str) -> bool:
    """Returns whether a path names a secret by its name or place, or may do so through a wildcard."""
    if word == PIPE:  # its commands are judged by themselves
        return False
    path = re.sub(f"{STAR}{{2,}}", STAR, re.sub(r"/{2,}", "/", word.replace(BELOW, "")))
    if len(path) - len(literal(path)) > MAX_WILD:
        return True
    if "/./" in path or "/../" in path or path.startswith("./"):
        path = os.path.normpath(path)
    path = re.sub(r"^(?:/proc/(?:self|thread-self|\d+)/(?:root|cwd)|file:/+)(?=/)", "", path)
    parts = path.split("/")
    called = [*parts, *("/".join(pair) for pair in pairwise(parts))]
    if globs("templates").match(parts[-1]):
        called = [name for name in called if name not in (parts[-1], ".ssh") and not name.startswith(".ssh/")]
    if any(_is_secret_name(name) for name in called if name):
        return True
    if path.startswith("/") and globs("secret_places").match(path) is not None:
        return True
    # ``.*`` and ``.e*``: of a hidden file too little is said to know that it is not one of these.
    if any(name[:1] == "." and is_wild(name) and len(literal(name)) < 3 for name in parts):
        return True
    return is_wild(path) and _may_be_secret(path, hidden=BELOW in word)


@lru_cache(4096)
def _is_secret_name(name: str) -> bool:
    return any(expression.match(name.lower()) for expression in (_CREDENTIALS, globs("secret_names")))


def _may_be_secret(path: str, *, hidden: bool) -> bool:
    """Returns whether a path with wildcards may be one of the examples.

    ``hidden``: a search matches a leading dot with a wildcard.
    """
    name = path.rpartition("/")[2]
    if len(literal(path).replace("/", "")) < 2:
        return path.startswith("/")
    if not path.startswith(("/", ".")) and len(literal(name).replace(".", "")) < 2:
        return False
    steps = {UNKNOWN: ".*", STAR: "[^/]*", ANY: "[^/]"}
    whole, last = (
        re.compile("".join(steps.get(letter, re.escape(letter)) for letter in text), re.DOTALL | re.IGNORECASE)
        for text in (path, name if len(literal(name).replace(".", "")) > 1 else "/")
    )
    for example in names("files", "secret_examples"):
        base = example.rpartition("/")[2]
        dotted = base.startswith(".") and name[:1] in (STAR, ANY)
        matches = whole.fullmatch(example) or (_is_secret_name(base) and last.fullmatch(base))
        if (hidden or not dotted) and matches:
            return True
    return False


@lru_cache(1)
def _allowed() -> tuple[tuple[type[ast.AST], ...], Mapping[str, tuple[str, ...]]]:
    """The node types that a program may have, and the names that it may use of each module."""
    modules = {module: tuple(listed.split()) for module, listed in data()["python"]["modules"].items()}
    return tuple(getattr(ast, name) for name in names("python", "syntax")), modules


def check_python(text: str, workspace: Workspace) -> None:
    """Refuses a Python program unless it uses nothing but its own names and those of ``python`` in ``commands.yaml``.

    ``open`` is given a literal name, and judged as if the command named the file.
    """
    workspace.budget.spend(50 + 20 * len(text))
    try:
        if is_wild(text):
            raise _not_judged("text that is not known")
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _not_judged("what is not understood") from None
    syntax, module_names = _allowed()
    builtins, methods = names("python", "builtins"), names("python", "methods")
    modules, imported = _imported(nodes, module_names)
    workspace.modules(name.partition(".")[0] for name in modules.values())
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    if own & {"open", *modules, *imported, *builtins}:
        raise _not_judged("a name with two meanings")
    callees = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    allowed = {*own, *imported, *builtins, *modules}
    for node in nodes:
        if not isinstance(node, syntax):
            raise _not_judged(type(node).__name__)
        if isinstance(node, ast.Name) and node.id not in allowed:
            if node.id != "open" or id(node) not in callees:
                raise _not_judged(node.id)
            _check_open(callees[id(node)], workspace)
        elif isinstance(node, ast.Attribute):
            used = methods
            if isinstance(node.value, ast.Name) and node.value.id in modules:
                used = (*module_names.get(modules[node.value.id], ()), *names("python", "versions"))
            elif isinstance(node.value, ast.Name | ast.Attribute):
                used = (*methods, *module_names["datetime"])
            if not isinstance(node.ctx, ast.Load) or node.attr not in used:
                raise _not_judged(node.attr)


def _imported(nodes: list[ast.AST], allowed: Mapping[str, tuple[str, ...]]) -> tuple[dict[str, str], set[str]]:
    """The modules by their names here, and names taken out of modules."""
    modules: dict[str, str] = {}
    imported: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules.update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            if any(alias.name not in allowed.get(node.module or "", ()) for alias in node.names):
                raise _not_judged(f"{node.module}")
            imported.update(alias.asname or alias.name for alias in node.names)
    return modules, imported


def _not_judged(what: str) -> ShellRefusal:
    return unknown(f"The Python program uses {what[:40]}, which is not judged; put it into a file of the project.")


def _check_open(call: ast.Call, workspace: Workspace) -> None:
    arguments = [*call.args, *(each.value for each in call.keywords if each.arg in ("mode", "encoding", "newline"))]
    words = [
        argument.value
        for argument in arguments
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    if not call.args or len(words) != len(call.args) + len(call.keywords):
        raise _not_judged("open without a plain name")
    workspace.read(words[0])
    if re.search(r"[wax+]", "".join(word for word in words[1:] if re.fullmatch(r"[rwaxbt+]+", word))):
        workspace.write(words[0])
