"""Which call of the running code has been judged already, so that a second net does not judge it again.

A framework is often governed at two places: where an agent's calls pass, and, behind it, where every call passes. A
judgement covers exactly the call that was judged: the same name, the same arguments, the same call id, the same
governor. Whatever runs inside it with anything changed (somebody who rewrites arguments, a tool that calls another
tool) is a call of its own. Running the covered call again, as a retry does, is still that call.

For model calls the net behind is the client library that a framework uses: inside a judged model call the client's own
call is part of it. Who makes a call says so with its span: `lgov_core.instrumentation.live_span.LiveSpan.active`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lgov_core.instrumentation.call_context import CALL_CONTEXT

if TYPE_CHECKING:
    from lgov_core.governor import Governor
    from lgov_core.types import Action, Decision

_NOWHERE = object()


@dataclass(slots=True)
class CoveredCall:
    """A judged tool call that is about to run.

    ``recorded`` is set by whoever has recorded an outcome for it; ``raised`` is the error that the tool raised, set by
    whoever saw it before the framework made it a text for the model. Not frozen: it is the one place where the code
    inside the call tells the code around it what happened.

    Code between the judgement and the tool may change the call. Whoever sees that where the tool begins judges it again:
    `changed_to` is then the call that runs, and `refused` the decision that stopped it. ``place`` is where, in the
    framework's own terms, this call is to run, set by the adapter: what runs elsewhere is another one, made inside it.
    """

    governor: Governor
    name: str
    arguments: Mapping[str, Any]
    call_id: str | None
    recorded: bool = False
    raised: BaseException | None = None
    action: Action | None = None
    place: object = _NOWHERE
    refused: Decision | None = None

    def covers(self, governor: Governor, name: str, arguments: Mapping[str, Any], call_id: str | None) -> bool:
        """Whether the judgement holds for this execution."""
        return (
            self.governor is governor
            and self.call_id == call_id
            and self.name == name
            and (self.arguments == arguments or dict(self.arguments) == dict(arguments))
        )

    def changed_to(self, action: Action, refused: Decision | None) -> None:
        """The call runs as ``action`` and not as it was judged at first; ``refused`` if that must not be."""
        self.action, self.refused = action, refused
        self.name, self.arguments, self.call_id = action.name, action.arguments, action.call_id


def covered_call() -> CoveredCall | None:
    """The judged tool call inside which the running code is, or None."""
    return CALL_CONTEXT.get()[1]


def model_call_covered(governor: Governor) -> bool:
    """Whether the running code is the inside of a model call that ``governor`` has judged."""
    return CALL_CONTEXT.get()[2] is governor


def in_model_call() -> bool:
    """Whether the running code is the inside of a model call that a governor has judged, or watches."""
    return CALL_CONTEXT.get()[2] is not None


@contextmanager
def covering_model_call(governor: Governor) -> Generator[None]:
    """Says that model calls inside the block are part of one that ``governor`` judges. Not across a ``yield``."""
    span, tool, _ = CALL_CONTEXT.get()
    token = CALL_CONTEXT.set((span, tool, governor))
    try:
        yield
    finally:
        CALL_CONTEXT.reset(token)
