"""The command line of ``lgov``: the table of its commands. A module is imported when its command is called."""

from __future__ import annotations

import click

import lgov_core
from lgov_core.commands.group import Commands, Exit, LazyGroup, exit_status

_COMMANDS: Commands = {
    "init": ("Write a policy, settings and a small agent to start from.", "init:init"),
    "run": ("Run an unedited Python program under policy.", "run:run"),
    "mcp": ("Put an MCP server under policy, for any client.", "run:mcp"),
    "view": ("Look at runs, rollouts, tokens and decisions in the browser.", "traces:view"),
    "policy": (
        "Check, explain, test and propose policy files.",
        {
            "check": ("Check a policy file.", "policy:check"),
            "explain": ("Show each rule's decision on one action, and why.", "policy:explain"),
            "eval": ("Test a policy file on labelled cases or recorded actions.", "policy_evidence:evaluate"),
            "trust": ("Accept what changed of what governs, or a changed tool.", "policy:trust"),
            "suggest": ("Propose the policy that recorded tool calls need.", "policy_evidence:suggest"),
        },
    ),
    "approvals": ("List, approve and reject calls that wait for approval.", "approvals:approvals"),
    "audit": (
        "Verify, search, count, erase and archive audit records.",
        {
            "show": ("List or count the entries of a record.", "audit:show"),
            "verify": ("Verify a record's chain and signatures.", "audit:verify"),
            "rotate": ("Archive a record, and begin the next.", "audit:rotate"),
            "keygen": ("Create the key that signs records.", "audit:keygen"),
        },
    ),
    "erase": ("Erase a person's texts from records, approvals and stores.", "audit:erase"),
    "traces": (
        "List, show and delete recorded rollouts.",
        {
            "list": ("Count what is in a store, and list the attempts.", "traces:list_rollouts"),
            "show": ("Show one attempt step by step.", "traces:show"),
            "prune": ("Delete rollouts.", "traces:prune"),
        },
    ),
    "transitions": ("Build training data from recorded rollouts.", "transitions:transitions"),
    "export": ("Export a store or a record for other programs.", "export:export"),
    "serve": ("Serve the training endpoint (OpenAI-compatible).", "serve:serve"),
    "train": ("Train a model on an agent's rollouts.", "train:train"),
    "models": (
        "Pull, list, measure, export and promote models.",
        {
            "pull": ("Download a model once, or list the models that lgov knows.", "models:pull"),
            "eval": ("Measure a checkpoint on held-out tasks.", "models:evaluate"),
            "export": ("Export a checkpoint for transformers or PEFT.", "models:export"),
            "promote": ("Serve a checkpoint under a name.", "models:promote"),
        },
    ),
    "demo": ("Govern and train a small SQL agent, and show what changed.", "demo:demo"),
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
