"""Programs on a command line: which ones surely only compute, print and read what they name. All others are unknown."""

from __future__ import annotations

import ast
import re

from lgov_core.policies.options import names
from lgov_core.policies.shell.places import Places
from lgov_core.policies.shell.refusal import Refused, unknown

_BUILTINS = frozenset(
    names(
        """
    print len sum range sorted int str float bool min max abs round list dict set tuple enumerate zip map filter any all
    repr reversed divmod hex bin oct ord chr pow format isinstance next iter bytes
    """
    )
)
_METHODS = frozenset(
    names(
        """
    append extend items keys values get split splitlines strip lstrip rstrip join lower upper title replace startswith endswith
    count index find format read readlines readline write group groups start end most_common elements sort copy update add union
    intersection difference isdigit isalpha isalnum zfill ljust rjust center encode decode partition rpartition removeprefix
    removesuffix total_seconds isoformat strftime hex date time year month day exists is_file is_dir read_text write_text name
    suffix stem pop insert setdefault casefold translate capitalize swapcase hexdigest close
    """
    )
)
#: What may be used of a module; of any other one only its version.
_MODULES = {
    "json": names("load loads dump dumps"),
    "re": names("findall search match sub split compile fullmatch escape I M S IGNORECASE MULTILINE DOTALL"),
    "sys": names("version version_info stdin argv platform executable maxsize byteorder stdout stderr"),
    "math": names("sqrt pi e floor ceil log log2 log10 exp sin cos tan factorial gcd lcm comb perm prod hypot isqrt"),
    "collections": names("Counter defaultdict OrderedDict deque namedtuple"),
    "datetime": names("datetime date timedelta timezone now today utcnow fromisoformat fromtimestamp strptime utc"),
    "itertools": names("chain count product combinations permutations islice groupby accumulate"),
    "statistics": names("mean median stdev pstdev variance mode quantiles"),
    "csv": names("reader DictReader"),
    "hashlib": names("sha256 sha1 md5 sha512"),
    "time": names("time strftime"),
    "platform": names("python_version machine system"),
    "pathlib": names("Path"),
    "tomllib": names("load loads"),
    "yaml": names("safe_load"),
    "textwrap": names("dedent indent fill"),
    "typing": (),
}
_VERSIONS = ("__version__", "version", "VERSION", "__name__")
_SIMPLE = (
    *(ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.While, ast.With, ast.withitem, ast.Assert),
    *(
        ast.comprehension,
        ast.ListComp,
        ast.SetComp,
        ast.DictComp,
        ast.GeneratorExp,
        ast.IfExp,
        ast.Lambda,
        ast.arguments,
    ),
    *(
        ast.arg,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.Constant,
        ast.JoinedStr,
        ast.FormattedValue,
        ast.List,
    ),
    *(ast.Tuple, ast.Dict, ast.Set, ast.Subscript, ast.Slice, ast.Starred, ast.keyword, ast.operator, ast.unaryop),
    *(
        ast.boolop,
        ast.cmpop,
        ast.expr_context,
        ast.Break,
        ast.Continue,
        ast.Pass,
        ast.Import,
        ast.ImportFrom,
        ast.alias,
        ast.NamedExpr,
    ),
)


