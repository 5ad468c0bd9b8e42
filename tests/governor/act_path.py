"""The files that run between a model's reply and the permitted act, and the page that shows them.

``python -m tests.governor.act_path --write`` puts the list into ARCHITECTURE.md.

The adapter is AutoGen's: of the adapters that call the tool themselves it has the fewest files there.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Final

#: What decides first, in the order in which the files are mutated.
ACT_PATH: Final[Mapping[str, str]] = {
    "lgov_core/flow.py": "runs the flow for a synchronous or an asynchronous caller",
    "lgov_core/governor/judging.py": "asks the rules in order, makes one decision of their answers",
    "lgov_core/governor/governor.py": "has the action judged, commits the decision before it is given",
    "lgov_core/instrumentation/tool_call.py": "judges, refuses or runs, records",
    "lgov_core/policies/tools.py": "the policy: which tools, with which arguments",
    "lgov_core/governor/rules.py": "says which rules cover an action",
    "lgov_core/audit/record_file.py": "appends the decision to the record, durably, in the file that was opened",
    "lgov_core/audit/entry.py": "makes the entry of a decision",
    "lgov_autogen/tools.py": "makes an action of the framework's call, runs the tool with the permitted arguments",
    "lgov_core/instrumentation/tool_arguments.py": "the arguments as the tool's schema yields them, which are judged and run",
    "lgov_core/types/actions.py": "the action and the decision",
    "lgov_core/governor/patterns.py": "matches names with globs, texts with patterns",
    "lgov_core/policies/base.py": "a policy's allow and deny",
    "lgov_core/instrumentation/live_span.py": "the span of the call, and what the decision covers",
    "lgov_autogen/_internals.py": "finds the tool behind a name",
    "lgov_autogen/tool_models.py": "the arguments as AutoGen validates them, and the kind of the call",
    "lgov_autogen/runs.py": "says which agent the call is of, and gives the governor",
}

#: What these files import of lgov besides each other. It is loaded, and nothing in it runs between the reply and the act.
LOADED: Final[Mapping[str, str]] = {
    "lgov_core.errors": "classes of errors",
    "lgov_core.types": "names of the values",
    "lgov_core.types.extensions": "protocols",
    "lgov_core.hookspecs": "the hooks' declarations",
    "lgov_core.trace.semconv": "names of attributes",
    "lgov_core.governor": "names of the package",
    "lgov_core.instrumentation": "names of the package",
    "lgov_core.scope": "the current rollout",
    "lgov_core.governor.conditions": "conditions of rules that have one",
    "lgov_core.governor.options": "checks when a governor is made",
    "lgov_core.governor.rollouts": "who observes, rewards, and the ends of rollouts",
    "lgov_core.plugins": "the plug-ins of a governor that has some",
    "lgov_core.policies.options": "checks when a policy is made",
    "lgov_core.policies.pins": "checks when a policy is made",
    "lgov_core._util.sqlite_file": "opens SQLite files",
    "lgov_core.audit.reading": "opens and reads the record",
    "lgov_core.audit.redaction": "takes out what `redact` names",
    "lgov_core.audit.signing": "signs heads, which is due at times",
    "lgov_core._util.json_text": "an encoder",
    "lgov_core.instrumentation.otel_spans": "spans of the program's OpenTelemetry",
    "lgov_core.wire.turns": "turns of a conversation",
    "lgov_autogen.instrumentor": "instruments a whole process",
    "lgov_autogen.messages": "messages of model calls",
}

PAGE: Final = Path("ARCHITECTURE.md")
_BEGIN, _END = "<!-- the list: python -m tests.governor.act_path --write -->\n", "<!-- the end of the list -->\n"


def code_lines(source: str) -> int:
    """How many lines hold code: without blank lines, comments and docstrings."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            skipped.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - skipped)


def table() -> str:
    """The list as the page has it."""
    rows = ["| file | lines | of code | what it does there |", "|---|---|---|---|"]
    total = [0, 0]
    for file, purpose in ACT_PATH.items():
        source = Path(file).read_text()
        counts = len(source.splitlines()), code_lines(source)
        total = [total[0] + counts[0], total[1] + counts[1]]
        rows.append(f"| `{file}` | {counts[0]:,} | {counts[1]:,} | {purpose} |")
    rows.append(f"| {len(ACT_PATH)} files | {total[0]:,} | {total[1]:,} | |")
    loaded = ", ".join(f"`{module}` ({purpose})" for module, purpose in LOADED.items())
    return "\n".join(rows) + f"\n\nLoaded, and not run there: {loaded}.\n"


def page(text: str) -> str:
    """The page with the list as it is now."""
    head, _, rest = text.partition(_BEGIN)
    return head + _BEGIN + "\n" + table() + "\n" + _END + rest.partition(_END)[2]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(PAGE.read_text()))
    sys.stdout.write(table())
