"""A policy to start from: one rule for each tool that a program defines, as its source says. Nothing of it is run or imported.

Tools are functions with a decorator whose name ends in ``tool``, functions in a list that is given to a call, functions in
a mapping from names, objects of a class whose name ends in ``Tool``, tool descriptions in JSON Schema with a name, and
hand-offs: in the program's file and in the modules beside it that it imports. A tool whose name the program computes, or
that a server offers, is not found.
"""

from __future__ import annotations

import ast
import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lgov_core.authoring.rules import COMMANDS, ProposedRule, ToolActs, holds, load, rule_of
from lgov_core.errors import PolicyError
from lgov_core.governor.options import names
from lgov_core.policies.sql.policy import SQL_ARGUMENTS

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
_MAKERS = re.compile(r"\w*Tool|\w*_tool|tool|from_function|as_tool")
_NAMING = ("name", "name_override", "tool_name")
_SCHEMAS = ("parameters", "input_schema")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class ProgramTool:
    """A tool of a program: ``place`` is ``file:line``; ``schema`` that of its arguments, None where the source does not say."""

    name: str
    place: str
    schema: dict[str, Any] | None = None


def find_tools(program: Path) -> list[ProgramTool]:
    """The tools that ``program`` (a Python file) defines, in the order of its source. Raises `PolicyError` if unreadable."""
    modules = list(_modules(program))
    functions = {
        node.name: node for _, tree in reversed(modules) for node in ast.walk(tree) if isinstance(node, _Function)
    }
    agents = {name: text for _, tree in modules for name, text in _named_objects(tree)}
    tools: dict[str, ProgramTool] = {}
    for path, tree in modules:
        reader = _Reader(path, functions, agents)
        reader.visit(tree)
        for tool in sorted(reader.found, key=lambda tool: int(tool.place.rpartition(":")[2])):
            if tool.name not in tools or tools[tool.name].schema is None:
                tools[tool.name] = tool
    return list(tools.values())


def imported_modules(program: Path) -> set[str]:
    """The top-level names of the modules that ``program`` and the modules beside it import."""
    return {name.partition(".")[0] for _, tree in _modules(program) for name in _imports(tree)}


def _modules(program: Path) -> Iterator[tuple[Path, ast.Module]]:
    """The program's own modules: its file, then those beside it that it imports."""
    waiting, seen = [program], set[Path]()
    while waiting:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except (OSError, SyntaxError, ValueError) as error:
            raise PolicyError(
                f"{path} cannot be read as Python: {error}", hint="name the agent's Python file"
            ) from error
        yield path, tree
        for name in _imports(tree):
            module = program.parent.joinpath(*name.split("."))
            waiting += [file for file in (module.with_suffix(".py"), module / "__init__.py") if file.is_file()]


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*")


