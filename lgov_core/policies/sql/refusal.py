"""Refusal: a reason to deny a statement, on its way out of the checks."""

from __future__ import annotations

from typing import Final

from lgov_core.types import Severity

#: How bad a severity is, to compare.
SEVERITIES: Final = {severity: rank for rank, severity in enumerate(Severity)}


class Refusal(Exception):
    """A reason to deny. ``rule`` is the slug of the denial.

    ``unread`` says that the dialect has no such text at all: its database would refuse it as well.
    """

    def __init__(self, rule: str, reason: str, severity: Severity = Severity.MEDIUM, *, unread: bool = False) -> None:
        super().__init__(reason)
        self.rule, self.reason, self.severity, self.unread = rule, reason, severity, unread

    @property
    def weight(self) -> tuple[bool, int]:
        """How grave it is, to compare: what cannot be read comes after everything else."""
        return not self.unread, SEVERITIES[self.severity]


def denied_statement(reason: str) -> Refusal:
    """For what a plain statement of its kind does not do."""
    return Refusal("sql-denied-statement", reason, Severity.CRITICAL)


def denied_table(table: str) -> Refusal:
    """For a table that ``deny`` names."""
    return Refusal("sql-denied-table", f"The table {table} must not be touched; answer without it.", Severity.HIGH)


def denied_function(function: str) -> Refusal:
    """For a function that does more than compute."""
    return Refusal("sql-function", f"The function {function} is not allowed; leave it out.", Severity.CRITICAL)


def unbounded_write(reason: str) -> Refusal:
    """For a write that may change every row of a table."""
    return Refusal("sql-unbounded-write", reason, Severity.CRITICAL)


def unparsable(what: str, *, unread: bool = False) -> Refusal:
    """For a text that cannot be read with certainty."""
    return Refusal("sql-unparsable", f"The policy cannot read {what}; write plain, correct SQL.", unread=unread)
