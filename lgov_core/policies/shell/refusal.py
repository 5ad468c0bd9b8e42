"""Reasons to deny a text, and the budget of steps that judging one may take."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

#: Commands of one text, those of the texts inside it included.
MAX_COMMANDS = 1_000
#: Steps of one judgement, of about a microsecond each.
MAX_STEPS = 150_000
#: Shells inside shells, functions inside functions.
MAX_DEPTH = 6


class Refused(Exception):
    """A reason to deny: ``rule`` is a stable slug, ``reason`` a sentence for the model."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule, self.reason = rule, reason


def unclear(reason: str) -> Refused:
    """Something in the text whose meaning cannot be read for certain."""
    return Refused("shell-unclear", reason)


def unknown(reason: str) -> Refused:
    """A command, option or program text that the table does not know."""
    return Refused("shell-unknown", reason)


class Budget:
    """Counts down the steps and commands of one judgement. Made for one judgement, used by one thread."""

    def __init__(self) -> None:
        self.steps, self.commands, self.depth = MAX_STEPS, MAX_COMMANDS, 0

    def spend(self, steps: int) -> None:
        """Counts steps. Raises `Refused` beyond `MAX_STEPS`."""
        self.steps -= steps
        if self.steps < 0:
            raise Refused("shell-too-deep", "The command takes too much work to judge; split it into smaller ones.")

    def command(self, words: Sequence[str]) -> None:
        """Counts a command and its words. Raises `Refused` beyond `MAX_COMMANDS`."""
        self.spend(sum(map(len, words)) // 8)
        self.commands -= 1
        if self.commands < 0:
            raise Refused("shell-too-deep", "The text runs too many commands; write fewer.")

    @contextmanager
    def nested(self) -> Generator[None, None, None]:
        """Counts an inner shell or function call. Raises `Refused` beyond `MAX_DEPTH`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Refused("shell-too-deep", "Shells or functions call each other too deeply; write the commands out.")
        yield
        self.depth -= 1
