"""The tree that spans form by their parents' ids: what a span takes over from those above it. No clocks, no recursion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from lgov_core.trace import semconv
from lgov_core.transitions.findings import Diagnostic, Finding
from lgov_core.transitions.reading.span_values import text_of
from lgov_core.types import JSONValue, Span

#: Operations of model calls that have a reply of tokens.
CALL_OPERATIONS: Final = frozenset({semconv.CHAT, semconv.TEXT_COMPLETION, "generate_content"})

#: Operations whose spans say whose a call is. A missing parent of another span changes nothing.
_OF_INTEREST: Final = CALL_OPERATIONS | {semconv.INVOKE_AGENT, semconv.EXECUTE_TOOL}


class Place(NamedTuple):
    """The place of a span in the tree: what it says itself, or else what the nearest span above it says.

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


class SpanTree:
    """The different spans of a set, each at its place; one that was given twice is kept once.

    Spans with one id and different contents are all kept and a finding; where one of them has ended and others have not,
    the others are earlier versions of it. A cycle is cut, and a finding; so is a missing parent, and a span without an end.
    Nothing depends on the order of ``spans``. Iterating gives each span with its place. Immutable.
    """

    def __init__(self, spans: Iterable[Span], found: list[Diagnostic]) -> None:
        self._index: dict[tuple[str | None, str], Span] = {}
        self._others: list[Span] = []  # those that share an id with one in the index
        self._places: dict[int, Place] = {}  # by the identity of spans
        self._cut: set[int] = set()  # by the identity of spans
        self._take(spans, found)
        for span in self.kept():
            if span.ended_at is None:
                found.append(Diagnostic(Finding.OPEN_SPAN, span.span_id, span.name))
            if span.parent_id is not None and self._parent(span) is None and _of_interest(span):
                missing = f"its parent {span.parent_id} is missing"
                found.append(Diagnostic(Finding.ORPHAN_SPAN, span.span_id, missing))
        for span in self.kept():
            if id(span) not in self._places:
                self._walk(span, found)

    def __iter__(self) -> Iterator[tuple[Span, Place]]:
        return ((span, self._places[id(span)]) for span in self.kept())

    def kept(self) -> tuple[Span, ...]:
        """The different spans."""
        return (*self._index.values(), *self._others)

    def place(self, span: Span) -> Place:
        """The place of ``span``, one of those kept."""
        return self._places[id(span)]

    def place_above(self, span: Span) -> Place:
        """The place of the parent of ``span``; at the top one that says nothing."""
        parent = self.above(span)
        return _NOWHERE if parent is None else self.place(parent)

    def above(self, span: Span) -> Span | None:
        """The parent of ``span``; None at the top, where it is missing, and where a cycle was cut."""
        return None if id(span) in self._cut else self._parent(span)

    def nearest(self, span: Span, name: str) -> JSONValue:
        """The attribute ``name`` of ``span`` or of the nearest span above it that has it; else None."""
        here: Span | None = span
        while here is not None:
            if (value := here.attributes.get(name)) is not None:
                return value
            here = self.above(here)
        return None

    def _parent(self, span: Span) -> Span | None:
        if span.parent_id is None:
            return None
        # A span of a program's own OpenTelemetry may be below one of lgov's, which names no trace.
        parent = self._index.get((span.trace_id, span.parent_id))
        return self._index.get((None, span.parent_id)) if parent is None else parent

    def _take(self, spans: Iterable[Span], found: list[Diagnostic]) -> None:
        variants: dict[tuple[str | None, str], list[Span]] = {}
        for span in spans:
            if not isinstance(span.attributes.get(semconv.OPERATION), str | None):
                rest = {name: value for name, value in span.attributes.items() if name != semconv.OPERATION}
                span = replace(span, attributes=rest)
            key = (span.trace_id, span.span_id)
            known = self._index.setdefault(key, span)
            if known is not span and known != span:
                variants.setdefault(key, [known]).append(span)
        for key, several in variants.items():
            ended: list[Span] = []
            for span in several:
                if span.ended_at is not None and span not in ended:
                    ended.append(span)
            # Several versions of a span that never ended: the fullest, in an order of its own.
            candidates = ended or [max(several, key=lambda span: (len(span.attributes), _text(span)))]
            self._index[key], *rest = sorted(candidates, key=_text)
            if rest:
                detail = f"{len(candidates)} different spans"
                found.append(Diagnostic(Finding.DUPLICATE_SPAN, self._index[key].span_id, detail))
                self._others += rest

    def _walk(self, span: Span, found: list[Diagnostic]) -> None:
        """Walks up to a span whose place is known, or to the top, and places what it passed on the way back down."""
        path, under_way = [span], {id(span)}
        place = _NOWHERE
        while (parent := self._parent(path[-1])) is not None:
            known = self._places.get(id(parent))
            if known is not None:
                place = known
                break
            if id(parent) in under_way:
                circle = self._cut_cycle(path, parent, found)
                self._place_down(circle, _NOWHERE)
                path, place = path[: len(path) - len(circle)], self._places[id(parent)]
                break
            under_way.add(id(parent))
            path.append(parent)
        self._place_down(path, place)

    def _place_down(self, path: list[Span], place: Place) -> None:
        for span in reversed(path):
            place = self._places[id(span)] = _placed(span, place)

    def _cut_cycle(self, path: list[Span], again: Span, found: list[Diagnostic]) -> list[Span]:
        """Cuts the cycle at the end of ``path``, which comes back to ``again``, above its span with the smallest id.

        Returns its spans from the bottom up: the one under the cut is the last.
        """
        start = next(at for at, span in enumerate(path) if span is again)
        circle = path[start:]
        first = min(range(len(circle)), key=lambda at: (circle[at].trace_id or "", circle[at].span_id))
        self._cut.add(id(circle[first]))
        names = sorted(span.span_id for span in circle)
        detail = f"{len(names)} spans: {', '.join(names[:10])}"
        found.append(Diagnostic(Finding.CYCLIC_SPANS, circle[first].span_id, detail))
        return [*circle[first + 1 :], *circle[: first + 1]]


