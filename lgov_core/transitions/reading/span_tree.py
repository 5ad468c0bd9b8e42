"""The tree that spans form by their parents' ids: what a span takes over from those above it. No clocks, no recursion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from lgov_core.trace import semconv
from lgov_core.transitions.findings import Diagnostic, Finding
from lgov_core.types import Span

#: Operations of model calls that have a reply of tokens.
CALL_OPERATIONS: Final = frozenset({semconv.CHAT, semconv.TEXT_COMPLETION, "generate_content"})

#: Operations that hand something down: the name of an agent, the id of a tool call.
_STEPS: Final = frozenset({semconv.INVOKE_AGENT, semconv.EXECUTE_TOOL})

#: Operations whose spans say whose a call is. A missing parent of another span takes nothing away from anybody.
_OF_INTEREST: Final = CALL_OPERATIONS | _STEPS


@dataclass(frozen=True, slots=True)
class Place:
    """Where a span stands: what it says itself, or else what the nearest span above it says.

    ``agent`` is the name of the nearest ``invoke_agent`` span that has one (the span itself included), ``tool_call_id``
    that of the nearest ``execute_tool`` span. ``ended_above`` is true when the span or one above it in the same attempt
    says how the attempt ended.
    """

    rollout_id: str | None = None
    attempt: int | None = None
    agent: str | None = None
    tool_call_id: str | None = None
    ended_above: bool = False


_NOWHERE: Final = Place()

_TEXT_OR_NONE: Final = frozenset({str, type(None)})


class SpanTree:
    """The different spans of a set, each at its place; one that arrived twice is there once.

    Spans with one id and different contents are all kept and a finding; where one of them has ended and others have not,
    the others are earlier pictures of it. A cycle is cut where it closes, and a finding; so is a parent that is not
    there, and a span without an end. Nothing depends on the order of ``spans``. `placed` finds the places, and has to
    be gone through before anything else is asked. Not safe for use from several threads.
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self._given = tuple(spans)
        self._traces: dict[str | None, _Trace] = {}

    def placed(self, found: list[Diagnostic]) -> Iterator[Iterator[tuple[Span, Place]]]:
        """The spans of each trace with their places, one trace after the other: what is read of it finds it in the caches."""
        spans_of: dict[str | None, list[Span]] = {None: []}
        trace_id, spans = None, spans_of[None]
        for span in self._given:
            if span.trace_id != trace_id:  # mostly a trace's spans come together
                trace_id = span.trace_id
                spans = spans_of.setdefault(trace_id, [])
            spans.append(span)
        # A span of a program's own OpenTelemetry may stand under one of ours, which names no trace.
        ours: _Trace | None = None
        for trace_id, spans in spans_of.items():
            trace = self._traces[trace_id] = _Trace(spans, ours, found)
            ours = ours or trace
            yield trace.placed()

    def kept(self) -> tuple[Span, ...]:
        """The different spans."""
        traces = self._traces
        if not any(trace.changed for trace in traces.values()):
            return self._given
        keys = dict.fromkeys((span.trace_id, span.span_id) for span in self._given)
        others = [span for trace in traces.values() for span in trace.others]
        return (*(traces[trace_id].index[span_id] for trace_id, span_id in keys), *others)

    def place(self, span: Span) -> Place:
        """Where ``span``, one of those kept, stands."""
        return self._traces[span.trace_id].place(span)

    def place_above(self, span: Span) -> Place:
        """The place of the parent of ``span``; at the top one that says nothing."""
        parent = self.above(span)
        return _NOWHERE if parent is None else self.place(parent)

    def above(self, span: Span) -> Span | None:
        """The parent of ``span``, None at the top, where it is missing and where a cycle was cut."""
        return self._traces[span.trace_id].above(span)

    def nearest(self, span: Span, choose: Callable[[Span], Any]) -> Any:
        """What ``choose`` gives for ``span`` or the nearest span above it, where that is not None; else None."""
        here: Span | None = span
        while here is not None:
            if (value := choose(here)) is not None:
                return value
            here = self.above(here)
        return None


