"""``lgov policy eval`` and ``lgov policy suggest``: a policy against labelled cases, or against what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lgov_core.commands.group import Exit, write_json, write_table
from lgov_core.commands.options import (
    FILE,
    PATH,
    command,
    is_audit_record,
    is_store,
    limit_option,
    opened_record,
    recorded_actions,
)
from lgov_core.errors import PolicyError, counted
from lgov_core.settings import without_password

if TYPE_CHECKING:
    from lgov_core.authoring import Suggestion
    from lgov_core.authoring.replay import Change, PolicyCase, RecordedAction, Replay
    from lgov_core.governor import Governor
    from lgov_core.policies import PolicySet
    from lgov_core.types import Decision

#: Characters of arguments in a table.
_ARGUMENTS_SHOWN: Final = 80


# ---------------------------------------------------------------------- eval


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("file", type=PATH)
@click.argument("source", metavar="CASES|STORE|RECORD")
@limit_option("Changes")
@click.pass_context
def evaluate(ctx: click.Context, file: Path, source: str, limit: int, as_json: bool) -> None:
    """Evaluate actions by the policies in FILE, and compare: labelled cases with their label, recorded actions with the past.

    CASES is a file of JSON lines. A case is {"id", "point", "name", "arguments", "agent"?, "text"?, "user_text"?,
    "context"?, "sequence"?, "result"?, "expect": "allow"|"deny"}. Writes a table of the cases and a summary; with --json one
    line a case (id, effect, policy, rule, severity, reason, expect, ok, shadowed), and a last line {"summary": {...}}. Exits 1
    when any case is decided otherwise than expected. Each case is evaluated independently: the costs and texts of the others do
    not count. Cases with the same sequence (or else session_id, or rollout_id) follow on each other, with the result that an
    allowed call returned.

    STORE or RECORD is a trace store (or run folder) or an audit record: every recorded action is evaluated again, and those are
    listed that would now be blocked, or no longer are; exits 1 when there are any. A trace store holds the tool calls; an audit
    record also the model calls and texts. Rules that count against the clock (rates, seconds) count at the speed of the replay.

    Nothing is run and nothing is written. Policies in shadow mode are evaluated as if they were enforced ("shadowed" is true).
    """
    if is_audit_record(source) or is_store(source):
        ctx.exit(_replay(file, source, limit, as_json))
    ctx.exit(_judge_cases(file, Path(source), as_json))


def _judge_cases(file: Path, cases: Path, as_json: bool) -> Exit:
    from lgov_core.authoring.replay import read_cases
    from lgov_core.policies import dry_run
    from lgov_core.policies.loader import fresh_policies
    from lgov_core.types import ToolOutcome

    judged: list[tuple[PolicyCase, Decision]] = []
    lines: list[dict[str, Any]] = []
    with dry_run(), _Bench(fresh_policies(file)) as bench:
        for case in read_cases(cases):
            governor = bench.governor(case)
            decision = governor.decide(case.action)
            if case.result is not None and not decision.blocks:
                governor.observe(ToolOutcome(case.action, "ok", result=case.result))
            verdict = decision.unenforced or decision
            judged.append((case, verdict))
            lines.append({**_case_fields(case, verdict), "shadowed": decision.shadowed})
    summary = _summary(judged)
    if as_json:
        for line in (*lines, {"summary": summary}):
            click.echo(json.dumps(line))
    else:
        write_table(("case", "expected", "decision", "rule", "why", ""), map(_case_row, lines))
        click.echo(
            f"{counted(summary['cases'], 'case')}: denied {_share(summary['blocked'], summary['malicious'])} that expect"
            f" deny and {_share(summary['false_alarms'], summary['benign'])} that expect allow;"
            f" {counted(summary['mismatches'], 'mismatch', 'mismatches')}"
        )
    return Exit.FINDING if summary["mismatches"] else Exit.OK


class _Bench:
    """The governors that judge the cases: one for each sequence, and one without memory for independent cases."""

    def __init__(self, policies: Callable[[], PolicySet]) -> None:
        from lgov_core.plugins import make_plugin_manager

        self._policies = policies
        # Only the policies in the file judge, not those of installed plugins.
        self._manager = make_plugin_manager(builtin=(), third_party=False)
        self._independent = self._new_governor(policies())
        self._sequences: dict[str, Governor] = {}

    def governor(self, case: PolicyCase) -> Governor:
        """The governor for ``case``: that of its sequence, or one that has forgotten the cases before."""
        if case.sequence is not None:
            if case.sequence not in self._sequences:
                self._sequences[case.sequence] = self._new_governor(self._policies())
            return self._sequences[case.sequence]
        policies = self._policies()
        if self._independent.policies != (policies,):
            self._independent.close()
            self._independent = self._new_governor(policies)
        return self._independent

    def _new_governor(self, policies: PolicySet) -> Governor:
        from lgov_core.governor import Governor

        return Governor(policies, manager=self._manager)

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *error: object) -> None:
        for governor in (self._independent, *self._sequences.values()):
            governor.close()


def _case_fields(case: PolicyCase, decision: Decision) -> dict[str, Any]:
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


def _case_row(line: Mapping[str, Any]) -> tuple[object, ...]:
    where = "/".join(filter(None, (line["policy"], line["rule"])))
    return line["id"], line["expect"], line["effect"], where, line["reason"], "" if line["ok"] else "MISMATCH"


def _summary(judged: list[tuple[PolicyCase, Decision]]) -> dict[str, int]:
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


def _share(count: int, whole: int) -> str:
    return f"{count} of {whole} ({count / whole:.1%})" if whole else "0 of 0"


def _replay(file: Path, source: str, limit: int, as_json: bool) -> Exit:
    from lgov_core.authoring.replay import replay_file

    with recorded_actions(source) as recorded:
        replay = replay_file(file, recorded)
    if as_json:
        changes = [change.as_json() for change in replay.changes]
        write_json({"file": str(file), "store": without_password(source), **replay.counts(), "changes": changes})
    else:
        _show_replay(replay, limit)
    return Exit.FINDING if replay.changes else Exit.OK


def _show_replay(replay: Replay, limit: int) -> None:
    changes = replay.changes[:limit] if limit else replay.changes
    if changes:
        write_table(("rollout", "action", "then", "now", "why"), map(_change_row, changes))
        click.echo()
    if len(changes) < len(replay.changes):
        click.echo(f"{len(replay.changes) - len(changes)} more changes; --limit 0 shows all", err=True)
    click.echo(
        f"{counted(replay.judged, 'action')} evaluated again: {len(replay.changes)} changed;"
        f" {replay.blocked_then} were blocked then, {replay.blocked_now} would be now"
    )
    if replay.without_decision:
        click.echo(f"{replay.without_decision} have no recorded decision to compare with", err=True)
    if replay.incomplete:
        click.echo(
            f"{replay.incomplete} could not be evaluated: their arguments are not in the record in full", err=True
        )


def _change_row(change: Change) -> tuple[object, ...]:
    action, then, now = change.recorded.action, change.recorded, change.decision
    what = action.text if action.text is not None else str(dict(action.arguments))
    return (
        action.rollout_id,
        f"{action.name} {what[:_ARGUMENTS_SHOWN]}",
        f"{then.effect} {then.policy}/{then.rule}" if then.effect in ("deny", "escalate") else then.effect,
        f"{now.effect.label} {now.policy}/{now.rule}" if now.blocks else now.effect.label,
        now.reason if now.blocks else then.reason,
    )


# ---------------------------------------------------------------------- suggest


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("source", metavar="STORE|RECORD")
@click.option("-o", "--output", type=FILE, help="Write the policy file here instead of to standard output.")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@click.option("--dialect", help="SQL dialect of the tools. [default: the first of the common ones that fits]")
@limit_option("Other calls")
@click.pass_context
def suggest(
    ctx: click.Context, source: str, output: Path | None, force: bool, dialect: str | None, limit: int, as_json: bool
) -> None:
    """Propose the least-privilege policy that the tool calls in a trace store or an audit record need.

    It allows the calls that ran, did not fail and broke no rule. A call that ran in shadow mode because no rule allowed it
    counts; one that a rule denies does not. The policy names their tools, the form of their arguments, SQL tables and
    statements, folders, hosts, addresses and calls a rollout, each with how often it was seen. Then all recorded calls are
    judged by it: it denies none of those (exits 1 if it does), and what it decides about the others is listed. Read it.
    confine: and the box and shell rules of the policy of RECORD, else of the settings, stay where they deny none of those.
    """
    from lgov_core._util.files import atomic_write
    from lgov_core.authoring import suggest as suggest_policy
    from lgov_core.policies.sql.policy import COMMON_DIALECTS
    from lgov_core.settings import load_settings

    if output is not None and output.exists() and not force:
        raise PolicyError(f"{output} already exists", hint="choose another name, or replace it with --force")
    policy, file = _policy_of(source, load_settings().policy)
    with recorded_actions(source) as recorded:
        suggestion = suggest_policy(
            recorded,
            source=without_password(source),
            folder=None if output is None else output.absolute().parent,
            dialects=COMMON_DIALECTS if dialect is None else (dialect,),
            policy=policy,
            policy_folder=None if file is None else file.absolute().parent,
        )
    if output is not None:
        atomic_write(output, suggestion.text.encode())
    if as_json:
        write_json(
            {
                "policy": suggestion.text,
                "file": None if output is None else str(output),
                "needed": suggestion.needed,
                "incomplete": suggestion.incomplete,
                "denied": [_call_fields(*call) for call in suggestion.denied],
                "rest": [_call_fields(*call) for call in suggestion.rest],
            }
        )
    else:
        _show_suggestion(suggestion, output, limit)
    ctx.exit(Exit.FINDING if suggestion.denied else Exit.OK)


def _policy_of(source: str, named: Path | None) -> tuple[str, Path | None]:
    """The text of the policy that an audit record is under last, else of ``named``; with its file, where that is known."""
    text, name = "", ""
    if is_audit_record(source):
        with opened_record(Path(source)) as log:
            for entry in log.entries():
                if entry.kind == "policy" and (on_record := json.loads(entry.content or "{}").get("policy")):
                    text, name = on_record.removeprefix("\ufeff"), entry.name or ""
    if not text:
        return _text_of(named), named
    file = Path(name)
    if not file.is_absolute():  # as it was given to a run, whose folder is not on record
        return text, next((each for each in (file, named) if _text_of(each) == text), None)
    return text, file


def _text_of(file: Path | None) -> str:
    from lgov_core.settings import read_written

    return read_written(file).decode("utf-8-sig", "replace") if file is not None and file.is_file() else ""


def _call_fields(recorded: RecordedAction, decision: Decision) -> dict[str, Any]:
    action = recorded.action
    return {
        "rollout_id": action.rollout_id,
        "attempt": action.attempt,
        "call_id": action.call_id,
        "name": action.name,
        "arguments": dict(action.arguments),
        "then": recorded.verdict,
        "status": recorded.status,
        "now": decision.effect.label,
        "now_policy": decision.policy,
        "now_rule": decision.rule,
        "reason": decision.reason,
    }


def _show_suggestion(suggestion: Suggestion, output: Path | None, limit: int) -> None:
    click.echo(suggestion.text if output is None else f"wrote {output}")
    calls = [*suggestion.denied, *suggestion.rest]
    first = calls[:limit] if limit else calls
    denied = sum(decision.blocks for _, decision in suggestion.rest)
    on_error = output is None  # standard output is the policy
    if first and not on_error:
        write_table(("rollout", "call", "then", "now", "why"), [_call_row(*call) for call in first])
        if len(first) < len(calls):
            click.echo(f"{len(calls) - len(first)} more; --limit 0 shows all", err=True)
    click.echo(
        f"replayed: it denies {len(suggestion.denied)} of the {counted(suggestion.needed, 'call')} that it is made from,"
        f" and {denied} of {counted(len(suggestion.rest), 'other')} (denied then, or failed)",
        err=on_error,
    )
    if suggestion.incomplete:
        click.echo(
            f"{suggestion.incomplete} calls were left out: their arguments are not in the record in full", err=True
        )


def _call_row(recorded: RecordedAction, decision: Decision) -> tuple[object, ...]:
    action = recorded.action
    return (
        action.rollout_id,
        f"{action.name} {str(dict(action.arguments))[:_ARGUMENTS_SHOWN]}",
        recorded.verdict if recorded.status in (None, "ok", "denied") else recorded.status,
        f"{decision.effect.label} {decision.policy}/{decision.rule}" if decision.blocks else decision.effect.label,
        decision.reason,
    )
