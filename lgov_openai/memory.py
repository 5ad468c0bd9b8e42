"""What an interceptor remembers of the conversations under one governor."""

from __future__ import annotations

from lgov_core.instrumentation import BoundedDict
from lgov_core.instrumentation.message_decisions import MessageDecisionCache
from lgov_openai.open_streams import OpenStreams
from lgov_openai.pending_calls import PendingCalls
from lgov_openai.transcript import MAX_REMEMBERED, ChangedTurns


class Memory:
    """One a governed client, or one for all clients of an instrumented process. Callable from any thread or task."""

    def __init__(self) -> None:
        self.turns = ChangedTurns()
        self.calls = PendingCalls()
        self.messages = MessageDecisionCache()
        #: Digests of the transcripts up to each user message that was allowed.
        self.allowed_messages: BoundedDict[str, bool] = BoundedDict(MAX_REMEMBERED)
        self.streams = OpenStreams()

    def close(self) -> None:
        """Ends the spans that are still open: of streams that nobody reads, and of calls without a result."""
        self.streams.end()
        self.calls.close()
