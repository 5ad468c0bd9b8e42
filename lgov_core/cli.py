"""The command line. Commands live in `lgov_core.commands` and load when they are called."""

from __future__ import annotations

import click

import lgov_core
from lgov_core.commands.group import Exit, LazyGroup, exit_status

_COMMANDS = {
    "run": ("lgov_core.commands.run:run", "Run an unedited Python program under policy."),
    "serve": ("lgov_core.commands.serve:serve", "Serve the training endpoint (OpenAI-compatible)."),
    "train": ("lgov_core.commands.train:train", "Train a model on an agent's rollouts."),
    "demo": ("lgov_core.demo.command:demo_command", "Govern and train a small SQL agent, and show what changed."),
    "policy": ("lgov_core.commands.policy.group:policy", "Write, check, explain and test policy files."),
    "approvals": ("lgov_core.commands.approvals:approvals", "List, approve and reject calls that wait for approval."),
    "audit": ("lgov_core.commands.audit.group:audit", "Verify, show, export and erase audit records."),
    "traces": ("lgov_core.commands.traces.show:traces", "List, show, export and delete recorded rollouts."),
    "transitions": ("lgov_core.commands.transitions:transitions", "Build training data from recorded rollouts."),
    "curves": ("lgov_core.commands.curves:curves", "Show a training's metrics: table, plot, TensorBoard."),
    "eval": ("lgov_core.commands.eval_checkpoint:evaluate_command", "Measure a checkpoint on held-out tasks."),
    "export": ("lgov_core.commands.export_checkpoint:export_command", "Export a checkpoint for transformers or PEFT."),
    "models": ("lgov_core.commands.models:models", "List models, and pull those that need no hub."),
    "frameworks": ("lgov_core.commands.frameworks:frameworks", "Show what lgov can do with each framework."),
    "plugins": ("lgov_core.commands.plugins:plugins", "List plugins and the hooks they implement."),
    "doctor": ("lgov_core.commands.doctor:doctor", "Check this installation and its settings."),
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
