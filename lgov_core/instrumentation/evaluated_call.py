"""Context variables of the tool or model call that is running and was already evaluated, so that it is not judged again.

A framework is often governed at two levels: at the agent's calls, and below at every call. A decision covers exactly
the call that was judged: the same name, arguments, call id and governor. Whatever runs inside it with anything changed
(a middleware that rewrites arguments, a tool that calls another tool) is a call of its own. Running the covered call
again, as a retry does, is still that call.

For model calls the lower level is the client library that a framework uses: inside a judged model call the client's own
call is part of it. A call is made current with its span: `lgov_core.instrumentation.live_span.LiveSpan.active`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from lgov_core.governor import Governor
from lgov_core.types import Action, Decision

_NOWHERE = object()


@dataclass(slots=True)
class CoveredCall:
    """A judged tool call that is about to run.

    Mutable: code inside the call reports to the code around it. ``recorded`` is set once an outcome was recorded for it;
    ``raised`` is the error that the tool raised, set before the framework turns it into a text for the model.

    Code between the decision and the tool may change the call. The lower level then judges it again: `changed_to` is the
    call that runs, and `refused` the decision that blocked it. ``place`` is where, in the framework's own terms, this
    call is to run, set by the adapter: what runs elsewhere is another call, made inside it.
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


#: The tool call whose inside is running.
TOOL_CALL: ContextVar[CoveredCall | None] = ContextVar("lgov_tool_call", default=None)
#: The governor that judged the model call whose inside is running.
MODEL_CALL: ContextVar[Governor | None] = ContextVar("lgov_model_call", default=None)


def covered_call() -> CoveredCall | None:
    """The judged tool call whose inside is running, or None."""
    return TOOL_CALL.get()


def note_error(error: BaseException) -> None:
    """Tells the judged call around the running code what its tool raised; the first error counts."""
    call = TOOL_CALL.get()
    if call is not None and call.raised is None:
        call.raised = error


def model_call_covered(governor: Governor) -> bool:
    """Whether the inside of a model call that ``governor`` has judged is running."""
    return MODEL_CALL.get() is governor