def _named_objects(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Variables whose value is made with a name: ``cashier = Agent(name="cashier")``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = _given_name(node.value)
            if name is not None:
                yield from ((target.id, name) for target in node.targets if isinstance(target, ast.Name))


@dataclass
class _Reader(ast.NodeVisitor):
    """Collects the tools of one module. ``functions`` are those of the program, ``agents`` names by variable."""

    path: Path
    functions: dict[str, _Function]
    agents: dict[str, str]
    found: list[ProgramTool] = field(default_factory=list[ProgramTool])

    def add(self, name: str | None, node: ast.expr | ast.stmt, schema: dict[str, Any] | None = None) -> None:
        if name is not None and _NAME.fullmatch(name):
            self.found.append(ProgramTool(name, f"{self.path.name}:{node.lineno}", schema))

    def add_function(self, node: ast.expr, name: str | None = None) -> None:
        """The function that ``node`` names, unless a decorator makes a tool of it."""
        function = self.functions.get(node.id) if isinstance(node, ast.Name) else None
        if function is not None and not any(map(_makes_tool, function.decorator_list)):
            self.add(name or function.name, function, schema_of_function(function))

    def visit_FunctionDef(self, node: _Function) -> None:
        for decorator in filter(_makes_tool, node.decorator_list):
            name = _given_name(decorator) if isinstance(decorator, ast.Call) else None
            own = isinstance(decorator, ast.Call) and any(
                keyword.arg == "args_schema" for keyword in decorator.keywords
            )
            self.add(name or node.name, node, None if own else schema_of_function(node))
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any(_last_name(base).endswith("Tool") for base in node.bases):
            for line in node.body:
                targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
                if any(isinstance(target, ast.Name) and target.id == "name" for target in targets):
                    self.add(_text(getattr(line, "value", None)), line)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _MAKERS.fullmatch(_last_name(node.func)):
            name = next((_text(keyword.value) for keyword in node.keywords if keyword.arg in _NAMING), None)
            wrapped = [
                *node.args[:1],
                *(keyword.value for keyword in node.keywords if keyword.arg in ("func", "coroutine")),
            ]
            functions = [
                function for function in wrapped if isinstance(function, ast.Name) and function.id in self.functions
            ]
            for function in functions:
                self.add_function(function, name)
            if not functions:
                self.add(name, node)
        for argument in [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg != "handoffs")]:
            for item in argument.elts if isinstance(argument, ast.List | ast.Tuple) else ():
                self.add_function(item)
        for keyword in node.keywords:
            if keyword.arg == "handoffs" and isinstance(keyword.value, ast.List | ast.Tuple):
                for item in keyword.value.elts:
                    self.add(self._hand_off(item), item)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        named = any(isinstance(target, ast.Name) and target.id.lower().endswith("tools") for target in node.targets)
        if named and isinstance(node.value, ast.List | ast.Tuple):
            for item in node.value.elts:
                self.add_function(item)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        entries = {_text(key): value for key, value in zip(node.keys, node.values, strict=True) if key is not None}
        if (name := _text(entries.get("name"))) and any(key in entries for key in _SCHEMAS):
            self.add(name, node, next((_literal(entries[key]) for key in _SCHEMAS if key in entries), None))
        for key, value in entries.items():
            if key is not None:
                self.add_function(value, key)
        self.generic_visit(node)

    def _hand_off(self, item: ast.expr) -> str | None:
        """The tool by which an agent hands over to the agent that ``item`` names."""
        if isinstance(item, ast.Call) and item.args:
            item = item.args[0]
        name = _text(item) or (self.agents.get(item.id) if isinstance(item, ast.Name) else None)
        return None if name is None else f"transfer_to_{re.sub(r'[^a-zA-Z0-9_]', '_', name).lower()}"


def schema_of_function(function: _Function) -> dict[str, Any]:
    """The JSON Schema of a function's arguments, as its annotations say. One of another type may be anything, or missing."""
    args = function.args
    every = [arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs) if arg.arg not in ("self", "cls")]
    defaults = {arg.arg for arg in args.args[len(args.args) - len(args.defaults) :]}
    defaults |= {arg.arg for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value is not None}
    properties = {arg.arg: _schema_of(arg.annotation) for arg in every}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [name for name, its in properties.items() if its and name not in defaults]:
        schema["required"] = required
    return schema if args.kwarg is not None else {**schema, "additionalProperties": False}


def _schema_of(annotation: ast.expr | None) -> dict[str, Any]:
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return {"type": "null"}
    if isinstance(annotation, ast.BinOp):  # str | None
        kinds = [_schema_of(side).get("type") for side in (annotation.left, annotation.right)]
        return {"type": kinds} if all(isinstance(kind, str) for kind in kinds) else {}
    if isinstance(annotation, ast.Subscript):
        outer, inner = _last_name(annotation.value), annotation.slice
        values = [_literal(element) for element in (inner.elts if isinstance(inner, ast.Tuple) else [inner])]
        if outer == "Literal" and all(isinstance(value, str | int) for value in values):
            return {"enum": values}
        if outer == "Annotated" and isinstance(inner, ast.Tuple):
            return _schema_of(inner.elts[0])
        if outer == "Optional" and isinstance(kind := _schema_of(inner).get("type"), str):
            return {"type": [kind, "null"]}
        return {"type": _TYPES[outer]} if outer in ("list", "dict") else {}
    kind = _TYPES.get(_last_name(annotation)) if annotation is not None else None
    return {} if kind is None else {"type": kind}


