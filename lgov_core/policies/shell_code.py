"""Code that is handed to an interpreter on the command line: judged where it is plain, refused where it is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Set

from lgov_core.policies.options import names
from lgov_core.policies.shell_code_data import DATA_MODULES, check_data, refuse
from lgov_core.policies.shell_code_files import Files
from lgov_core.policies.shell_places import Places, Refused

MAX_CODE = 4000
_MODULES = frozenset(
    names(
        """
    json math re sys platform datetime time statistics string textwrap itertools functools collections random
    decimal fractions base64 hashlib uuid calendar locale pprint operator typing dataclasses enum unicodedata
    html csv tomllib colorsys binascii zlib struct bisect heapq numbers cmath keyword sysconfig difflib ast
    tokenize secrets
    """
    )
)
_BUILTINS = frozenset(
    names(
        """
    print len repr str int float bool list dict set tuple sorted range sum min max abs round enumerate zip map
    filter any all isinstance type format ord chr hex oct bin reversed divmod pow hash bytes next iter
    """
    )
)
#: Attributes that lead from a plain value or module to code, files or the interpreter's inside.
_CLOSED = frozenset(
    names(
        """
    os subprocess sys shutil builtins posix importlib io socket codecs inspect ctypes runpy pty open system
    popen spawn exec eval compile modules settrace setprofile f_globals gi_frame environ getenv load_module
    meta_path path_hooks addaudithook breakpointhook displayhook excepthook attrgetter methodcaller get_data
    unlink remove rmtree write_text write_bytes read_text read_bytes putenv main remote_exec
    get_field get_value vformat get_type_hints ForwardRef evaluate_forward_ref call singledispatch singledispatchmethod
    types bltns FunctionType LambdaType CodeType MethodType
    register update_wrapper wraps tb_frame f_builtins f_locals f_back f_code cr_frame ag_frame gi_code
    """
    )
)
_CLOSED_NAMES = frozenset(
    names(
        """
    eval exec compile getattr setattr delattr globals locals vars input breakpoint memoryview super object
    help
    """
    )
)
#: What may be asked of any module.
_ABOUT = frozenset({"__version__", "__file__", "__name__", "__doc__", "VERSION"})
_HARMLESS = frozenset(
    names(
        """
    os.getcwd os.cpu_count os.sep os.name os.linesep os.path.join os.path.basename os.path.dirname
    os.path.abspath os.path.exists os.path.isfile os.path.isdir os.path.getsize os.path.expanduser
    os.path.splitext os.path.getmtime os.path.relpath os.path.normpath os.path.isabs os.path.commonpath os.walk os.listdir
    """
    )
)
_JAVASCRIPT = re.compile(r"(?:console\.log\(|)[\w\s.,'\"+\-*/%()\[\]{}:?<>=!&|]*\)?;?")
_JSON_FILE = re.compile(r"""(?<![\w.$])require\((['"])(\.{1,2}/[\w./-]{1,200}\.json)\1\)""")
_JAVASCRIPT_CLOSED = re.compile(
    r"require|import|eval|Function|constructor|process(?!\.(?:version|versions|platform|arch|cwd|uptime)\b)|getOwn|[pP]rototype|define|assign|__|bind|apply|\bcall\b|global|child|fetch|Bun|Deno|[\w)\]}'\"]\s*\["
)

#: The names that a JavaScript expression may begin with: on the command line, node has its modules as names too (``fs``).
_JAVASCRIPT_NAMES = frozenset(
    names(
        """
    console JSON Math Object Array Number String Boolean Date Intl Symbol BigInt parseInt parseFloat isNaN isFinite
    process true false null undefined NaN Infinity new typeof instanceof in void
    encodeURIComponent decodeURIComponent encodeURI decodeURI
    """
    )
)


def check_python(code: str, places: Places, writes: Callable[[str], None]) -> None:
    """Refuses Python that does more than compute, print, and read and write files that it names.

    ``places`` judges these files; ``writes`` takes note of those that are written.

    Any module may be imported (for its version, say); of modules other than the harmless ones nothing else is used.
    """
    if len(code) > MAX_CODE:
        raise Refused("shell-code", "python: put long programs into a file.")
    places.work.spend(6 * len(code))
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Refused("shell-code", "python: the program on the command line is no Python.") from None
    files = Files(places, writes)
    #: What is settled: files that are named, and names of modules that stand where only a harmless attribute is taken.
    plain = files.settled(tree) | _shown_paths(tree)
    modules, own = _own_names(tree, plain)
    data = frozenset(DATA_MODULES) if check_data(tree, modules, plain, files) else frozenset[str]()
    for node in ast.walk(tree):
        if id(node) not in plain:
            _check_node(node, modules, own, files, data)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                plain.add(id(node.func))  # what is called is judged with the call


def _own_names(tree: ast.Module, plain: set[int]) -> tuple[dict[str, str], set[str]]:
    """Modules by the names they have here, and names of functions; adds to ``plain``. Raises `Refused` for an import."""
    modules: dict[str, str] = {}
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                before = modules.get(name, alias.name)
                if before != alias.name and (alias.asname or before.partition(".")[0] != name):
                    refuse(f"{name} for two modules")
                modules[name] = alias.name
        elif isinstance(node, ast.ImportFrom):
            if id(node) not in plain:
                _check_import(node)
            own.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute):
            root = _dotted(node)
            if root is not None and (root[1] in _HARMLESS or node.attr in _ABOUT):
                plain.update(id(inner) for inner in ast.walk(node))
    return modules, own


def _check_import(node: ast.ImportFrom) -> None:
    known = not node.level and (node.module or "").partition(".")[0] in _MODULES
    for alias in node.names:
        if alias.name in ("*", "path") or alias.name in _CLOSED or not (known or alias.name in _ABOUT):
            refuse(f"from {node.module} import {alias.name}")


def _dotted(node: ast.expr) -> tuple[ast.Name, str] | None:
    """The first name and the whole text of ``a.b.c``."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node, ".".join([node.id, *reversed(names)])) if isinstance(node, ast.Name) else None


def _check_node(node: ast.AST, modules: dict[str, str], own: set[str], files: Files, data: Set[str]) -> None:
    if isinstance(node, ast.AsyncFunctionDef | ast.ClassDef | ast.Delete | ast.Global | ast.Nonlocal | ast.Match):
        refuse(type(node).__name__)
    elif isinstance(node, ast.FunctionDef):
        if node.decorator_list or node.name in _BUILTINS or node.name.startswith("__"):
            refuse(f"def {node.name}")
    elif isinstance(node, ast.Attribute):
        of_module = isinstance(node.value, ast.Name) and node.value.id in modules
        if node.attr in _CLOSED | _CLOSED_NAMES or node.attr.startswith("_") or node.attr == "path":
            refuse(f".{node.attr}")
        if of_module and not isinstance(node.ctx, ast.Load):
            refuse(f".{node.attr} =")
    elif isinstance(node, ast.Name):
        _check_name(node, modules, data)
    elif isinstance(node, ast.Call):
        _check_call(node, own, files)


def _check_name(node: ast.Name, modules: dict[str, str], data: Set[str]) -> None:
    stored = not isinstance(node.ctx, ast.Load)
    if stored and (node.id in modules or node.id in _BUILTINS or node.id == "open"):
        refuse(f"{node.id} =")
    module = modules.get(node.id)
    if module is not None and module.partition(".")[0] not in _MODULES and module not in data:
        refuse(f"the use of {modules[node.id]}")
    if node.id == "open" or node.id in _CLOSED_NAMES or (node.id.startswith("__") and node.id != "__name__"):
        refuse(node.id)


def _check_call(node: ast.Call, own: set[str], files: Files) -> None:
    if isinstance(node.func, ast.Name):
        if node.func.id == "open":
            files.opened(node)
        elif node.func.id not in _BUILTINS and node.func.id not in own:
            refuse(f"{node.func.id}()")
    elif not isinstance(node.func, ast.Attribute):
        refuse("a call of something computed")


def _shown_paths(tree: ast.Module) -> set[int]:
    """``sys.path`` (by id) where it is only looked at: code is loaded from what it holds."""
    looked_at: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "len", "str"):
            looked_at += [word.value if isinstance(word, ast.Starred) else word for word in node.args]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
            looked_at += node.args
        elif isinstance(node, ast.For | ast.comprehension):
            looked_at.append(node.iter)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            looked_at.append(node.value)
    return {id(node) for node in looked_at if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path"}


def check_javascript(code: str, places: Places) -> None:
    """Refuses JavaScript that does more than compute, print and load JSON files of the folder."""
    places.work.spend(2 * len(code))
    for match in _JSON_FILE.finditer(code):
        places.script(match[2])
        places.read(match[2])
    code = _JSON_FILE.sub("Object", code)
    plain = len(code) <= MAX_CODE and _JAVASCRIPT.fullmatch(code) is not None and not _JAVASCRIPT_CLOSED.search(code)
    if not plain or not _only_known_names(code):
        raise Refused("shell-code", "Code for an interpreter is not judged here; put it into a file of this folder.")


def _only_known_names(code: str) -> bool:
    """Whether an expression uses nothing but values: its strings left out, every name in it is a known one."""
    bare = re.sub(r"'[^'\n]*'|\"[^\"\n]*\"", "''", code)
    # A slash that does not divide begins a comment or a pattern, in which quotes mean nothing.
    if re.search(r"['\"]", bare.replace("''", "")) or re.search(r"(?<![\w)])\s*/|/\s*[^\s\w(.]", bare):
        return False
    keys = re.sub(r"(?<=[{,])\s*[A-Za-z_]\w*\s*(?=:)", "", bare).replace("...", " ")
    arguments = re.findall(r"(?<![\w.])([A-Za-z]|item|entry|key|value|name)\s*=>", keys)  # x => x * 2
    return all(name in _JAVASCRIPT_NAMES or name in arguments for name in re.findall(r"(?<![\w.])[A-Za-z_]\w*", keys))
