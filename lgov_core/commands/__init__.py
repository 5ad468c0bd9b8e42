"""The commands of ``lgov``; `lgov_core.cli` has the table of them. A module is imported when its command is called."""
