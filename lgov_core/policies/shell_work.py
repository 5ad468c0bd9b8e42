"""How much work judging one shell text may take, counted in what it does and not in time."""

from __future__ import annotations

from lgov_core.policies.shell_places import Refused

#: Commands of one text, those in the texts within it among them.
MAX_RUNS = 2_000
#: Steps of one judgement, of about a microsecond each. A text of the greatest length takes some ten thousand, one that
#: multiplies (folders times words, values times commands) takes more.
MAX_STEPS = 150_000


class Work:
    """Counts down what one judgement may do, in all the texts within the text. Made for one judgement, by one thread."""

    def __init__(self) -> None:
        self.runs, self.steps = MAX_RUNS, MAX_STEPS

    def spend(self, steps: int) -> None:
        """Counts steps. Raises `Refused` beyond `MAX_STEPS`."""
        self.steps -= steps
        if self.steps < 0:
            raise Refused("shell-too-deep", "The command takes too much work to judge; split it into smaller ones.")

    def run(self) -> None:
        """Counts a command. Raises `Refused` beyond `MAX_RUNS`."""
        self.runs -= 1
        if self.runs < 0:
            raise Refused("shell-too-deep", "The command holds too many commands; write fewer.")
