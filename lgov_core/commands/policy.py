"""``lgov policy check``, ``explain`` and ``trust``: what a policy file says, and who changed what governs."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lgov_core.commands.group import (
    Exit,
    effect_text,
    printable,
    show_error,
    write_json,
    write_result,
    write_table,
)
from lgov_core.commands.options import (
    EXISTING_FILE,
    PATH,
    command,
    is_audit_record,
    record_or_setting,
    yes_option,
)
from lgov_core.errors import PolicyError, SettingsError
from lgov_core.places import DEFAULT_AUDIT
from lgov_core.policies.policy_set import trusted_programs
from lgov_core.process.children import refuse_to_programs
from lgov_core.settings import Settings, load_settings

if TYPE_CHECKING:
    from lgov_core.governor.judging import RuleVerdict
    from lgov_core.types import Decision


# ---------------------------------------------------------------------- check


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("file", type=PATH)
@click.pass_context
def check(ctx: click.Context, file: Path, as_json: bool) -> None:
    """Check FILE as a governed program would load it; reports the first error of each rule.

    Tools whose arguments lead somewhere (a path, a URL, SQL, a command, code, money) that no rule holds are named as open,
    tools that one rule permits and a tool rule without them in allow denies as shut. Rules about order are printed in English.
    """
    from lgov_core.authoring.rules import open_places, shut_tools
    from lgov_core.policies import OrderPolicy, dry_run, load_policy_file
    from lgov_core.policies.confinement import read_confinement

    try:
        with dry_run():
            policies = load_policy_file(file)
    except PolicyError as error:
        problems = [error, *getattr(error, "further", ())]
        if as_json:
            fields = [
                {"code": each.code, "line": getattr(each, "line", None), "message": each.message, "hint": each.hint}
                for each in problems
            ]
            write_json({"file": str(file), "ok": False, "problems": fields})
        else:
            for problem in problems:
                show_error(problem, as_json=False)
        ctx.exit(Exit.FINDING)
    rules = [rule.name for rule in policies.rules]
    programs = trusted_programs([policies])
    text = (
        f"{file}: ok\n  {policies.name}: {len(rules)} rules ({', '.join(rules)})\n"
        f"  mode {policies.mode}; acts that no rule permits: {policies.default}\n  digest {policies.digest}"
    )
    if programs:
        text += f"\n  runs the folder's code: {', '.join(programs)}"
    about = {"name": policies.name, "mode": policies.mode, "default": policies.default, "digest": policies.digest}
    order = [f"{rule.name}: {rule.policy.sentence}" for rule in policies.rules if isinstance(rule.policy, OrderPolicy)]
    notes = {"order": order, "open": open_places(policies.rules), "shut": shut_tools(policies.rules)}
    text += "".join(f"\n  {word}: {sentence}" for word, sentences in notes.items() for sentence in sentences)
    write_result(
        {"file": str(file), "ok": True, "problems": [], **about, "rules": rules, "runs_code": programs, **notes},
        text,
        as_json=as_json,
    )
    if read_confinement(file).value is not None and not as_json:
        click.echo("  note: judged as in its box; without lgov run --confine, confine: does not hold", err=True)
    if policies.mode == "shadow" and not as_json:
        click.echo("  note: in shadow mode nothing is blocked, decisions are only recorded", err=True)
    if policies.default == "deny" and not any(rule.permits for rule in policies.rules) and not as_json:
        click.echo(
            "  note: no rule permits anything, so every tool call is denied; add a rule that uses tool", err=True
        )


# ---------------------------------------------------------------------- explain


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.DENIED)
@click.argument("file", type=PATH)
@click.option(
    "--action",
    "action_text",
    metavar="JSON",
    help='The action, e.g. {"name": "run_sql", "arguments": {"query": "..."}}; @PATH reads a file, - standard input.',
)
@click.option(
    "--access", metavar="PATH|HOST:PORT", help="Show what a program in a box may do with a file, a folder or a host."
)
@click.option("--preset", help="Preset of the box. [default: the policy file's]")
@click.pass_context
def explain(
    ctx: click.Context, file: Path, action_text: str | None, access: str | None, preset: str | None, as_json: bool
) -> None:
    """Show the decision of every rule in FILE on one action, and why; or what a confined program may reach.

    The action has the fields of a case of lgov policy eval: point (pre_tool_call unless it says otherwise), name,
    arguments, agent, text, user_text, context. In shadow mode the answer is allow, and what it would be otherwise.
    """
    if access is not None and action_text is None:
        ctx.exit(_explain_access(file, access, preset, as_json))
    if action_text is None or access is not None:
        raise click.UsageError("give one of --action and --access")
    from lgov_core.authoring.replay import action_of, parse_object
    from lgov_core.policies import dry_run, load_policy_file
    from lgov_core.policies.policy_set import explain as explain_action

    action = action_of(parse_object(_action_text(action_text), "--action"), "--action")
    with dry_run():
        policies = load_policy_file(file)
    explanation = explain_action(policies, action)
    decision = explanation.decision
    if as_json:
        rules = [
            {
                "rule": verdict.rule,
                "covers": verdict.covers,
                "decision": None if verdict.decision is None else _decision_fields(verdict.decision),
            }
            for verdict in explanation.verdicts
        ]
        write_json({"file": str(file), **_decision_fields(decision), "rules": rules})
    else:
        rows = [(verdict.rule, *_verdict_cells(verdict)) for verdict in explanation.verdicts]
        write_table(("rule", "answer", "severity", "why"), rows)
        unenforced = decision.unenforced or decision
        click.echo(f"\n{effect_text(decision.effect.label, unenforced.effect.label)}: {_why(unenforced)}")
        if decision.arguments is not None or decision.text is not None:
            click.echo(f"  it continues as: {decision.arguments or decision.text}")
    ctx.exit(Exit.DENIED if decision.blocks else Exit.OK)


def _explain_access(file: Path, target: str, preset: str | None, as_json: bool) -> Exit:
    """Writes what a box, started here, lets be done with a path, or whether it may connect to HOST:PORT."""
    from lgov_core.confine.plan import Outside, make_plan
    from lgov_core.confine.proxy import make_reach, model_endpoints
    from lgov_core.policies.confinement import read_confinement

    policy = read_confinement(file)
    chosen = policy.with_preset(preset)
    if address := re.fullmatch(r"([^/\\]+):(\d+)", target):
        reach = make_reach(chosen, model_endpoints(None))
        rule = reach.rule(address[1].lower(), int(address[2]))
        access, why = "denied", "no rule allows it"
        if rule is not None:
            access, why = "connect", f"{rule} in {reach.places[rule]} allows it"
    else:
        plan = make_plan(chosen, policy, Outside(record_or_setting(None), ""), checked=False)
        access, why = plan.access(str(Path(target).absolute()))
    write_result({"file": str(file), "access": access, "why": why}, f"{access}: {why}", as_json=as_json)
    return Exit.OK if access in ("read", "write", "connect") else Exit.DENIED


def _action_text(option: str) -> str:
    if option == "-":
        return sys.stdin.read()
    if not option.startswith("@"):
        return option
    try:
        return Path(option[1:]).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"--action {option} cannot be read: {error}", hint="give @PATH of a file of JSON") from error


def _decision_fields(decision: Decision) -> dict[str, Any]:
    verdict = decision.unenforced or decision
    fields: dict[str, Any] = {
        "effect": decision.effect.label,
        "policy": verdict.policy,
        "rule": verdict.rule,
        "severity": verdict.severity.value,
        "reason": verdict.reason,
    }
    if verdict is not decision:
        fields["would"] = verdict.effect.label
    if decision.arguments is not None:
        fields["arguments"] = dict(decision.arguments)
    if decision.text is not None:
        fields["text"] = decision.text
    return fields


def _verdict_cells(verdict: RuleVerdict) -> tuple[str, str, str]:
    if not verdict.covers:
        return "-", "", "does not cover this action"
    if verdict.decision is None:
        return "no opinion", "", ""
    blocks = verdict.decision.blocks
    return verdict.decision.effect.label, verdict.decision.severity.value if blocks else "", _why(verdict.decision)


def _why(decision: Decision) -> str:
    where = f"{decision.policy}/{decision.rule}" if decision.rule else decision.policy
    return f"{where}: {decision.reason}" if decision.reason else where


# ---------------------------------------------------------------------- trust


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("file", type=EXISTING_FILE, required=False)
@click.option("--approve", metavar="DIGEST", help="Pin the changed definition with this digest, of a tool in FILE.")
@yes_option
@click.pass_context
def trust(ctx: click.Context, file: Path | None, approve: str | None, yes: bool, as_json: bool) -> None:
    """Show what changed of what governs while a governed program ran, and accept it; or pinned tools that changed.

    Policy files, settings, keys and lgov itself may change between runs. What changed during one is refused at the next start
    (exit status 78) until it is accepted here, or undone.

    FILE is the audit record of the runs (default: those that the next start here looks at); or the `store` of a rule with
    `use: pinned`: then it shows the pinned tools, and --approve accepts a changed one. The record says who accepted what. Exit
    status 1 where changes wait.
    """
    if file is not None and not is_audit_record(str(file)):
        if yes:
            raise click.UsageError("--yes is for changes of files; pin a tool with --approve DIGEST")
        return _pins(ctx, file, approve, as_json)
    if approve is not None:
        raise click.UsageError("--approve needs FILE, the store of pinned tools")
    from lgov_core import trust as changed

    settings = _readable_settings()
    records = [file] if file is not None else _refused_here(settings.audit or DEFAULT_AUDIT)
    by_record = {record: changed.untrusted(record) for record in records}
    changes = list({change.path: change for of_record in by_record.values() for change in of_record}.values())
    if as_json:
        write_json([{"path": change.path, "change": change.kind, "diff": change.diff()} for change in changes])
    elif not changes:
        click.echo("nothing that governs changed while a program ran")
    for change in () if as_json else changes:
        click.echo(f"{change} (begun {change.began} UTC)\n{printable(change.diff())}")
    if not changes:
        return None
    from lgov_core.audit import AuditLog, default_signer
    from lgov_core.governance import make_folder

    refuse_to_programs("accept what it changed")
    if yes or (not as_json and click.confirm("Accept this, so that it governs the next run?", err=True)):
        governing = settings.audit or DEFAULT_AUDIT
        for record in by_record:
            target = record if record.is_file() else governing
            make_folder(target.parent)
            heads = settings.heads if target == governing else None
            with AuditLog(target, signer=default_signer(settings.audit_key), heads=heads) as log:
                log.note("policy", "trusted", changed.on_record(by_record[record], "trusted"))
            changed.trust(record)
        return None
    ctx.exit(Exit.FINDING)


def _readable_settings() -> Settings:
    """The settings; the default ones, and an error on standard error, where a program left what cannot be read."""
    try:
        return load_settings()
    except SettingsError as error:
        show_error(error, as_json=False)
        return Settings()


def _refused_here(record: Path) -> list[Path]:
    """The records of the runs whose changes the next start in the working folder refuses."""
    from lgov_core.trust import untrusted_here

    return [each for each, changes in untrusted_here(record) if changes]


def _pins(ctx: click.Context, file: Path, approve: str | None, as_json: bool) -> None:
    from lgov_core.policies.pins import PinnedTools, digest_of_definition

    with closing(PinnedTools(file)) as tools:
        if approve is not None:
            refuse_to_programs("pin tools that changed")
            tools.approve(approve)
        pinned = tools.all()
    if as_json:
        write_json([{"name": pin.name, "definition": pin.definition, "changed": pin.changed} for pin in pinned])
    for pin in () if as_json else pinned:
        click.echo(f"{pin.name}  {digest_of_definition(pin.definition)}")
        if pin.changed is not None:
            click.echo(f"  pinned   {pin.definition}\n  changed  {pin.changed}")
            click.echo(f"  to pin it: lgov policy trust {file} --approve {digest_of_definition(pin.changed)}")
    if any(pin.changed is not None for pin in pinned):
        ctx.exit(Exit.FINDING)
