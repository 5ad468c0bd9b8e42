"""Rules about where a tool call leads: SQL tables, folders, hosts, commands.

For each argument there are candidates, the strictest first. The first that denies none of the recorded calls is
proposed; an argument that is something else than its name says has none.
"""

from __future__ import annotations

import glob
import os.path
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from lgov_core.policies.paths.path import PATH_ARGUMENTS
from lgov_core.policies.sql.names import GUARDED, READS
from lgov_core.policies.sql.policy import SQL_ARGUMENTS
from lgov_core.policies.sql.touched import SQLTouches
from lgov_core.views.suggestion.acts import ToolActs
from lgov_core.views.suggestion.rules import COMMANDS, ProposedRule, rule_of

_LOOKS_LIKE_A_PATH: Final = re.compile(r".*[/\\].*|.*\.\w{1,8}", re.DOTALL)
_URL: Final = re.compile(r"(?i)https?://")
#: Kinds of statement that only some tables may get, and that a rule denies where they were not seen.
_WRITES: Final = sorted(GUARDED - READS - {"PRAGMA", "TRANSACTION"})


def place_candidates(tool: ToolActs, dialects: Sequence[str]) -> Iterator[Iterator[ProposedRule]]:
    """For each argument of ``tool`` that may name a place, its candidates, the strictest first."""
    for argument in tool.argument_names():
        texts = tool.texts(argument)
        if not texts:
            continue
        if argument in SQL_ARGUMENTS:
            yield _sql(tool, argument, texts, dialects)
        if argument in COMMANDS:
            options = {"argument": argument, "cwd": "."}
            yield iter(
                [rule_of("shell", tool, argument, options, ["commands of the table, in the folder of this file"])]
            )
        if all(map(_URL.match, texts)):
            yield _egress(tool, argument, texts)
        elif argument in PATH_ARGUMENTS and all(map(_LOOKS_LIKE_A_PATH.fullmatch, texts)):
            yield _path(tool, argument, texts)


def _sql(tool: ToolActs, argument: str, texts: Counter[str], dialects: Sequence[str]) -> Iterator[ProposedRule]:
    for dialect in dialects:
        reader = SQLTouches(dialect)
        tables: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        for text, count in texts.items():
            its_tables, its_kinds = reader.read(text)
            tables.update(dict.fromkeys(its_tables, count))
            kinds.update(dict.fromkeys(its_kinds, count))
        notes = [f"tables: {_counted(tables)}", f"statements: {_counted(kinds)}"]
        for mode in ("read_only", "guarded"):
            options: dict[str, Any] = {"dialect": dialect, "mode": mode, "argument": argument}
            if mode == "guarded" and (unseen := [kind for kind in _WRITES if kind not in kinds]):
                options["deny"] = unseen
            yield rule_of("sql", tool, argument, {**options, "tables": sorted(map(glob.escape, tables))}, notes)
            yield rule_of("sql", tool, argument, options, [*notes, "not limited to tables: some texts name others"])


def _path(tool: ToolActs, argument: str, texts: Counter[str]) -> Iterator[ProposedRule]:
    try:
        common = os.path.commonpath(texts)
    except ValueError:  # absolute and relative ones
        return
    folder = os.path.dirname(common) if common in texts and os.path.splitext(common)[1] else common
    options: dict[str, Any] = {"argument": argument, "roots": [folder or "."]}
    if not os.path.isabs(folder):
        options["cwd"] = "."
    yield rule_of("path", tool, argument, options, [f"{len(texts)} paths"])


def _egress(tool: ToolActs, argument: str, texts: Counter[str]) -> Iterator[ProposedRule]:
    hosts: Counter[str] = Counter()
    schemes: set[str] = set()
    for text, count in texts.items():
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            return
        schemes.add(parts.scheme.lower())
        hosts[host if port is None else f"{host}:{port}"] += count
    options = {"argument": argument, "domains": sorted(hosts), "schemes": sorted(schemes)}
    yield rule_of("egress", tool, argument, options, [f"hosts: {_counted(hosts)}"])


def _counted(names: Counter[str]) -> str:
    counted = sorted(names.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{name} {count}" for name, count in counted) or "none"
