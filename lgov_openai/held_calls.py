"""Streams whose text the program reads while it arrives, because no policy reads it; tool calls are held until judged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from lgov_core.instrumentation import Flow, arun_flow, run_flow
from lgov_core.wire.content import JSON, read_events
from lgov_openai.recording import follow_body


class HeldCalls:
    """Passes the text of a streamed reply on while it arrives, and holds the rest from the first event that has more.

    ``is_text`` says whether an event holds text only. At the end of the body ``finish`` gets the response, whole, and the
    events that were passed, and returns the response whose body the program gets after them; the same one stands for what
    was held. ``failed`` is called instead, once, with what ended the body early. Both run in the context in which the
    request was sent.
    """

    def __init__(
        self,
        response: Any,
        key: Hashable,
        is_text: Callable[[JSON], bool],
        finish: Callable[[Any, Sequence[JSON]], Flow[Any]],
        failed: Callable[[BaseException], None],
        open_recordings: set[Any],
    ) -> None:
        self.key = key
        self._copy = partial(type(response), response.status_code, headers=response.headers, request=response.request)
        self._is_text, self._finish, self._failed = is_text, finish, failed
        self._context = copy_context()
        self._pieces: list[bytes] = []
        self._waiting = b""
        self._holds = False
        self._passed: list[JSON] = []
        self._passed_bytes = 0
        self._open = open_recordings
        self._body = follow_body(response, self)
        self._open.add(self)

    def arrived(self, piece: bytes) -> bytes:
        """What of the reply may be passed on now that ``piece`` has arrived."""
        self._pieces.append(piece)
        if self._holds:
            return b""
        self._waiting += piece
        passed = b""
        while (end := _end_of_event(self._waiting)) and not self._holds:
            event, rest = self._waiting[:end], self._waiting[end:]
            try:
                found = read_events(event.decode())
            except ValueError:
                found = None
            if found is None or not all(map(self._is_text, found)) or b"[DONE]" in event:
                self._holds = True
            else:
                self._passed += found
                self._waiting, passed = rest, passed + event
        self._passed_bytes += len(passed)
        return passed

    def rest(self) -> bytes:
        """What the program gets at the end of the body."""
        return self._context.run(run_flow, self._ending())

    async def arest(self) -> bytes:
        """As `rest`, for an asynchronous client."""
        return await asyncio.create_task(arun_flow(self._ending()), context=self._context)

    def _ending(self) -> Flow[bytes]:
        self._open.discard(self)
        body = b"".join(self._pieces)
        whole = self._copy(content=body)
        answer = yield from self._finish(whole, self._passed)
        return body[self._passed_bytes :] if answer is whole else answer.content

    def end(self, error: BaseException | None, *, if_complete: bool = False) -> None:
        """Concludes a call whose reply the program did not read to its end. Does nothing the second time."""
        if self in self._open and not if_complete:
            self._open.discard(self)
            self._context.run(self._failed, error or GeneratorExit())

    def catch_up(self, key: Hashable, call_ids: list[str]) -> None:
        """Concludes a reply that was dropped, or whose transcript goes on without its end."""
        if self._body() is None or self.key == key:
            self.end(GeneratorExit())


def _end_of_event(data: bytes) -> int:
    """Where the first server-sent event in ``data`` ends; 0 if it has not arrived."""
    ends = [at + len(mark) for mark in (b"\n\n", b"\r\n\r\n", b"\r\r") if (at := data.find(mark)) >= 0]
    return min(ends, default=0)
