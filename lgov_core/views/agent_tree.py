"""Which agent run a model call was made in: from the spans of an attempt, by their ids alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from lgov_core.trace import semconv
from lgov_core.types import Span
from lgov_core.views.attempt_view import AgentRun


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
        passed = {span.span_id}
        while (parent := span.parent_id) is not None and parent in self._spans and parent not in passed:
            if parent in self._runs:
                return parent
            passed.add(parent)
            span = self._spans[parent]
        return None

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

    def _run(self, span: Span) -> AgentRun:
        parent = self.run_of(span)
        depth, above, passed = 0, parent, {span.span_id}
        while above is not None and above not in passed:
            passed.add(above)
            depth, above = depth + 1, self.run_of(self._spans[above])
        return AgentRun(span.span_id, _name(span), parent, depth, span.started_at, span.ended_at)


def _name(span: Span) -> str:
    return str(span.attributes.get(semconv.AGENT_NAME) or span.name.removeprefix(semconv.INVOKE_AGENT).strip())
