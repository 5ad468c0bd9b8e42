"""The ``shell`` policy: `ShellPolicy` parses commands and checks each word against the table in ``commands.yaml``."""

from lgov_core.policies.shell.policy import MAX_CHARACTERS, ShellPolicy

__all__ = ["MAX_CHARACTERS", "ShellPolicy"]
