"""The tree that spans form by their parents' ids: what a span takes over from those above it. No clocks, no recursion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from lgov_core.trace import semconv
from lgov_core.transitions.findings import Diagnostic, Finding
from lgov_core.types import Span

#: A span's place in the index: its trace, None for a span that came from none, and its id.
SpanKey: TypeAlias = tuple[str | None, str]

#: Operations of model calls that have a reply of tokens.
CALL_OPERATIONS: Final = frozenset({semconv.CHAT, semconv.TEXT_COMPLETION, "generate_content"})

#: Operations whose spans say whose a call is. A missing parent of another span takes nothing away from anybody.
_OF_INTEREST: Final = CALL_OPERATIONS | {semconv.INVOKE_AGENT, semconv.EXECUTE_TOOL}


class Place(NamedTuple):
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


class SpanTree:
    """An index of spans. ``kept`` are the different ones; one that arrived twice is in it once.

    Spans with one id and different contents are all kept and a finding; where one of them has ended and others have not,
    the others are earlier pictures of it. A cycle is cut where it closes, and a finding; so is a parent that is not
    there, and a span without an end. Nothing depends on the order of ``spans``. Not safe for use from several threads.
    """

    def __init__(self, spans: Iterable[Span], found: list[Diagnostic]) -> None:
        self._index: dict[SpanKey, Span] = {}
        self._others: list[Span] = []
        self._places: dict[int, Place] = {}  # by the identity of spans, which `kept` keeps alive
        self._cut: set[int] = set()
        index, others = self._index, self._others
        for span in spans:
            operation = span.attributes.get(semconv.OPERATION)
            if operation is not None and type(operation) is not str:  # whoever sent it: it says nothing
                span = _without_operation(span)
            known = index.setdefault((span.trace_id, span.span_id), span)
            if known is not span and known != span:
                others.append(span)
        if others:
            self._settle(found)
        self.kept: list[Span] = [*index.values(), *self._others]
        places = self._places
        for span in self.kept:
            if id(span) in places:
                continue
            if span.parent_id is not None and span.ended_at is not None:  # mostly the parent is placed already
                parent = index.get((span.trace_id, span.parent_id))
                known = None if parent is None else places.get(id(parent))
                if known is not None:
                    places[id(span)] = _placed(span, known)
                    continue
            self._walk(span, found)

    def place(self, span: Span) -> Place:
        """Where ``span``, one of those kept, stands."""
        return self._places[id(span)]

    def place_above(self, span: Span) -> Place:
        """The place of the parent of ``span``; at the top one that says nothing."""
        parent = self.above(span)
        return _NOWHERE if parent is None else self._places[id(parent)]

    def above(self, span: Span) -> Span | None:
        """The parent of ``span``, None at the top, where it is missing and where a cycle was cut."""
        if span.parent_id is None or id(span) in self._cut:
            return None
        return self._parent(span)

    def _parent(self, span: Span) -> Span | None:
        parent = self._index.get((span.trace_id, span.parent_id or ""))
        # A span of a program's own OpenTelemetry may stand under one of ours, which names no trace.
        return self._index.get((None, span.parent_id or "")) if parent is None and span.trace_id is not None else parent

    def nearest(self, span: Span, choose: Callable[[Span], Any]) -> Any:
        """What ``choose`` gives for ``span`` or the nearest span above it, where that is not None; else None."""
        here: Span | None = span
        while here is not None:
            if (value := choose(here)) is not None:
                return value
            here = self.above(here)
        return None

    def _settle(self, found: list[Diagnostic]) -> None:
        """Finds out what spans of one id are, whatever their order was."""
        variants: dict[SpanKey, list[Span]] = {}
        for span in self._others:
            variants.setdefault((span.trace_id, span.span_id), []).append(span)
        self._others = []
        for key, further in variants.items():
            ended: list[Span] = []
            for span in (self._index[key], *further):
                if span.ended_at is not None and span not in ended:
                    ended.append(span)
            candidates = ended
            if not ended:  # several pictures of a span that never ended: the fullest, in an order of its own
                candidates = [max((self._index[key], *further), key=lambda span: (len(span.attributes), _text(span)))]
            candidates.sort(key=_text)
            self._index[key], *rest = candidates
            if rest:
                found.append(Diagnostic(Finding.DUPLICATE_SPAN, key[1], f"{len(candidates)} different spans"))
                self._others += rest

    def _walk(self, span: Span, found: list[Diagnostic]) -> None:
        """Walks up to a span whose place is known, or to the top, and comes down again, placing what it passed."""
        places = self._places
        place, path = _NOWHERE, [span]
        under_way: set[int] | None = None
        while True:
            if span.ended_at is None:
                found.append(Diagnostic(Finding.OPEN_SPAN, span.span_id, span.name))
            if span.parent_id is None:
                break
            parent = self._parent(span)
            if parent is None:
                if _of_interest(span):
                    missing = f"its parent {span.parent_id} is missing"
                    found.append(Diagnostic(Finding.ORPHAN_SPAN, span.span_id, missing))
                break
            known = places.get(id(parent))
            if known is not None:
                place = known
                break
            if under_way is None:
                under_way = {id(span)}
            if id(parent) in under_way:
                circle = self._cut_cycle(path, parent, found)
                self._place_down(circle, _NOWHERE)
                path, place = path[: len(path) - len(circle)], places[id(parent)]
                break
            under_way.add(id(parent))
            path.append(parent)
            span = parent
        self._place_down(path, place)

    def _place_down(self, path: list[Span], place: Place) -> None:
        for span in reversed(path):
            self._places[id(span)] = place = _placed(span, place)

    def _cut_cycle(self, path: list[Span], again: Span, found: list[Diagnostic]) -> list[Span]:
        """Cuts the cycle at the end of ``path``, which comes back to ``again``, above its span with the smallest id.

        Gives its spans from the bottom up: the one under the cut is the last.
        """
        start = next(at for at, span in enumerate(path) if span is again)
        circle = path[start:]
        first = min(range(len(circle)), key=lambda at: (circle[at].trace_id or "", circle[at].span_id))
        self._cut.add(id(circle[first]))
        names = sorted(span.span_id for span in circle)
        detail = f"{len(names)} spans: {', '.join(names[:10])}"
        found.append(Diagnostic(Finding.CYCLIC_SPANS, circle[first].span_id, detail))
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
    rollout_id, attempt, agent, tool, ended = above
    if (
        operation in CALL_OPERATIONS
        and own_rollout in (None, rollout_id)
        and own_attempt in (None, attempt)
        and semconv.OUTCOME not in attributes
    ):
        return above
    changed = False
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
