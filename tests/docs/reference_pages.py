"""The generated parts of docs/reference: commands, settings, span attributes, policies, hooks, metrics, errors, the API.

``python -m tests.docs.reference_pages`` says whether the pages are up to date, ``--write`` brings them up to date. What
stands between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->`` is made by the function of that name here.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

import lgov_core
from lgov_core import errors as error_tree
from lgov_core import hookspecs
from lgov_core import settings as settings_module
from lgov_core.commands import cli
from lgov_core.commands.group import _MEANING, Exit, LazyGroup, exit_of
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.operation import _PROBED, DenialLog
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.policies import BUILTIN_POLICIES
from lgov_core.policies.registry import options_of
from lgov_core.policies.schema import policy_file_schema
from lgov_core.store import open_store
from lgov_core.trace import semconv
from lgov_core.train import sections as sections_module
from lgov_core.train.settings import TrainSettings
from lgov_core.wire.fields import FIELDS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/reference"
#: Options that many commands share: the page says once what they mean.
SHARED = ("--json", "--set", "--since", "--before", "--yes")
#: Sentences of docstrings that hold for every policy: the page says them once.
COMMON = re.compile(
    r"(?:May\s+be\s+called\s+from\s+several\s+threads\s+at\s+once\.|Fails\s+closed\.|Evaluates `pre_tool_call`\.|"
    r"Raises `PolicyError`\s+(?:for\s+an\s+option\s+without\s+a\s+meaning|"
    r"when\s+made\s+with\s+something\s+that\s+has\s+no\s+meaning)"
    r"(?:,\s+and\s+from\s+the\s+methods\s+for\s+people)?\.)\s*"
)
#: The bounds of a number in an option's help.
RANGE = re.compile(r"; (?:\d+<=)?x[<>]=\d+(?=\])|\s*\[(?:\d+<=)?x[<>]=\d+\]")
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(\n<!-- end: \2 -->)", re.S)
ADAPTERS = ("lgov_langchain", "lgov_autogen", "lgov_openai", "lgov_openai_agents")


def markdown(docstring: str) -> str:
    """A docstring as Markdown: double backquotes become single ones, and what keeps its line breaks a block."""
    text = re.sub(r"``([^`]+)``", r"`\1`", inspect.cleandoc(docstring))
    text = re.sub(r"\x08\n((?:.+\n?)+)", lambda one: f"```text\n{dedent(one[1]).strip()}\n```\n", text)
    return re.sub(r"::$", ":", text, flags=re.M)


def cell(text: str) -> str:
    """``text`` for one cell of a table."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;").replace("[", r"\[")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def commands() -> str:
    """Every command with its usage, the beginning of its help and its options."""
    codes = table(("status", "meaning"), ((str(code.value), _MEANING[code]) for code in Exit))
    shared = table(("option", "meaning"), _shared_options().values())
    parts = [part for path, command in _commands(cli, ()) for part in _command(path, command)]
    return "\n\n".join([codes, shared, *filter(None, parts)])