class _Trace:
    """The spans of one trace by their ids, and the places of all of them.

    ``others`` are those that share an id with the one in ``index``; ``changed`` is true where what is kept is not what
    came. ``ours`` are the spans without a trace, for a span of another trace whose parent is one of them.
    """

    __slots__ = ("_cut", "_found", "_other_places", "_ours", "_places", "changed", "index", "others")

    def __init__(self, spans: Sequence[Span], ours: _Trace | None, found: list[Diagnostic]) -> None:
        self._ours = ours
        self._found = found
        self._places: dict[str | None, Place] = {}
        self._other_places: dict[int, Place] = {}  # by the identity of `others`
        self._cut: set[int] = set()  # by the identity of spans
        self.index = {span.span_id: span for span in spans}
        self.others: list[Span] = []
        self.changed = (
            len(self.index) < len(spans)
            or not {type(span.attributes.get(semconv.OPERATION)) for span in spans} <= _TEXT_OR_NONE
        )
        if self.changed:
            self._tell_apart(spans)
        self._place_all()

    def placed(self) -> Iterator[tuple[Span, Place]]:
        """Each span with its place."""
        mostly = zip(self.index.values(), map(self._places.__getitem__, self.index), strict=True)
        return chain(mostly, ((span, self.place(span)) for span in self.others)) if self.others else mostly

    def place(self, span: Span) -> Place:
        same = self.index[span.span_id] is span
        return self._places[span.span_id] if same else self._other_places[id(span)]

    def above(self, span: Span) -> Span | None:
        if span.parent_id is None or id(span) in self._cut:
            return None
        return self._parent(span.parent_id)

    def _parent(self, parent_id: str) -> Span | None:
        parent = self.index.get(parent_id)
        return self._ours.index.get(parent_id) if parent is None and self._ours is not None else parent

    def _tell_apart(self, spans: Sequence[Span]) -> None:
        """Finds out what spans of one id are, whatever their order was."""
        self.index = {}
        variants: dict[str, list[Span]] = {}
        for span in spans:
            if type(span.attributes.get(semconv.OPERATION)) not in _TEXT_OR_NONE:  # whoever sent it: it says nothing
                span = _without_operation(span)
            known = self.index.setdefault(span.span_id, span)
            if known is not span and known != span:
                variants.setdefault(span.span_id, []).append(span)
        for span_id, further in variants.items():
            ended: list[Span] = []
            for span in (self.index[span_id], *further):
                if span.ended_at is not None and span not in ended:
                    ended.append(span)
            candidates = ended
            if not ended:  # several pictures of a span that never ended: the fullest, in an order of its own
                candidates = [
                    max((self.index[span_id], *further), key=lambda span: (len(span.attributes), _text(span)))
                ]
            candidates.sort(key=_text)
            self.index[span_id], *rest = candidates
            if rest:
                self._found.append(Diagnostic(Finding.DUPLICATE_SPAN, span_id, f"{len(candidates)} different spans"))
                self.others += rest

    def _place_all(self) -> None:
        places = self._places
        for span_id, span in self.index.items():
            if span_id in places:
                continue
            above = places.get(span.parent_id)
            if above is None or span.ended_at is None:
                self._walk(span)
            else:  # mostly the parent is placed already
                places[span_id] = _placed(span, above)
        for span in self.others:
            self._walk(span)

    def _walk(self, span: Span) -> None:
        """Walks up to a span whose place is known, or to the top, and comes down again, placing what it passed."""
        place, path = _NOWHERE, [span]
        under_way: set[int] | None = None
        while True:
            if span.ended_at is None:
                self._found.append(Diagnostic(Finding.OPEN_SPAN, span.span_id, span.name))
            if span.parent_id is None:
                break
            parent = self._parent(span.parent_id)
            if parent is None:
                if _of_interest(span):
                    missing = f"its parent {span.parent_id} is missing"
                    self._found.append(Diagnostic(Finding.ORPHAN_SPAN, span.span_id, missing))
                break
            known = self._placed_at(parent)
            if known is not None:
                place = known
                break
            if under_way is None:
                under_way = {id(span)}
            if id(parent) in under_way:
                circle = self._cut_cycle(path, parent)
                self._place_down(circle, _NOWHERE)
                path, place = path[: len(path) - len(circle)], self._places[parent.span_id]
                break
            under_way.add(id(parent))
            path.append(parent)
            span = parent
        self._place_down(path, place)

    def _placed_at(self, parent: Span) -> Place | None:
        """Where a span of an index stands, if that is known already; of those without a trace it always is."""
        of = self._ours if self.index.get(parent.span_id) is not parent else self
        return None if of is None else of._places.get(parent.span_id)

    def _place_down(self, path: list[Span], place: Place) -> None:
        for span in reversed(path):
            place = _placed(span, place)
            if self.index[span.span_id] is span:
                self._places[span.span_id] = place
            else:
                self._other_places[id(span)] = place

    def _cut_cycle(self, path: list[Span], again: Span) -> list[Span]:
        """Cuts the cycle at the end of ``path``, which comes back to ``again``, above its span with the smallest id.

        Gives its spans from the bottom up: the one under the cut is the last.
        """
        start = next(at for at, span in enumerate(path) if span is again)
        circle = path[start:]
        first = min(range(len(circle)), key=lambda at: (circle[at].trace_id or "", circle[at].span_id))
        self._cut.add(id(circle[first]))
        names = sorted(span.span_id for span in circle)
        detail = f"{len(names)} spans: {', '.join(names[:10])}"
        self._found.append(Diagnostic(Finding.CYCLIC_SPANS, circle[first].span_id, detail))
        return [*circle[first + 1 :], *circle[: first + 1]]


