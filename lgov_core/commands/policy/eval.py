"""``lgov policy eval``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lgov_core._util.plurals import counted
from lgov_core.commands.group import Exit
from lgov_core.commands.options import PATH, command
from lgov_core.commands.output import write_table

if TYPE_CHECKING:
    from lgov_core.authoring.cases import Case
    from lgov_core.governor import Governor
    from lgov_core.policies import PolicySet
    from lgov_core.types import Decision


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("file", type=PATH)
@click.argument("cases", type=PATH)
@click.pass_context
def evaluate(ctx: click.Context, file: Path, cases: Path, as_json: bool) -> None:
    """Evaluate the actions in CASES (JSON lines) under the policies in FILE and compare with their expected effect.

    Writes a table of the cases and a summary; with --json one line a case (id, effect, policy, rule, severity, reason,
    expect, ok, shadowed), and a last line {"summary": {...}}. Exits 1 when any case is judged otherwise than expected. A
    case is {"id", "point", "name", "arguments", "agent"?, "text"?, "user_text"?, "context"?, "sequence"?, "expect":
    "allow"|"deny"}.

    Policies in shadow mode are judged as if they were enforced ("shadowed" is true then).

    Each case is judged independently: the costs and texts of the others do not count. Cases with the same sequence (or
    else session_id, or rollout_id) follow on each other.
    """
    from lgov_core.authoring.cases import read_cases
    from lgov_core.policies import dry_run
    from lgov_core.policies.loader import fresh_policies

    judged: list[tuple[Case, Decision]] = []
    lines: list[dict[str, Any]] = []
    with dry_run(), _Bench(fresh_policies(file)) as bench:
        for case in read_cases(cases):
            decision = bench.governor(case).decide(case.action)
            verdict = decision.unenforced or decision
            judged.append((case, verdict))
            lines.append({**_line(case, verdict), "shadowed": decision.shadowed})
    summary = _summary(judged)
    if as_json:
        for line in (*lines, {"summary": summary}):
            click.echo(json.dumps(line))
    else:
        write_table(("case", "expected", "decision", "rule", "why", ""), map(_row, lines))
        click.echo(_in_words(summary))
    ctx.exit(Exit.FINDING if summary["mismatches"] else Exit.OK)


class _Bench:
    """The governors that judge the cases: one for each sequence, and one without memory for independent cases."""

    def __init__(self, policies: Callable[[], PolicySet]) -> None:
        from lgov_core.plugins import make_plugin_manager

        self._policies = policies
        # Only the policies in the file judge, not those of installed plugins.
        self._manager = make_plugin_manager(builtin=(), third_party=False)
        self._alone = self._made(policies())
        self._sequences: dict[str, Governor] = {}

    def governor(self, case: Case) -> Governor:
        if case.sequence is not None:
            if case.sequence not in self._sequences:
                self._sequences[case.sequence] = self._made(self._policies())
            return self._sequences[case.sequence]
        policies = self._policies()
        if self._alone.policies != (policies,):
            self._alone.close()
            self._alone = self._made(policies)
        return self._alone

    def _made(self, policies: PolicySet) -> Governor:
        from lgov_core.governor import Governor

        return Governor(policies, manager=self._manager)

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *error: object) -> None:
        for governor in (self._alone, *self._sequences.values()):
            governor.close()


def _line(case: Case, decision: Decision) -> dict[str, Any]:
    return {
        "id": case.case_id,
        "effect": decision.effect.label,
        "policy": decision.policy,
        "rule": decision.rule,
        "severity": decision.severity.value,
        "reason": decision.reason,
        "expect": "deny" if case.blocked else "allow",
        "ok": case.blocked == decision.blocks,
    }


def _row(line: Mapping[str, Any]) -> tuple[object, ...]:
    where = "/".join(filter(None, (line["policy"], line["rule"])))
    return line["id"], line["expect"], line["effect"], where, line["reason"], "" if line["ok"] else "MISMATCH"


def _summary(judged: list[tuple[Case, Decision]]) -> dict[str, int]:
    """Counts: cases that expect a deny and those of them that were blocked; the others and the false alarms in them."""
    malicious = [decision.blocks for case, decision in judged if case.blocked]
    benign = [decision.blocks for case, decision in judged if not case.blocked]
    return {
        "cases": len(judged),
        "malicious": len(malicious),
        "blocked": sum(malicious),
        "benign": len(benign),
        "false_alarms": sum(benign),
        "mismatches": len(malicious) - sum(malicious) + sum(benign),
    }


def _in_words(summary: dict[str, int]) -> str:
    return (
        f"{counted(summary['cases'], 'case')}: denied {_share(summary['blocked'], summary['malicious'])} that expect deny"
        f" and {_share(summary['false_alarms'], summary['benign'])} that expect allow;"
        f" {counted(summary['mismatches'], 'mismatch', 'mismatches')}"
    )


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "0 of 0"
