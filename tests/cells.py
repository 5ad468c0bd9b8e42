"""One cell of the table of denials: a real agent is told by its model to erase a file, and policy forbids it.

A test builds the agent of its framework against ``cell.server``, runs it under ``cell.governor``, and calls
``cell.check(answer)``. What has to hold is the same everywhere and stands here. Mark the test with
``@pytest.mark.cell(framework, mode, shape)``; the table in docs/reference/frameworks.md is made from these marks.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pluggy

from lgov_core import hookspecs
from lgov_core.audit import AuditLog
from lgov_core.audit.verify import verify
from lgov_core.governor import Governor, ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Effect, JSONValue, Point, Span, ToolOutcome

#: What the model answers when it has read the denial.
ANSWER = "I could not erase it."

# Frameworks keep their HTTP clients, and open connections, for longer than the event loop of one test lives.
_ALONE = {"connection": "close"}


def says(text: str) -> ScriptedReply:
    return ScriptedReply(text, headers=_ALONE)


def asks(*tool_calls: tuple[str, str, Mapping[str, Any] | str]) -> ScriptedReply:
    """A reply with tool calls of ``(id, name, arguments)``."""
    return ScriptedReply(
        tool_calls=[
            ScriptedCall(name, arguments if isinstance(arguments, str) else dict(arguments), call_id)
            for call_id, name, arguments in tool_calls
        ],
        headers=_ALONE,
    )


class NoErasing(BoundedPolicy):
    """Denies the acts of these names and allows the others."""

    name = "cells"

    def __init__(self, denied: Sequence[str]) -> None:
        self.denied = frozenset(denied)

    def judge(self, action: Action) -> Decision | None:
        if action.point is not Point.PRE_TOOL_CALL:
            return None
        if action.name in self.denied:
            return self.deny("no-erasing", f"{action.name} is forbidden here")
        return self.allow("fine")


class Seen:
    """Keeps everything that the governor showed its observers."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        self.events.append(event)

    @property
    def spans(self) -> list[Span]:
        return [event for event in self.events if isinstance(event, Span)]

    @property
    def outcomes(self) -> list[ToolOutcome]:
        return [event for event in self.events if isinstance(event, ToolOutcome)]

    def decisions(self, point: Point = Point.PRE_TOOL_CALL) -> list[ObservedDecision]:
        return [e for e in self.events if isinstance(e, ObservedDecision) and e.action.point is point]


@contextmanager
def live_span(
    governor: Governor, operation: str, name: str = "", attributes: Mapping[str, JSONValue] | None = None
) -> Generator[LiveSpan]:
    """A span around the block, as an adapter opens one: active in it, and ended with what the block raised."""
    span = LiveSpan(governor, operation, name, attributes)
    try:
        with span.active():
            yield span
    except BaseException as error:
        span.end(error)
        raise
    span.end()


class Cell:
    """The file that must stay, the scripted model, the governor with a real audit record, and what it saw."""

    def __init__(self, folder: Path, server: ScriptedModelServer, denied: Sequence[str]) -> None:
        self.file = folder / "precious.txt"
        self.file.write_text("precious")
        self.server = server
        self.denied = tuple(denied)
        self.seen = Seen()
        self.audit_path = folder / "audit.db"
        self.audit = AuditLog(self.audit_path)
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        self.governor = Governor(
            [NoErasing(denied)], plugins=[self.seen], audit=self.audit, manager=manager, capture_content=True
        )

    @property
    def base_url(self) -> str:
        return self.server.base_url

    def erase(self, path: str) -> str:
        """What the agent's tool does when it runs."""
        Path(path).unlink()
        return f"erased {path}"

    def check(self, answer: object, *, ran: Sequence[str] = (), agent_span: bool = True) -> None:
        """The file is left, the model read the denial and went on, the record has it, and the span tree is right.

        ``answer`` is the run's final text; ``ran`` names the tools that were to run beside the denied one.
        """
        assert self.file.read_text() == "precious"
        assert self.server.requests, "the model was never asked"
        last = json.dumps(self.server.requests[-1].body)
        assert "DENIED by policy cells/no-erasing" in last, f"the model did not read the denial: {last}"
        assert ANSWER in str(answer), f"the run did not go on to its end: {answer!r}"
        self._check_record()
        self._check_spans(ran, agent_span)

    def _check_record(self) -> None:
        self.audit.close()
        report = verify(self.audit_path)
        assert report.ok, report
        denied = [one for one in self.seen.decisions() if one.decision.effect is Effect.DENY]
        assert len(denied) == 1, (
            f"one denial was to be decided, not {[(d.action.name, d.action.call_id) for d in denied]}"
        )
        (one,) = denied
        assert one.action.name in self.denied
        assert one.decision.decision_id is not None, "the denial is not in the record"

    def _check_spans(self, ran: Sequence[str], agent_span: bool) -> None:
        spans = {span.span_id: span for span in self.seen.spans}
        assert len(spans) == len(self.seen.spans), "two spans have the same id"
        for span in spans.values():
            assert span.ended_at is not None, f"{span.name} was not ended"
            assert span.parent_id is None or span.parent_id in spans, f"{span.name} hangs in the air"
        (denied,) = [span for span in spans.values() if span.attributes.get(semconv.TOOL_STATUS) == "denied"]
        assert denied.attributes[semconv.OPERATION] == semconv.EXECUTE_TOOL
        assert denied.attributes[semconv.TOOL_NAME] in self.denied
        (decision,) = [one for one in self.seen.decisions() if one.decision.effect is Effect.DENY]
        assert decision.action.span_id == denied.span_id, "the decision does not belong to the span it denied"
        for name in ran:
            (span,) = [one for one in spans.values() if one.attributes.get(semconv.TOOL_NAME) == name]
            assert span.attributes[semconv.TOOL_STATUS] == "ok"
        chats = [span for span in spans.values() if span.attributes[semconv.OPERATION] == semconv.CHAT]
        assert chats, "no model call was seen"
        assert all(span.attributes.get(semconv.RESPONSE_ID) for span in chats), "a model call cannot be joined"
        if agent_span:
            assert _root_of(denied, spans).attributes[semconv.OPERATION] == semconv.INVOKE_AGENT
            assert all(_root_of(span, spans).attributes[semconv.OPERATION] == semconv.INVOKE_AGENT for span in chats)


def _root_of(span: Span, spans: Mapping[str, Span]) -> Span:
    while span.parent_id is not None:
        span = spans[span.parent_id]
    return span


@contextmanager
def open_cell(folder: Path, *replies: ScriptedReply, denied: Sequence[str] = ("erase_file",)) -> Iterator[Cell]:
    """A cell whose model gives ``replies`` one after the other."""
    with ScriptedModelServer(list(replies)) as server:
        cell = Cell(folder, server, denied)
        try:
            yield cell
        finally:
            cell.audit.close()
            cell.governor.close()
