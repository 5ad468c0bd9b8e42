"""Server-sent events: written, read, and put together into the body that a reply would have had at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lgov_core._util.json_text import json_object, wire_bytes
from lgov_core.errors import UpstreamError


def frame(content: Any, event: str | None = None) -> bytes:
    """One server-sent event whose data is ``content`` as JSON."""
    return b"%sdata: %s\n\n" % (f"event: {event}\n".encode() if event else b"", wire_bytes(content))


#: The last event of a stream of chat completions or completions.
DONE: Final = b"data: [DONE]\n\n"


def read_event(data: str) -> dict[str, Any]:
    """The JSON object of one server-sent event. Raises `UpstreamError`."""
    event = json_object(data)
    if event is None:
        raise UpstreamError(f"a chunk of the upstream's stream is not a JSON object: {data[:200]!r}")
    return event


class Assembler:
    """Puts the events of one streamed reply together into the body that it would have had at once. For one task."""

    #: Whether the event has come that says that the reply is whole.
    finished = False
    #: Why clients may read the calls of this stream otherwise than its `body` says; None if they cannot.
    unreadable: str | None = None

    def add(self, data: str, event: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Takes the data of one event, read as ``event`` where it has been; returns the event.

        Raises `UpstreamError` for an error or a malformed event.
        """
        event = read_event(data) if event is None else event
        if event.get("type") == "error" or event.get("error"):
            failure = event.get("error") or event
            reason = failure.get("message") if isinstance(failure, dict) else failure
            raise UpstreamError(f"the upstream failed in mid-stream: {reason}")
        try:
            self._take(event)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UpstreamError(f"an event of the upstream's stream is malformed: {data[:200]!r}") from error
        return event

    def body(self, *, finish_reason: str | None = None) -> dict[str, Any]:
        """The whole body so far; ``finish_reason`` replaces the stream's own."""
        raise NotImplementedError

    def _take(self, event: Mapping[str, Any]) -> None:
        raise NotImplementedError
