"""Files that Python on a command line names: read and written by name, with ``open`` or ``pathlib``, and nothing else."""

from __future__ import annotations

import ast
import posixpath
from collections import Counter
from collections.abc import Callable, Iterator

from lgov_core.policies.options import names
from lgov_core.policies.shell_code_search import found_by_glob, loops, stored_names, with_wildcards
from lgov_core.policies.shell_places import Places, Refused
from lgov_core.policies.shell_words import STAR

#: What a `Path` may be asked, once it is known which file it names.
_READING = frozenset(names("read_text read_bytes"))
_WRITING = frozenset(names("write_text write_bytes"))
_ASKING = frozenset(names("exists is_file is_dir name stem suffix"))
#: Fields of nodes that give a name to something without being a name themselves.
_BINDING = ("name", "arg", "asname", "rest")


class Files:
    """The files one program names. ``places`` judges them; ``writes`` takes note of those that are written."""

    def __init__(self, places: Places, writes: Callable[[str], None]) -> None:
        self.places, self._writes = places, writes
        #: Names of files, by the variable that is given nothing else, or that goes through what ``glob`` finds.
        self._found: dict[str, list[str]] = {}

    def opened(self, node: ast.Call) -> None:
        """Judges a call of ``open``: a file named in the text, and a mode that is written out. Raises `Refused`."""
        given = [argument.value if isinstance(argument, ast.Constant) else None for argument in node.args]
        named: list[str] = []
        if node.args and isinstance(node.args[0], ast.Name):
            named = self._found.get(node.args[0].id, [])
            given[0] = named[0] if named else None
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        mode = options.pop("mode", None)
        if mode is not None:
            given.append(mode.value if isinstance(mode, ast.Constant) else None)
        if not given or len(given) > 2 or not all(isinstance(word, str) for word in given):
            raise _refused("open() of anything but a file named in the text")
        if not options.keys() <= {"encoding", "errors", "newline"}:
            raise _refused("open() with such options")
        flags = str(given[1]) if len(given) > 1 else "r"
        if not flags or not set(flags) <= set("rwaxbt+"):
            raise _refused("open() in such a mode")
        for file in named or [str(given[0])]:
            if set(flags) & set("r+"):
                self.reads(file)
            if set(flags) & set("wax+"):
                self.writes(file)

    def settled(self, tree: ast.Module) -> set[int]:
        """The nodes (by id) that use ``pathlib`` for files named in the text, all judged. Raises `Refused`.

        A path is ``Path("a")``, joined to texts with ``/`` perhaps, or a variable that is given nothing else. Whatever else
        is done with a path is refused here: it could rename, link or remove.
        """
        found, searches = found_by_glob(tree)
        self._found = {**_texts(tree), **found}
        makers, modules, imports = _makers(tree)
        if not makers and not modules:
            return searches
        made = _Paths(tree, makers, modules)
        settled = {*imports, *searches}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and (files := made.of(node.value)) is not None:
                if id(node) not in made.searches:
                    self._asked(node, files)
                settled.update(id(inner) for inner in (node, *ast.walk(node.value)))
            elif isinstance(node, ast.Assign) and made.tracks(node):
                settled.update(id(inner) for inner in ast.walk(node.value))
            else:
                settled.update(self._shown(node, made))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or id(node) in settled:
                continue
            if node.id in {*makers, *modules, *made.variables}:
                raise _refused(f"{node.id} for more than reading or writing a file named in the text")
        return settled

    def _asked(self, node: ast.Attribute, files: list[str]) -> None:
        if node.attr not in _READING | _WRITING | _ASKING:
            raise _refused(f".{node.attr} of a path")
        for file in files:
            if node.attr in _READING:
                self.reads(file)
            elif node.attr in _WRITING:
                self.writes(file)

    def _shown(self, node: ast.AST, made: _Paths) -> list[int]:
        """Variables with a path (by id) that are only printed, or opened as a file."""
        if isinstance(node, ast.FormattedValue):
            return [id(node.value)] if isinstance(node.value, ast.Name) and node.value.id in made.variables else []
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            return []
        if node.func.id == "print":
            return [id(a) for a in node.args if isinstance(a, ast.Name) and a.id in made.variables]
        first = node.args[0] if node.args else None
        if node.func.id == "open" and isinstance(first, ast.Name) and first.id in made.variables:
            self._found[first.id] = made.variables[first.id]
            return [id(first)]
        return []

    def reads(self, file: str) -> None:
        """Judges a file that is read, or the files of one kind below a folder."""
        self.places.read(file)
        if STAR in file:
            self.places.read_tree(posixpath.dirname(file.partition(STAR)[0]) or ".")

    def writes(self, file: str) -> None:
        """Judges a file that is written, and takes note of it."""
        self.places.write(file)
        self._writes(file)