def _commands(group: LazyGroup, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.commands:
        command = group.load(name)
        yield (*path, name), command
        if isinstance(command, LazyGroup):
            yield from _commands(command, (*path, name))


def _shared_options() -> dict[str, tuple[str, str]]:
    """The rows of the options in `SHARED`, in the words of the first command that has each."""
    rows: dict[str, tuple[str, str]] = {}
    for path, command in _commands(cli, ()):
        context = click.Context(command, info_name=" ".join(("lgov", *path)))
        for option in command.params:
            names = [name for name in option.opts if name in SHARED]
            record = option.get_help_record(context)
            if names and record is not None and names[0] not in rows:
                rows[names[0]] = (
                    f"`{record[0].replace('|', ', ')}`",
                    cell(re.sub(r"\s*\[(?:default|x).*", "", record[1])),
                )
    return rows


def _command(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(("lgov", *path)))
    yield f"{'#' * (len(path) + 1)} lgov {' '.join(path)}"
    first, _, rest = inspect.cleandoc(command.help or command.short_help or "").partition("\n\n")
    example = rest.partition("\n\n")[0] if rest.startswith("\b") else ""
    yield markdown("\n\n".join(filter(None, (first, example))))
    if isinstance(command, LazyGroup):
        return
    if not example:
        pieces = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
        yield f"`lgov {' '.join([*path, *pieces])}`" if pieces else ""
    own = [option for option in command.params if not set(option.opts) & {*SHARED}]
    records = [record for option in own if (record := option.get_help_record(context)) and record[1]]
    rows = [(f"`{_flag(record[0])}`", cell(RANGE.sub("", record[1]))) for record in records]
    yield table(("option", "meaning"), rows) if rows else ""
    yield _status(command.epilog or "")


def _status(epilog: str) -> str:
    """What a command's status says that the table at the top does not."""
    usual = {f"{code.value} {_MEANING[code]}" for code in Exit} | {"2 wrong usage"}
    parts = epilog.removeprefix("Exit status: ").removesuffix(".").split("; ")
    own = [part for part in parts if part and part not in usual]
    return f"Exit status: {'; '.join(own)}." if own else ""


def _flag(text: str) -> str:
    """An option as it is written, with N for a number."""
    return re.sub(r"(INTEGER|FLOAT)( RANGE)?", "N", text.replace("|", ", "))


def settings() -> str:
    """Every setting with its default, and its flag where it has one of its own."""
    flags = {flag for name in ("run", "serve") for option in cli.load(name).params for flag in option.opts}  # type: ignore[attr-defined]
    documents = _attribute_documents(settings_module, "Settings")
    rows: list[list[str]] = []
    for field in dataclasses.fields(settings_module.Settings):
        if field.name == "origins":
            continue
        meaning, _, chosen = documents[field.name].partition(" Default: ")
        default: Any = field.default
        value = ", ".join(default) if isinstance(default, tuple) else "" if default is None else str(default)
        flag = f"--{field.name.replace('_', '-')}"
        name = f"`{field.name}`" + (f", `{flag}`" if flag in flags else "")
        rows.append([name, *(cell(markdown(part)) for part in (chosen.removesuffix(".") or value, meaning))])
    return table(("name", "default", "meaning"), rows)


def training_settings() -> str:
    """Every section of ``config.yaml`` with its keys."""
    parts: list[str] = []
    for section in dataclasses.fields(TrainSettings):
        made: Any = section.default_factory
        kinds, documents = get_type_hints(made), _attribute_documents(sections_module, made.__name__)
        rows = (
            (f"`{one.name}`", _type(kinds[one.name]), _shown(one.default), cell(markdown(documents[one.name])))
            for one in dataclasses.fields(made)
        )
        parts += [f"### {section.name}", markdown(made.__doc__), table(("key", "value", "default", "meaning"), rows)]
    return "\n\n".join(parts)


def _type(hint: Any) -> str:
    """A type as the page says it."""
    inner = [one for one in get_args(hint) if one not in (type(None), ...)]
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_type, inner))
    if get_origin(hint) in (tuple, list):
        return f"list of {_type(inner[0])}"
    if get_origin(hint) in (dict, Mapping):
        return "mapping"
    return {str: "text", Path: "path", bool: "true or false", int: "integer", float: "number"}.get(hint, "mapping")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        value = ", ".join(value) or None
    return "" if value is None or value is dataclasses.MISSING else f"`{value}`"


