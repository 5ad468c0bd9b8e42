"""Which tool call of the running code has been judged already, so that the backstop does not judge it again.

A judgement covers exactly the call that was judged: the same name, the same arguments, the same call id, the same
governor. Whatever runs inside it with anything changed (another middleware that rewrites arguments, a tool that calls
another tool) is a call of its own. Running the covered call again, as retry middleware does, is still that call.
"""

from __future__ import annotations

import contextvars
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgov_core.governor import Governor


@dataclass(slots=True)
class CoveredCall:
    """A judged call that is about to run. ``recorded`` is set by whoever has recorded an outcome for it.

    Not frozen: it is the one place where the code inside the call tells the code around it what happened.
    """

    governor: Governor
    name: str
    arguments: Mapping[str, Any]
    call_id: str | None
    recorded: bool = False

    def covers(self, governor: Governor, name: str, arguments: Mapping[str, Any], call_id: str | None) -> bool:
        """Whether the judgement holds for this execution."""
        return (
            self.governor is governor
            and self.call_id == call_id
            and self.name == name
            and dict(self.arguments) == dict(arguments)
        )


_COVERED: contextvars.ContextVar[CoveredCall | None] = contextvars.ContextVar("lgov_langchain_covered", default=None)


def covered_call() -> CoveredCall | None:
    """The judged call inside which the running code is, or None."""
    return _COVERED.get()


@contextmanager
def covering(call: CoveredCall) -> Generator[CoveredCall]:
    """Makes ``call`` the covered one inside the block, in this thread or task and those it hands its context to."""
    token = _COVERED.set(call)
    try:
        yield call
    finally:
        _COVERED.reset(token)