def check_python(text: str, places: Places) -> None:
    """Refuses a Python program unless all of it is known: no names but its own and a few of the standard library's.

    Files are named as literals (``open("a.txt")``, ``Path("a.txt")``), and judged as if the command named them.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise unknown("The Python program is not understood; put it into a file of the project.") from None
    _Python(tree, places).check()


class _Python:
    def __init__(self, tree: ast.Module, places: Places) -> None:
        self._tree, self._places = tree, places
        self._modules: dict[str, str] = {}  # names of modules here
        self._taken: set[str] = set()  # names taken from modules
        self._callees: set[int] = set()
        self._writes = "write_text" in ast.dump(tree)

    def check(self) -> None:
        nodes = list(ast.walk(self._tree))
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        if own & {*self._modules, *self._taken, "open", *_BUILTINS}:
            raise self._unknown("a name with two meanings")
        for node in nodes:
            if isinstance(node, ast.Call):
                self._call(node)
        if "Path" in self._taken or "pathlib" in self._modules.values():
            if any(isinstance(node, ast.Div) for node in nodes):
                raise self._unknown("a Path that is put together")
        for node in nodes:
            if isinstance(node, ast.Name):
                free = node.id in own or node.id in _BUILTINS or node.id in self._modules or node.id in self._taken
                if (not free or node.id == "Path") and id(node) not in self._callees:
                    raise self._unknown(node.id)
            elif isinstance(node, ast.Attribute):
                self._attribute(node)
            elif not isinstance(node, _SIMPLE) and not isinstance(node, ast.Call):
                raise self._unknown(type(node).__name__)

    @staticmethod
    def _unknown(what: str) -> Refused:
        return unknown(f"The Python program uses {what[:40]}, which is not judged; put it into a file of the project.")

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                self._modules[alias.asname or alias.name.partition(".")[0]] = alias.name
                if "." in alias.name or (alias.name == "os" and alias.asname):
                    raise self._unknown(alias.name)
            elif alias.name in _MODULES.get(node.module or "", ()):
                self._taken.add(alias.asname or alias.name)
                if alias.name == "Path" and alias.asname:
                    raise self._unknown(alias.asname)
            else:
                raise self._unknown(f"{node.module}.{alias.name}")

    def _call(self, node: ast.Call) -> None:
        callee = node.func
        called = callee.id if isinstance(callee, ast.Name) else callee.attr if isinstance(callee, ast.Attribute) else ""
        if called == "replace" and len(node.args) < 2:
            raise self._unknown("replace, which may rename a file,")  # a string's takes two words
        if called not in ("open", "Path"):
            return
        if isinstance(callee, ast.Name):
            self._callees.add(id(callee))
        if called == "open" and isinstance(callee, ast.Attribute):
            raise self._unknown("open of a module")
        words = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        words += [k.value.value for k in node.keywords if k.arg == "mode" and isinstance(k.value, ast.Constant)]
        keys = {keyword.arg for keyword in node.keywords}
        plain = len(words) == len(node.args) + ("mode" in keys) and keys <= {"mode", "encoding", "newline", "errors"}
        if not words or not plain or not all(isinstance(word, str) for word in words):
            raise self._unknown(f"{called} without a plain name")
        if called == "Path" and len(words) > 1:
            raise self._unknown("a Path of several parts")
        self._places.read(words[0])
        if self._writes or re.search(r"[wax+]", "".join(words[1:])):
            self._places.write(words[0])

    def _attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            raise self._unknown("a changed attribute")
        if isinstance(node.value, ast.Name) and node.value.id in self._modules:
            module = self._modules[node.value.id]
            if node.attr not in (*_MODULES.get(module, ()), *_VERSIONS):
                raise self._unknown(f"{module}.{node.attr}")
            if node.attr == "Path" and id(node) not in {
                id(c.func) for c in ast.walk(self._tree) if isinstance(c, ast.Call)
            }:
                raise self._unknown("Path without a name")
        elif node.attr not in _METHODS and not (isinstance(node.value, ast.Name) and node.attr in _datetime_names):
            raise self._unknown(node.attr)


_datetime_names = _MODULES["datetime"]

# ---------------------------------------------------------------------- other languages

_AWK_ACTS = re.compile(
    r"\bsystem\b|\bgetline\b|\bENVIRON\b|\bARGV\b|\bARGC\b|\bPROCINFO\b|\bSYMTAB\b|\bclose\b|\bfflush\b|@|(?<!\|)\|(?!\|)|&\||\|&"
)
#: A greater-than sign with a number behind it compares; others may write a file.
_AWK_COMPARES = re.compile(r">=?\s*-?\d+(?:\.\d+)?\s*(?=[){};&|?:\n]|$)")
_JQ_ENVIRONMENT = re.compile(
    r"(?<![.\w$\"])env\b|\$ENV|\$__prog|\binput_filename\b|(?<![.\w$\"])(?:load\w*|strenv|envsubst)\b|\b(?:import|include|debug|stderr|input_line_number)\b"
)


def check_awk(text: str) -> None:
    """Refuses an awk program that may run a command, write a file, or show the environment."""
    if _AWK_ACTS.search(text) or ">" in _AWK_COMPARES.sub("", text):
        raise unknown("The awk program may run commands or write files; put it into a file of the project.")


def check_jq(text: str) -> None:
    """Refuses a filter that shows the environment or loads another one."""
    if _JQ_ENVIRONMENT.search(text):
        raise unknown("The filter shows the environment or loads another one; write it without.")


_SED_ADDRESS = re.compile(
    r"(?:\d+(?:~\d+)?|\$|/(?:\\.|[^/\\\n])*/[IM]*)?(?:\s*,\s*(?:[+~]?\d+|\$|/(?:\\.|[^/\\\n])*/[IM]*))?\s*!?\s*"
)
_SED_PLAIN = re.compile(r"[pdqQPDnNgGhHxlz=]\d*\s*|[btT]\s*\w*\s*|:\s*\w+\s*|[aic](?:\\?\n?)[^\n]*|#[^\n]*|[{}]\s*")
_SED_FLAGS = re.compile(r"[gpIiMm\d]*")


def check_sed(text: str) -> None:
    """Refuses a sed script with anything but editing: no ``e``, ``r``, ``w``."""
    at, end = 0, len(text)
    while at < end:
        if text[at] in ";\n \t":
            at += 1
            continue
        match = _SED_ADDRESS.match(text, at)
        at = match.end() if match is not None else at
        if at < end and text[at] in "sy" and at + 1 < end:
            at = _after_substitution(text, at)
        elif (match := _SED_PLAIN.match(text, at)) is not None and match.end() > at:
            at = match.end()
        else:
            raise unknown("The sed script does more than editing, or is not understood; write it more simply.")


def _after_substitution(text: str, at: int) -> int:
    """Where ``s/a/b/flags`` or ``y/a/b/`` ends."""
    mark = text[at + 1]
    if mark in "\\\n" or mark.isalnum():
        raise unknown("The sed script is not understood; write it more simply.")
    parts, at = 0, at + 2
    while parts < 2:
        if at >= len(text):
            raise unknown("The sed script is not complete.")
        if text[at] == "\\":
            at += 1
        elif text[at] == "[" and mark != "[" and parts == 0 and (close := text.find("]", at + 2)) > 0:
            if mark in text[at:close]:
                raise unknown("A bracket with the separator in it is not followed; write the sed script more simply.")
            at = close
        elif text[at] == mark:
            parts += 1
        at += 1
    at = (_SED_FLAGS.match(text, at) or re.match("", text)).end()  # type: ignore[union-attr]
    if at < len(text) and text[at] not in ";\n }":
        raise unknown("The sed script runs or writes what it finds; write it without that flag.")
    return at


_SQL_READS = re.compile(
    r"\s*(?:select|show|explain|describe|desc|values|pragma\s+\w+(?:\(\w+\))?\s*;?\s*$|\.(?:tables|schema|headers|mode|indexes|databases)\b|\\[dl]\w*\+?(?:\s|$)|\\(?:x|timing)\b)",
    re.I,
)
_SQL_ACTS = re.compile(
    r"\b(?:into|outfile|dumpfile|copy|insert|update|delete|drop|alter|create|grant|truncate|call|execute|do|attach|install|load\w*"
    r"|pg_\w+|lo_\w+|dblink\w*|read\w+|write\w+|edit|fts3_tokenizer|sys_\w+|set_config|nextval|sleep|getenv|glob|analyze|system|source|pager|tee|delimiter)\b|(?<!^)\\|`",
    re.I,
)


def check_sql(text: str) -> None:
    """Refuses SQL, or a dot command of a client, that does more than reading tables."""
    if _SQL_READS.match(text) is None or _SQL_ACTS.search(text) or ";" in text.rstrip("; \n"):
        raise unknown("Only single SQL statements that read tables are known here.")