def _attribute_documents(module: Any, of_class: str | None = None) -> dict[str, str]:
    """The text under each annotated name of a module or class: a string right after its assignment."""
    tree: Any = ast.parse(inspect.getsource(module))
    if of_class is not None:
        tree = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == of_class)
    return {
        name.target.id: text.value.value
        for name, text in pairwise(tree.body)
        if isinstance(name, ast.AnnAssign)
        and isinstance(name.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def attributes() -> str:
    """Every attribute and name of spans that lgov writes or reads."""
    rows = ((f"`{getattr(semconv, name)}`", *text.split(" | ")) for name, text in _attribute_documents(semconv).items())
    return table(("attribute", "on", "type", "meaning"), rows)


def policies() -> str:
    """Every policy with its options."""
    options = {
        rule["if"]["properties"]["use"]["const"]: rule["then"]["properties"]["with"]["properties"]
        for rule in policy_file_schema()["definitions"]["rule"]["allOf"]
    }
    parts: list[str] = []
    for name, factory in BUILTIN_POLICIES.items():
        parameters = options_of(factory)
        rows = [
            (f"`{option}`", _kind(schema), _default(parameters[option])) for option, schema in options[name].items()
        ]
        parts += [f"### {name}", COMMON.sub("", markdown(inspect.getdoc(factory) or "")).strip()]
        parts += [table(("option", "value", "default"), rows)] if rows else []
    return "\n\n".join(parts)


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"] if one.get("type") != "null"))
    if schema.get("type") == "array":
        items = schema.get("items")
        return f"list of {_kind(items)}" if isinstance(items, Mapping) and items else "list"
    if "$ref" in schema:
        return "mapping"
    return {"object": "mapping", None: "any"}.get(schema.get("type"), str(schema.get("type")))


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return "**required**"
    if value is None or value in ((), ""):
        return ""
    if isinstance(value, tuple):
        return f"`{', '.join(map(str, value))}`" if len(value) < 10 else f"{len(value)} names"
    return f"`{value}`"


def _transform(found: re.Match[str]) -> str:
    return f"a `Decision`; {found[1]}." if found[1] else ""


#: What every decision hook returns: the page says it once.
DECISION = re.compile(
    r"a `Decision`(?: \((transform replaces `\w+`)\))?, an awaitable of one, or None for no opinion\."
)


def hooks() -> str:
    """Every hook with its contract."""
    parts: list[str] = []
    for name, hook in vars(hookspecs).items():
        if name.startswith("lgov_"):
            what, _, contract = inspect.cleandoc(hook.__doc__).partition("\n\n")
            lines = re.findall(r"^(\S.*?): (.*(?:\n +.*)*)", contract, re.M)
            asked = ", ".join(inspect.signature(hook).parameters)
            parts += [f"### {name}", f"`({asked})` {markdown(what)}"]
            said = {key: DECISION.sub(_transform, " ".join(markdown(text).split())) for key, text in lines}
            del said["Cost"]
            usual = ("nothing.", "")
            parts.append("\n".join(f"- {key}: {text}" for key, text in said.items() if text not in usual))
    return "\n\n".join(parts)


def errors() -> str:
    """Every error with its code and the status that the command line ends with."""
    found = [
        one for one in vars(error_tree).values() if isinstance(one, type) and issubclass(one, error_tree.LgovError)
    ]
    rows = (
        (
            f"`{one.code}`",
            f"`{one.__name__}`",
            str(exit_of(one.__new__(one)).value),
            cell(markdown((inspect.getdoc(one) or "").partition("\n\n")[0]).partition(". ")[0].rstrip(".")),
        )
        for one in sorted(found, key=lambda one: one.code)
    )
    return table(("code", "class", "status", "meaning"), rows)


def metrics() -> str:
    """Every metric of the endpoint."""
    from lgov_core.train.engines.vllm_engine import VllmEngine

    with closing(open_store("memory://")) as store:
        engine = UpstreamEngine("http://127.0.0.1:9/v1", models=["none"])
        gate: Any = SimpleNamespace(pings=dict.fromkeys(_PROBED.keys() - {"store"}), readings=DenialLog().readings)
        endpoint = create_app([engine], store, keys=KeyRing(b"0" * 16), gate=gate).state.endpoint
        families = [(one.type, one.name, one.documentation) for one in endpoint.metrics._registry.collect()]
    never_started: Any = SimpleNamespace(figures=lambda: {"restarts": 0, "lost": 0})
    families += [reading[:3] for reading in VllmEngine.readings(never_started)]
    rows = ((f"`{name}{'_total' * (kind == 'counter')}`", kind, cell(what)) for kind, name, what in families)
    return table(("metric", "kind", "meaning"), sorted(set(rows)))


def _module_of(package: ModuleType, name: str) -> str:
    """The module that defines a public name; the bound methods of an adapter's instrumentor are in its own module."""
    thing = getattr(package, name)
    return f"{package.__name__}.instrumentor" if inspect.ismethod(thing) else thing.__module__


def api() -> str:
    """The public names of the packages, for mkdocstrings."""
    homes: dict[str, list[str]] = {}
    for name in lgov_core.__all__:
        homes.setdefault(lgov_core._HOMES[name], []).append(name)
    parts: list[str] = []
    for home, names in sorted(homes.items()):
        parts += [f"### {home}", *(f"::: {home}.{name}" for name in names)]
    for package in ADAPTERS:
        module = import_module(package)
        parts += [f"### {package}", *(f"::: {_module_of(module, name)}.{name}" for name in module.__all__)]
    return "\n\n".join(parts)


def fields() -> str:
    """Every field of a request that the endpoint knows, and its use in each API."""
    apis = {name: f"`{path}`" for name, path in (
        ("chat", "/v1/chat/completions"), ("responses", "/v1/responses"), ("messages", "/v1/messages"),
        ("completions", "/v1/completions"), ("embeddings", "/v1/embeddings"),
    )}  # fmt: skip
    names = sorted({name for fields_of_api in FIELDS.values() for name in fields_of_api})
    rows = [(f"`{name}`", *(str(FIELDS[api].get(name, "")) for api in apis)) for name in names]
    return table(("field", *apis.values()), rows)


PARTS: Mapping[str, Callable[[], str]] = {
    made.__name__: made
    for made in (commands, settings, training_settings, attributes, policies, hooks, errors, metrics, fields, api)
}


def pages() -> dict[Path, str]:
    """Each page with such a part, as it should be."""
    found: dict[Path, str] = {}
    for path in sorted(FOLDER.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if {name for _, name, _ in BLOCK.findall(text)} & {*PARTS}:
            found[path] = BLOCK.sub(lambda one: f"{one[1]}{PARTS[one[2]]()}{one[3]}", text)
    return found


def main() -> int:
    """Compares, or writes with ``--write``."""
    stale = {path: text for path, text in pages().items() if text != path.read_text(encoding="utf-8")}
    for path, text in stale.items():
        if "--write" in sys.argv:
            path.write_text(text, encoding="utf-8")
        else:
            print(f"{path.relative_to(ROOT)} is not up to date: python -m tests.docs.reference_pages --write")
    return 0 if "--write" in sys.argv else len(stale)


if __name__ == "__main__":
    sys.exit(main())