def _texts(tree: ast.Module) -> dict[str, list[str]]:
    """The variables that are given texts written out, and nothing else anywhere."""
    texts: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                texts.setdefault(name, []).append(text)
            case _:
                pass
    stored = stored_names(tree)
    bound = set(_bound(tree))
    return {name: given for name, given in texts.items() if stored[name] == len(given) and name not in bound}


class _Paths:
    """Which expressions of a program are paths, and of which files."""

    def __init__(self, tree: ast.Module, makers: set[str], modules: set[str]) -> None:
        self._makers, self._modules = makers, modules
        self.variables: dict[str, list[str]] = {}
        #: Searches below a path (by id) whose finds are the values of a loop's variable.
        self.searches: set[int] = set()
        assigned: Counter[str] = Counter()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                path = self._written(node.value)
                if path is not None:
                    self.variables.setdefault(node.targets[0].id, []).append(path)
                    assigned[node.targets[0].id] += 1
        for target, search in loops(tree):
            paths = self._searched(search)
            if paths:
                self.searches.add(id(search.func))
                self.variables.setdefault(target, []).extend(paths)
                assigned[target] += 1
        stored = stored_names(tree)
        bound = set(_bound(tree))
        for name in {*self.variables, *makers, *modules}:
            if stored[name] != assigned[name] or name in bound:
                raise _refused(f"a path in {name}, which is also something else,")

    def tracks(self, node: ast.Assign) -> bool:
        """Whether an assignment gives a variable its path."""
        return isinstance(node.targets[0], ast.Name) and self._written(node.value) is not None

    def of(self, node: ast.expr) -> list[str] | None:
        """The files that a path may be of; None for what is no path written out."""
        if isinstance(node, ast.Name):
            return self.variables.get(node.id)
        written = self._written(node)
        return None if written is None else [written]

    def _written(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            left = self._written(node.left)
            return posixpath.join(left, node.right.value) if left and isinstance(node.right.value, str) else None
        if not isinstance(node, ast.Call) or node.keywords or not node.args or not self._makes(node.func):
            return None
        parts = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        return posixpath.join(*parts) if len(parts) == len(node.args) else None

    def _searched(self, search: ast.Call) -> list[str]:
        """Which files ``Path("src").rglob("*.py")`` finds; none for anything else."""
        node = search.func
        if not isinstance(node, ast.Attribute) or node.attr not in ("glob", "rglob") or search.keywords:
            return []
        pattern = search.args[0] if len(search.args) == 1 else None
        if not isinstance(pattern, ast.Constant) or not isinstance(pattern.value, str) or pattern.value.startswith("/"):
            return []
        found = with_wildcards(("**/" if node.attr == "rglob" else "") + pattern.value)
        return [posixpath.join(base, found) for base in self.of(node.value) or ()] if found is not None else []

    def _makes(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr == "Path" and isinstance(node.value, ast.Name) and node.value.id in self._modules
        return isinstance(node, ast.Name) and node.id in self._makers


def _makers(tree: ast.Module) -> tuple[set[str], set[str], list[int]]:
    """What ``pathlib.Path`` and ``pathlib`` are called here, and the imports (by id) that bring in nothing else."""
    makers: set[str] = set()
    modules: set[str] = set()
    imports: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "pathlib" and not node.level:
            if all(alias.name == "Path" for alias in node.names):
                makers.update(alias.asname or alias.name for alias in node.names)
                imports.append(id(node))
        elif isinstance(node, ast.Import):
            modules.update(alias.asname or alias.name for alias in node.names if alias.name == "pathlib")
    return makers, modules, imports


def _bound(tree: ast.Module) -> Iterator[str]:
    """Names that are given to arguments, functions, exceptions and parts of patterns."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.alias | ast.keyword):
            yield from (name for field in _BINDING if isinstance(name := getattr(node, field, None), str))


def _refused(what: str) -> Refused:
    return Refused("shell-code", f"python: {what} is not allowed on the command line; put the program into a file.")
