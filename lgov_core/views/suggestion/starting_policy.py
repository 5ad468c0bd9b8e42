"""A policy to start from: one rule for each tool that a program defines."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Any, Final

from lgov_core.errors import PolicyError
from lgov_core.policies.options import names
from lgov_core.policies.sql.policy import SQL_ARGUMENTS
from lgov_core.views.suggestion.acts import ToolActs
from lgov_core.views.suggestion.program_tools import ProgramTool, find_tools, imported_modules
from lgov_core.views.suggestion.rules import COMMANDS, ProposedRule, holds, load, rule_of

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
            hint="record a run in shadow mode, and use: lgov policy init --from STORE",
        )
    modules = imported_modules(program)
    dialect = next((of_it for module, of_it in _DIALECTS.items() if module in modules), "sqlite")
    rules = [rule for tool in tools for rule in _of_tool(tool, dialect, folder)]
    text = (
        f"# The tools found in {program.name}, by lgov policy init --agent. Read it and change it to fit.\n"
        "# Then: lgov policy check FILE, and lgov policy explain FILE --action JSON\n"
        f"version: 1\nname: {_slug(program.stem)}\n"
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
    found = [rule]
    for argument in arguments:
        if argument in SQL_ARGUMENTS and "sql" in (argument, *_words(tool.name)):
            options = {"dialect": dialect, "mode": "read_only", "argument": argument}
            found.append(
                rule_of("sql", acts, argument, options, ["SQL that only reads; mode guarded also changes rows"])
            )
        if argument in COMMANDS:
            options = {"argument": argument, "cwd": "."}
            found.append(
                rule_of("shell", acts, argument, options, ["commands of the table, in the folder of this file"])
            )
    return found


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _slug(text: str) -> str:
    return re.sub(r"\W+", "-", text).strip("-") or "agent"
