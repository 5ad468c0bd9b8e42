"""``lgov policy explain``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import PATH, command
from lgov_core.commands.output import effect_text, write_json, write_table
from lgov_core.errors import PolicyError

if TYPE_CHECKING:
    from lgov_core.policies.policy_set import RuleVerdict
    from lgov_core.types import Decision


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.DENIED)
@click.argument("file", type=PATH)
@click.option(
    "--action",
    "action_text",
    metavar="JSON",
    help='The action, e.g. {"name": "run_sql", "arguments": {"query": "..."}}; @PATH reads a file, - standard input.',
)
@click.option("--path", type=PATH, help="Show what a program in a box may do with this file or folder.")
@click.option("--host", metavar="HOST:PORT", help="Show whether a program in a box may connect there.")
@click.option("--preset", help="Preset of the box. [default: the policy file's]")
@click.pass_context
def explain(
    ctx: click.Context,
    file: Path,
    action_text: str | None,
    path: Path | None,
    host: str | None,
    preset: str | None,
    as_json: bool,
) -> None:
    """Show the decision of every rule in FILE on one action, and why; or what a confined program may reach.

    The action has the fields of a case of lgov policy eval: point (pre_tool_call unless it says otherwise), name,
    arguments, agent, text, user_text, context. In shadow mode the answer is allow, and what it would be otherwise.
    """
    if (action_text, path, host).count(None) != 2:
        raise click.UsageError("give one of --action, --path and --host")
    if action_text is None:
        access, why = _of_path(file, path, preset) if path is not None else _of_host(file, str(host), preset)
        if as_json:
            write_json({"file": str(file), "access": access, "why": why})
        else:
            click.echo(f"{access}: {why}")
        ctx.exit(Exit.OK if access in ("read", "write", "connect") else Exit.DENIED)
    from lgov_core.authoring.cases import action_of, parse_object
    from lgov_core.policies import dry_run, load_policy_file
    from lgov_core.policies.policy_set import explain as ask_all

    action = action_of(parse_object(_text(action_text), "--action"), "--action")
    with dry_run():
        policies = load_policy_file(file)
    found = ask_all(policies, action)
    if as_json:
        rules = [
            {
                "rule": one.rule,
                "covers": one.covers,
                "decision": None if one.decision is None else _fields(one.decision),
            }
            for one in found.verdicts
        ]
        write_json({"file": str(file), **_fields(found.decision), "rules": rules})
    else:
        write_table(("rule", "answer", "severity", "why"), [(one.rule, *_cells(one)) for one in found.verdicts])
        verdict = found.decision.unenforced or found.decision
        click.echo(f"\n{effect_text(found.decision.effect.label, verdict.effect.label)}: {_why(verdict)}")
        if found.decision.arguments is not None or found.decision.text is not None:
            click.echo(f"  it continues as: {found.decision.arguments or found.decision.text}")
    ctx.exit(Exit.DENIED if found.decision.blocks else Exit.OK)


def _of_path(file: Path, path: Path, preset: str | None) -> tuple[str, str]:
    """What a box, started here, lets be done with ``path``, and what decides it."""
    from lgov_core.confine.plan import make_plan
    from lgov_core.governance import DEFAULT_AUDIT
    from lgov_core.policies.confinement import read_confinement
    from lgov_core.settings import load_settings

    policy = read_confinement(file)
    audit = load_settings().audit or DEFAULT_AUDIT
    plan = make_plan(policy.with_preset(preset), policy, audit=audit, private="", checked=False)
    return plan.access(str(path.absolute()))


def _of_host(file: Path, host: str, preset: str | None) -> tuple[str, str]:
    """Whether a box may connect to ``host``, and what decides it."""
    from lgov_core.confine.proxy import make_reach, model_endpoints
    from lgov_core.policies.confinement import read_confinement

    reach = make_reach(read_confinement(file).with_preset(preset), model_endpoints(None))
    name, _, port = host.lower().rpartition(":")
    if not name or not port.isdecimal():
        raise click.UsageError("--host takes host:port, as in example.com:443")
    rule = reach.rule(name, int(port))
    return ("denied", "no rule allows it") if rule is None else ("connect", f"{rule} in {reach.places[rule]} allows it")


def _text(given: str) -> str:
    if given == "-":
        return sys.stdin.read()
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"--action {given} cannot be read: {error}", hint="give @PATH of a file of JSON") from error


def _fields(decision: Decision) -> dict[str, Any]:
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


def _cells(verdict: RuleVerdict) -> tuple[str, str, str]:
    if not verdict.covers:
        return "-", "", "does not cover this action"
    if verdict.decision is None:
        return "no opinion", "", ""
    blocks = verdict.decision.blocks
    return verdict.decision.effect.label, verdict.decision.severity.value if blocks else "", _why(verdict.decision)


def _why(decision: Decision) -> str:
    where = f"{decision.policy}/{decision.rule}" if decision.rule else decision.policy
    return f"{where}: {decision.reason}" if decision.reason else where
