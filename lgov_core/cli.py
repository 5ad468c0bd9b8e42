"""The command line. Commands live in `lgov_core.commands` and load when they are called."""

from __future__ import annotations

import click

import lgov_core
from lgov_core.commands.group import Commands, Exit, LazyGroup, exit_status

_COMMANDS: Commands = {
    "init": ("Write a policy, settings and a small agent to start from.", "init:init"),
    "run": ("Run an unedited Python program under policy.", "run:run"),
    "serve": ("Serve the training endpoint (OpenAI-compatible).", "serve:serve"),
    "train": ("Train a model on an agent's rollouts.", "train:train"),
    "demo": ("Govern and train a small SQL agent, and show what changed.", "demo:demo"),
    "policy": (
        "Write, check, explain and evaluate policy files.",
        {
            "init": ("Write a commented policy file to start from.", "policy.init:init"),
            "check": ("Check a policy file.", "policy.check:check"),
            "explain": ("Show each rule's decision on one action, and why.", "policy.explain:explain"),
            "eval": ("Test a policy file against labelled cases.", "policy.eval:evaluate"),
            "pins": ("Show pinned tools, and approve a changed one.", "policy.pins:pins"),
            "suggest": ("Propose the policy that recorded tool calls need.", "policy.suggest:suggest"),
            "replay": ("Show which recorded decisions another policy file would change.", "policy.replay:replay"),
        },
    ),
    "approvals": (
        "List, approve and reject calls that wait for approval.",
        {
            "list": ("List the calls that wait for approval.", "approvals:list_requests"),
            "approve": ("Approve calls, once each.", "approvals:approve"),
            "reject": ("Reject calls; the model reads the reason.", "approvals:reject"),
        },
    ),
    "audit": (
        "Verify, search, report, export, erase and archive audit records.",
        {
            "verify": ("Verify a record's chain and signatures.", "audit.verify:verify"),
            "show": ("List the entries of a record.", "audit.read:show"),
            "report": ("Count decisions by tool, rule, agent and time.", "audit.report:report"),
            "export": ("Export a record as JSON lines, CloudEvents or OCSF.", "audit.read:export"),
            "erase": ("Erase texts: of an entry, a rollout, a person.", "audit.write:erase"),
            "rotate": ("Archive a record, and begin the next.", "audit.write:rotate"),
            "keygen": ("Create the key that signs records.", "audit.write:keygen"),
        },
    ),
    "traces": (
        "List, show, export and delete recorded rollouts.",
        {
            "list": ("List the attempts in a store.", "traces.list:list_rollouts"),
            "show": ("Show one attempt step by step.", "traces.show:show"),
            "export": ("Export everything recorded, as JSON lines or Parquet.", "traces.export:export"),
            "send": ("Send rollouts to an OpenTelemetry collector.", "traces.send:send"),
            "stats": ("Count what is in a store.", "traces.prune:stats"),
            "prune": ("Delete rollouts.", "traces.prune:prune"),
            "verify": ("Recompute what a demo run captured, and compare.", "traces.verify:verify"),
        },
    ),
    "transitions": ("Build training data from recorded rollouts.", "transitions:transitions"),
    "view": ("Look at runs, rollouts, tokens and decisions in the browser.", "view:view"),
    "curves": ("Show a training's metrics: table, plot, TensorBoard.", "curves:curves"),
    "eval": ("Measure a checkpoint on held-out tasks.", "models.eval:evaluate_command"),
    "export": ("Export a checkpoint for transformers or PEFT.", "models.export:export_command"),
    "promote": ("Serve a checkpoint under a name.", "models.promote:promote_command"),
    "models": (
        "List models, and pull those that need no hub.",
        {
            "list": ("List the models that lgov knows by name.", "models.list:list_models"),
            "pull": ("Download a model and convert it, once.", "models.list:pull"),
        },
    ),
    "frameworks": ("Show what lgov can do with each framework.", "frameworks:frameworks"),
    "plugins": ("List plugins and the hooks they implement.", "plugins:plugins"),
    "doctor": ("Check this installation, or what is wrong with a training.", "doctor:doctor"),
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exit_status(*Exit),
)
@click.version_option(lgov_core.__version__, "-V", "--version", prog_name="lgov", message="%(prog)s %(version)s")
def cli() -> None:
    """Govern, reward, train and audit existing agents without editing them.

    Settings come from lgov.toml (or [tool.lgov] in pyproject.toml), LGOV_* variables and flags; later ones win.
    `lgov doctor` shows each with its origin.
    """


def main() -> None:
    """Entry point of the ``lgov`` program."""
    cli(prog_name="lgov")


if __name__ == "__main__":
    main()
