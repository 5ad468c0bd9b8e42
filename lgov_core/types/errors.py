"""The root of the error tree, and the errors of values themselves; `lgov_core.errors` is the whole tree."""

from __future__ import annotations

from typing import ClassVar


class LgovError(Exception):
    """Base class of all. ``message`` says what happened to what; ``hint`` says what to do next."""

    code: ClassVar[str] = "lgov"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def as_json(self) -> dict[str, str | None]:
        """The form in which commands write it with ``--json``."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class RewardError(LgovError, ValueError):
    """A reward is not a finite number, or an input of a reward is not valid."""

    code = "reward"


class TransitionError(LgovError):
    """Recorded calls cannot become training data."""

    code = "transition"