def _placed(span: Span, above: Place) -> Place:
    get = span.attributes.get
    rollout_id = text_of(get(semconv.ROLLOUT_ID)) if span.rollout_id is None else span.rollout_id
    number = get(semconv.ATTEMPT) if span.attempt is None else span.attempt
    attempt = number if type(number) is int else None
    if rollout_id is None or rollout_id == above.rollout_id:
        rollout_id, attempt = above.rollout_id, above.attempt if attempt is None else attempt
    is_same = (rollout_id, attempt) == (above.rollout_id, above.attempt)
    agent, tool, operation = above.agent, above.tool_call_id, get(semconv.OPERATION)
    if operation == semconv.INVOKE_AGENT:
        agent = text_of(get(semconv.AGENT_NAME)) or agent
    elif operation == semconv.EXECUTE_TOOL:
        tool = text_of(get(semconv.TOOL_CALL_ID)) or tool
    ended = semconv.OUTCOME in span.attributes or (is_same and above.ended_above)
    return Place(rollout_id, attempt, agent, tool, ended)


def _of_interest(span: Span) -> bool:
    attributes: Mapping[str, Any] = span.attributes
    # The parent of a tool span that a governor's sink writes is whatever asked for the tool, which need not be a span.
    if attributes.get(semconv.OPERATION) == semconv.EXECUTE_TOOL and not span.claimed:
        return False
    return span.name == semconv.REWARD_SPAN_NAME or attributes.get(semconv.OPERATION) in _OF_INTEREST


def _text(span: Span) -> str:
    """An order of spans that depends on nothing but what they say."""
    return repr((span.started_at, span.ended_at, span.name, span.parent_id, sorted(span.attributes.items(), key=repr)))
