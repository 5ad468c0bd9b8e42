"""The ``shell`` policy: commands are judged by their syntax tree and a table of what each command may be given.

`ShellPolicy` is the entry point. ``commands.yaml`` is the table; the other modules are the engine that parses a text, follows
its variables and folders, and checks every command in it against the table.
"""

from lgov_core.policies.shell.policy import MAX_CHARACTERS, ShellPolicy

__all__ = ["MAX_CHARACTERS", "ShellPolicy"]
