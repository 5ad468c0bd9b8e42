"""Transcripts of the openai APIs for `lgov_core.instrumentation.turn_memory`, and replies with another id for the server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lgov_core.instrumentation import BoundedDict
from lgov_core.instrumentation.turn_memory import MAX_REMEMBERED
from lgov_core.wire.content import JSON
from lgov_core.wire.turns import MessageProtocol


@dataclass(frozen=True, slots=True)
class EntryReader:
    """Recognises the entries of a transcript in the form of ``protocol``."""

    protocol: MessageProtocol

    def from_model(self, entry: JSON) -> bool:
        """See `TranscriptReader.from_model`."""
        return self.protocol.from_model(entry)

    def marks(self, entry: JSON) -> Sequence[str]:
        """See `TranscriptReader.marks`."""
        return self.protocol.ids(entry)

    def has_calls(self, entry: JSON) -> bool:
        """See `TranscriptReader.has_calls`."""
        return bool(self.protocol.proposals(entry))

    def canonical(self, entry: JSON) -> str:
        """See `TranscriptReader.canonical`: an entry of the model is its calls, or its text."""
        if self.protocol.from_model(entry):
            calls = [call.identity for call in self.protocol.proposals(entry)]
            return json.dumps(["calls", calls] if calls else ["text", self.protocol.mapping(entry)["content"]])
        return json.dumps(entry, sort_keys=True)


class ReplyParents:
    """The replies that have another id for the program than for the server. Callable from any thread."""

    def __init__(self) -> None:
        self._parents: BoundedDict[str, tuple[str | None]] = BoundedDict(MAX_REMEMBERED)

    def continue_from(self, response_id: str, parent: str | None) -> None:
        """Remembers that what follows ``response_id`` for the program follows ``parent`` for the server."""
        self._parents.put(response_id, (parent,))

    def continuing(self, body: JSON) -> JSON:
        """``body`` continuing the reply that the server knows: see `continue_from`."""
        parent = self._parents.get(str(body.get("previous_response_id")))
        if parent is None:
            return body
        rest = {name: value for name, value in body.items() if name != "previous_response_id"}
        return rest if parent[0] is None else {**rest, "previous_response_id": parent[0]}