def _without_operation(span: Span) -> Span:
    return replace(span, attributes={key: value for key, value in span.attributes.items() if key != semconv.OPERATION})


def _placed(span: Span, above: Place) -> Place:
    attributes = span.attributes
    own_rollout, own_attempt = span.rollout_id, span.attempt
    if own_rollout is None and isinstance(named := attributes.get(semconv.ROLLOUT_ID), str) and named:
        own_rollout = named
    if own_attempt is None and type(number := attributes.get(semconv.ATTEMPT)) is int:
        own_attempt = number
    operation = attributes.get(semconv.OPERATION)
    rollout_id, attempt = above.rollout_id, above.attempt
    if (
        (own_rollout == rollout_id or own_rollout is None)
        and (own_attempt == attempt or own_attempt is None)
        and operation not in _STEPS
        and semconv.OUTCOME not in attributes
    ):
        return above
    agent, tool, ended, changed = above.agent, above.tool_call_id, above.ended_above, False
    if own_rollout is not None and own_rollout != rollout_id:
        rollout_id, attempt, ended, changed = own_rollout, own_attempt, False, True
    elif own_attempt is not None and own_attempt != attempt:
        attempt, ended, changed = own_attempt, False, True
    if operation == semconv.INVOKE_AGENT:
        name = attributes.get(semconv.AGENT_NAME)
        if isinstance(name, str) and name:
            agent, changed = name, True
    elif operation == semconv.EXECUTE_TOOL:
        called = attributes.get(semconv.TOOL_CALL_ID)
        if isinstance(called, str) and called:
            tool, changed = called, True
    if semconv.OUTCOME in attributes:
        ended = changed = True
    return Place(rollout_id, attempt, agent, tool, ended) if changed else above


def _of_interest(span: Span) -> bool:
    attributes: Mapping[str, Any] = span.attributes
    # The tool spans that a governor's sink writes stand under whatever asked for the tool, which need not be a span.
    if attributes.get(semconv.OPERATION) == semconv.EXECUTE_TOOL and not span.claimed:
        return False
    return span.name == semconv.REWARD_SPAN_NAME or attributes.get(semconv.OPERATION) in _OF_INTEREST


def _text(span: Span) -> str:
    """An order of spans that depends on nothing but what they say."""
    return repr((span.started_at, span.ended_at, span.name, span.parent_id, sorted(span.attributes.items(), key=repr)))
