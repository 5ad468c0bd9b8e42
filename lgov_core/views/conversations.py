"""Tells apart the agent runs and the conversations of one attempt, by what its spans and requests record.

A server answers many people in one process, which is one rollout unless the program enters scopes. Nothing here is guessed from
clock order: a conversation is what the framework or the request names, or else a list of messages that the next call continues.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lgov_core.trace import semconv
from lgov_core.types import CapturedCall, Span
from lgov_core.views.attempt_view import AgentSpan

#: What names the conversation in a request's metadata, and the user in the request, where nothing names the conversation.
_METADATA: Final = ("conversation_id", "session_id", "thread_id")
_USER: Final = ("user", "safety_identifier")
NOT_NAMED: Final = "not named"


class AgentTree:
    """The agent runs among the spans of one attempt, nested as their parents say. A cycle ends where it closes."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = {span.span_id: span for span in spans}
        self._of_response = {
            str(span.attributes[semconv.RESPONSE_ID]): span
            for span in spans
            if span.attributes.get(semconv.RESPONSE_ID) is not None and span.name != semconv.DECISION_SPAN_NAME
        }
        runs = [span for span in spans if span.attributes.get(semconv.OPERATION) == semconv.INVOKE_AGENT]
        self._runs = {span.span_id for span in runs}
        self._named: dict[str, list[str]] = defaultdict(list)
        for span in runs:
            self._named[_name(span)].append(span.span_id)
        self.runs = tuple(map(self._run, sorted(runs, key=lambda span: span.started_at)))

    def run_of(self, span: Span) -> str | None:
        """The id of the innermost agent run around ``span``, None where its parents lead to none."""
        return next((above.span_id for above in self._above(span) if above.span_id in self._runs), None)

    def run_of_call(self, response_id: str, agent: str | None) -> str | None:
        """The agent run that made a captured call: by the span of its response, else the only run of an agent of that name."""
        if (span := self._of_response.get(response_id)) is not None:
            return self.run_of(span)
        named = self._named.get(agent or "", [])
        return named[0] if len(named) == 1 else None

    def response_of(self, span_id: str | None) -> str | None:
        """The response of the model call whose span has this id."""
        span = self._spans.get(span_id or "")
        response = None if span is None else span.attributes.get(semconv.RESPONSE_ID)
        return None if response is None else str(response)

    def span_of_call(self, response_id: str) -> Span | None:
        """The adapter's span of a captured call."""
        return self._of_response.get(response_id)

    def conversation_of(self, span: Span) -> tuple[str | None, str | None]:
        """The conversation that ``span`` or the outermost span around it names, and the outermost agent run around it."""
        chain = [span, *self._above(span)]
        names = [name for at in chain if (name := at.attributes.get(semconv.CONVERSATION_ID)) is not None]
        runs = [at.span_id for at in chain if at.span_id in self._runs]
        return str(names[-1]) if names else None, runs[-1] if runs else None

    def _above(self, span: Span) -> Iterator[Span]:
        """The spans around ``span``, from the inside out."""
        passed = {span.span_id}
        while (parent := self._spans.get(span.parent_id or "")) is not None and parent.span_id not in passed:
            passed.add(parent.span_id)
            yield parent
            span = parent

    def _run(self, span: Span) -> AgentSpan:
        above = [run.span_id for run in self._above(span) if run.span_id in self._runs]
        return AgentSpan(
            span.span_id, _name(span), above[0] if above else None, len(above), span.started_at, span.ended_at
        )


def _name(span: Span) -> str:
    return str(span.attributes.get(semconv.AGENT_NAME) or span.name.removeprefix(semconv.INVOKE_AGENT).strip())


class AttemptConversations:
    """Names the conversation of each model call of an attempt; calls come in the order in which they began.

    A name is that of the framework (``thread_id``, session, team) or of the request. Without one, a call belongs to its
    outermost agent run, or to the conversation whose messages or tool calls it continues; else ``from turn N`` begins. With
    ``apart`` false (a rollout that the program or a trainer entered itself) calls without a name belong together: `NOT_NAMED`,
    as do calls of which no messages were recorded.
    """

    def __init__(self, tree: AgentTree, *, apart: bool) -> None:
        self._tree, self._apart = tree, apart
        self._of_run: dict[str, str] = {}
        self._of_messages: dict[bytes, str] = {}
        self._of_tool: dict[str, str] = {}
        self._of_response: dict[str, str] = {}

    def of_call(
        self,
        turn: int,
        call: CapturedCall | Span,
        response_id: str,
        messages: Sequence[Mapping[str, Any]],
        reply: Mapping[str, Any],
    ) -> str:
        """The conversation of the next call; ``messages`` are all that it sent."""
        is_captured = isinstance(call, CapturedCall)
        span = self._tree.span_of_call(response_id) if is_captured else call
        name, run = (None, None) if span is None else self._tree.conversation_of(span)
        name = name or (_named_by(call.request) if is_captured else None)
        if name is None and not self._apart:
            return NOT_NAMED
        digests = list(_digests([*messages, {"role": "assistant", **reply}]))
        conversation = (
            name
            or (run and self._of_run.get(run))
            or self._of_response.get(response_id)
            or self._continued(messages, digests)
            or (f"from turn {turn}" if messages or run else NOT_NAMED)
        )
        if run is not None:
            self._of_run.setdefault(run, conversation)
        self._of_response[response_id] = conversation
        for digest in digests[-2:]:  # messages that two conversations have in common tell nothing
            if self._of_messages.setdefault(digest, conversation) != conversation:
                self._of_messages[digest] = ""
        self._of_tool |= dict.fromkeys(_call_ids(reply), conversation)
        return conversation

    def of_decision(self, span: Span, response_id: str | None) -> str:
        """The conversation of a decision that no tool call has; asked after all calls."""
        name, run = self._tree.conversation_of(span)
        return name or self._of_run.get(run or "") or self._of_response.get(response_id or "", NOT_NAMED)

    def _continued(self, messages: Sequence[Mapping[str, Any]], digests: Sequence[bytes]) -> str | None:
        """The conversation of the last call whose reply, or whose messages, the list repeats before its last reply."""
        for at in range(len(messages) - 1, -1, -1):
            if messages[at].get("role") != "assistant":
                continue
            by_tool = (self._of_tool.get(call_id) for call_id in _call_ids(messages[at]))
            by_text = (self._of_messages.get(digest) for digest in (digests[at], digests[at - 1] if at else b""))
            if (conversation := next(filter(None, (*by_tool, *by_text)), None)) is not None:
                return conversation
        return None


def _named_by(request: Mapping[str, Any]) -> str | None:
    """The conversation or user that a request of the model's API names."""
    metadata = request.get("metadata")
    names = [request.get("conversation")]
    names += [metadata.get(name) for name in _METADATA] if isinstance(metadata, Mapping) else []
    names += [request.get(name) for name in _USER]
    ids = (value.get("id") if isinstance(value, Mapping) else value for value in names)
    return next((value for value in ids if isinstance(value, str) and value), None)


def _digests(messages: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """A digest of the list up to each message: roles and contents."""
    running = hashlib.sha256()
    for message in messages:
        running.update(repr((message.get("role"), message.get("content") or "")).encode("utf-8", "surrogatepass"))
        yield running.digest()


def _call_ids(message: Mapping[str, Any]) -> list[str]:
    calls = message.get("tool_calls")
    return [str(call["id"]) for call in calls if isinstance(call, Mapping) and call.get("id")] if calls else []