def _makes_tool(decorator: ast.expr) -> bool:
    return _last_name(decorator.func if isinstance(decorator, ast.Call) else decorator).endswith("tool")


def _given_name(call: ast.Call) -> str | None:
    named = next((keyword.value for keyword in call.keywords if keyword.arg in _NAMING), None)
    return _text(named) or (_text(call.args[0]) if call.args else None)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


#: Words in a tool's name that say that its effect cannot be undone: a person approves such a call.
_FINAL: Final = names("cancel charge delete deploy drop email erase pay post publish purge refund remove send wipe")
#: The dialect of the SQL of a program that imports one of these modules.
_DIALECTS: Final = {
    "psycopg": "postgres",
    "psycopg2": "postgres",
    "asyncpg": "postgres",
    "pymysql": "mysql",
    "duckdb": "duckdb",
}
_APPROVALS: Final = "approvals.db"
_WAIT_S: Final = 300


def starting_policy(program: Path, folder: Path) -> tuple[str, list[ProgramTool]]:
    """The text of a policy file in ``folder`` that names the tools of ``program``, and these tools.

    Each may be called with arguments of the types that its function declares. SQL only reads, a shell command is one of
    the known ones, and a tool whose name says that its effect cannot be undone needs approval. The program is not run.
    Raises `PolicyError` for a program that cannot be read, or where no tool is found.
    """
    tools = find_tools(program)
    if not tools:
        raise PolicyError(
            f"no tool was found in {program}",
            hint="record a run in shadow mode, and use: lgov policy suggest STORE",
        )
    modules = imported_modules(program)
    dialect = next((of_it for module, of_it in _DIALECTS.items() if module in modules), "sqlite")
    rules = [rule for tool in tools for rule in _of_tool(tool, dialect, folder)]
    name = re.sub(r"\W+", "-", program.stem).strip("-") or "agent"
    text = (
        f"# The tools found in {program.name}, by lgov init --agent. Read it and change it to fit.\n"
        "# Then: lgov policy check FILE, and lgov policy explain FILE --action JSON\n"
        f"version: 1\nname: {name}\n"
        "mode: enforce   # or shadow: judge and record everything, block nothing\n"
        "default: deny   # a tool that no rule names is not called\n"
        "rules:\n" + "\n".join(rule.text() for rule in rules)
    )
    load(text, folder)
    return text, tools


def _of_tool(tool: ProgramTool, dialect: str, folder: Path) -> list[ProposedRule]:
    acts = ToolActs(tool.name)
    arguments: list[str] = list((tool.schema or {}).get("properties", {}))
    if any(word in _FINAL for word in _words(tool.name)):
        options: dict[str, Any] = {"store": _APPROVALS, "wait_s": _WAIT_S}
        note = f"{tool.name} ({tool.place}): a person approves each call; its name says that it cannot be undone"
        return [rule_of("approval", acts, None, options, [note])]
    allow = {"allow": [glob.escape(tool.name)]}
    rule = rule_of("tool", acts, None, {**allow, "schemas": {tool.name: tool.schema}}, [f"{tool.name} ({tool.place})"])
    if tool.schema is None or not holds(rule, (), folder):
        rule = rule_of("tool", acts, None, allow, [f"{tool.name} ({tool.place}): with any arguments"])
    rules = [rule]
    for argument in arguments:
        if argument in SQL_ARGUMENTS and "sql" in (argument, *_words(tool.name)):
            options = {"dialect": dialect, "mode": "read_only", "argument": argument}
            rules.append(
                rule_of("sql", acts, argument, options, ["SQL that only reads; mode guarded also changes rows"])
            )
        if argument in COMMANDS:
            options = {"argument": argument, "cwd": "."}
            rules.append(
                rule_of("shell", acts, argument, options, ["commands of the table, in the folder of this file"])
            )
    return rules


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
