"""Spans as they are read: files of them, their tree, and the values of their attributes.

The tree is formed by the parents' ids and says what a span takes over from those above it: no clocks, no recursion. An
attribute that is not of its kind is None, and never something like it.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from lgov_core._util.json_text import token_ids
from lgov_core.errors import SpanFileError, TraceError
from lgov_core.trace import semconv
from lgov_core.trace.canonical import canonical, from_json, message_of
from lgov_core.trace.otlp_http import decode_traces
from lgov_core.transitions.transition_set import DataFinding, Diagnostic
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

    def __init__(self, spans: Iterable[Span], diagnostics: list[Diagnostic]) -> None:
        self._index: dict[tuple[str | None, str], Span] = {}
        self._others: list[Span] = []  # those that share an id with one in the index
        self._places: dict[int, Place] = {}  # by the identity of spans
        self._cut: set[int] = set()  # by the identity of spans
        self._take(spans, diagnostics)
        for span in self.kept():
            if span.ended_at is None:
                diagnostics.append(Diagnostic(DataFinding.OPEN_SPAN, span.span_id, span.name))
            if span.parent_id is not None and self._parent(span) is None and _of_interest(span):
                missing = f"its parent {span.parent_id} is missing"
                diagnostics.append(Diagnostic(DataFinding.ORPHAN_SPAN, span.span_id, missing))
        for span in self.kept():
            if id(span) not in self._places:
                self._walk(span, diagnostics)

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

    def _take(self, spans: Iterable[Span], diagnostics: list[Diagnostic]) -> None:
        variants: dict[tuple[str | None, str], list[Span]] = {}
        for span in spans:
            if not isinstance(span.attributes.get(semconv.OPERATION), str | None):
                rest = {name: value for name, value in span.attributes.items() if name != semconv.OPERATION}
                span = replace(span, attributes=rest)
            key = (span.trace_id, span.span_id)
            first = self._index.setdefault(key, span)
            if first is not span and first != span:
                variants.setdefault(key, [first]).append(span)
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
                diagnostics.append(Diagnostic(DataFinding.DUPLICATE_SPAN, self._index[key].span_id, detail))
                self._others += rest

    def _walk(self, span: Span, diagnostics: list[Diagnostic]) -> None:
        """Walks up to a span whose place is known, or to the top, and places what it passed on the way back down."""
        path, under_way = [span], {id(span)}
        place = _NOWHERE
        while (parent := self._parent(path[-1])) is not None:
            parent_place = self._places.get(id(parent))
            if parent_place is not None:
                place = parent_place
                break
            if id(parent) in under_way:
                circle = self._cut_cycle(path, parent, diagnostics)
                self._place_down(circle, _NOWHERE)
                path, place = path[: len(path) - len(circle)], self._places[id(parent)]
                break
            under_way.add(id(parent))
            path.append(parent)
        self._place_down(path, place)

    def _place_down(self, path: list[Span], place: Place) -> None:
        for span in reversed(path):
            place = self._places[id(span)] = _placed(span, place)

    def _cut_cycle(self, path: list[Span], again: Span, diagnostics: list[Diagnostic]) -> list[Span]:
        """Cuts the cycle at the end of ``path``, which comes back to ``again``, above its span with the smallest id.

        Returns its spans from the bottom up: the one under the cut is the last.
        """
        start = next(at for at, span in enumerate(path) if span is again)
        circle = path[start:]
        first = min(range(len(circle)), key=lambda at: (circle[at].trace_id or "", circle[at].span_id))
        self._cut.add(id(circle[first]))
        names = sorted(span.span_id for span in circle)
        detail = f"{len(names)} spans: {', '.join(names[:10])}"
        diagnostics.append(Diagnostic(DataFinding.CYCLIC_SPANS, circle[first].span_id, detail))
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


_T = TypeVar("_T")


class ByConversation(Generic[_T]):
    """Values by name, conversation and time: models write the ids of tool calls anew in each conversation (``call_0``).

    Those of the same conversation are found. Where nothing is known of the conversation, those of none are meant; and who
    asks for none means those of a single one. Unless ``is_strict`` so does who asks for one of which nothing is known.
    """

    def __init__(self, *, is_strict: bool = False) -> None:
        self._is_strict = is_strict
        self._values: dict[Hashable, dict[str | None, list[tuple[float, int, _T]]]] = defaultdict(dict)
        self._conversations: set[str | None] = set()
        self._count = 0

    def __contains__(self, name: Hashable) -> bool:
        return name in self._values

    def add(self, name: Hashable, conversation: str | None, at: float, value: _T) -> None:
        """Adds a value."""
        self._count += 1
        self._conversations.add(conversation)
        insort(self._values[name].setdefault(conversation, []), (at, self._count, value))

    def known(self, name: Hashable, conversation: str | None, at: float = math.inf) -> list[_T]:
        """The values of that name and conversation until then, in the order of time."""
        of_name = self._values.get(name, {})
        if conversation not in self._conversations:
            is_single = len(of_name) == 1 and (conversation is None or not self._is_strict)
            conversation = next(iter(of_name)) if is_single else None
        return [value for since, _, value in of_name.get(conversation, ()) if since <= at]

    def find(self, name: Hashable, conversation: str | None, at: float) -> _T | None:
        """The last value until then, or else the first after it."""
        return next(iter(self.known(name, conversation, at)[-1:] or self.known(name, conversation)), None)


#: Prompt ids, response ids and logprobs.
Tokens: TypeAlias = tuple[tuple[int, ...] | None, tuple[int, ...] | None, tuple[float, ...] | None]

#: What a tool call is called as a part of a message, by the API that the message comes from.
_CALL_PARTS: Final = frozenset({"tool_call", "tool_use", "function_call"})

_TOKEN_ATTRIBUTES: Final = (semconv.PROMPT_TOKEN_IDS, semconv.RESPONSE_TOKEN_IDS, semconv.RESPONSE_LOGPROBS)


def text_of(value: object) -> str | None:
    """``value`` if it is text and not empty."""
    return value if isinstance(value, str) and value else None


def number_of(value: object) -> float:
    """``value`` as a float; NaN for other values (also booleans and numbers written as text)."""
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return math.nan
    return math.nan


def number_or(value: object, otherwise: float) -> float:
    """``value`` as a float, ``otherwise`` for what is not a finite number."""
    number = number_of(value)
    return number if math.isfinite(number) else otherwise


def version_of(value: object) -> int | None:
    """A weights version: an integer from 0 on, or one written as text."""
    if type(value) is not int and isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and value >= 0 else None


def tokens_of(attributes: Mapping[str, JSONValue]) -> Tokens:
    """The exact tokens that a call's span claims; None for each part that is missing or not a list of numbers."""
    get = attributes.get
    logprobs = _listed(get(semconv.RESPONSE_LOGPROBS))
    return (
        token_ids(from_json(get(semconv.PROMPT_TOKEN_IDS))),
        token_ids(from_json(get(semconv.RESPONSE_TOKEN_IDS))),
        None if logprobs is None or not set(map(type, logprobs)) <= {int, float} else tuple(logprobs),
    )


def unreadable_tokens(attributes: Mapping[str, JSONValue], tokens: Tokens) -> list[str]:
    """The names in ``attributes`` that should hold tokens or logprobs and do not."""
    return [
        name
        for name, read in zip(_TOKEN_ATTRIBUTES, tokens, strict=True)
        if read is None and attributes.get(name) is not None
    ]


def tokens_agree(first: Tokens, other: Tokens) -> bool:
    """Returns whether two claims can be of one call: they differ in nothing that both name."""
    return all(mine is None or yours is None or mine == yours for mine, yours in zip(first, other, strict=True))


def finish_reason_of(value: object) -> str:
    """The first of a call's finish reasons, empty when none is known."""
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return value if isinstance(value, str) else ""


def request_of(attributes: Mapping[str, JSONValue]) -> dict[str, Any]:
    """The request that a model read, according to its span: messages (instructions first) and tools, as in chat completions.

    Empty where the messages are not recorded or the instructions cannot be read.
    """
    request = messages_of(attributes.get(semconv.INPUT_MESSAGES))
    if not request:
        return {}
    instructions = attributes.get(semconv.SYSTEM_INSTRUCTIONS)
    if instructions not in (None, "", "[]"):
        parts = from_json(instructions)
        system = message_of(
            {"role": "system", "parts": parts} if parts else {"role": "system", "content": instructions}
        )
        if system is None or not isinstance(system.get("content"), str):
            return {}
        if system not in request["messages"]:
            request["messages"] = [system, *request["messages"]]
    tools = [
        _tool(definition)
        for definition in _listed(attributes.get(semconv.TOOL_DEFINITIONS)) or ()
        if isinstance(definition, Mapping)
    ]
    return {**request, "tools": tools} if tools else request


def _tool(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's definition; in the conventions the fields of a function are beside its type."""
    if definition.get("type", "function") != "function" or "function" in definition:
        return dict(definition)
    return {"type": "function", "function": {name: value for name, value in definition.items() if name != "type"}}


def messages_of(value: object) -> dict[str, Any]:
    """``{"messages": [...]}`` from the JSON text of messages; else empty."""
    messages = _listed(value)
    return {} if messages is None else {"messages": [*messages]}


def proposed_tool_calls(attributes: Mapping[str, JSONValue]) -> tuple[str, ...]:
    """The ids of the tool calls that a reply proposed, as its span names them: by an attribute, or in the reply's messages."""
    listed, single = attributes.get(semconv.TOOL_CALL_IDS), attributes.get(semconv.TOOL_CALL_ID)
    reply = attributes.get(semconv.OUTPUT_MESSAGES)
    if listed is None and single is None and reply is None:
        return ()
    named: dict[str, None] = {}
    for value in (listed, single):
        for call_id in [value] if isinstance(value, str) else value if isinstance(value, Sequence) else ():
            if isinstance(call_id, str) and call_id:
                named[call_id] = None
    if reply is not None and not (isinstance(reply, str) and "call" not in reply and "tool_use" not in reply):
        named.update(dict.fromkeys(_ids_in(messages_of(reply).get("messages"))))
    return tuple(named)


def _ids_in(messages: object) -> Iterator[str]:
    """Walks messages of any API. Iterative: the reply is untrusted and may be nested deeply."""
    waiting: list[tuple[Any, bool]] = [(messages, False)]
    while waiting:
        here, is_call = waiting.pop()
        if isinstance(here, list):
            waiting.extend((item, is_call) for item in reversed(here))
        elif isinstance(here, Mapping):
            if is_call or here.get("type") in _CALL_PARTS:
                call_id = here.get("call_id") or here.get("id")
                if isinstance(call_id, str) and call_id:
                    yield call_id
                continue
            for name in ("tool_calls", "message", "parts", "content", "output"):
                if isinstance(inner := here.get(name), list | Mapping):
                    waiting.append((inner, name == "tool_calls"))


def _listed(value: object) -> Sequence[Any] | None:
    parsed = from_json(value)
    return parsed if isinstance(parsed, list | tuple) else None


_HINT: Final = "each line is one ExportTraceServiceRequest in OTLP's JSON encoding"
#: Bytes of one line at most.
_LONGEST: Final = 1 << 30


def read_span_lines(lines: Iterable[bytes], name: str) -> tuple[list[Span], list[Diagnostic]]:
    """The spans of ``lines`` in lgov's names, and a diagnostic for each line with spans that could not be read.

    Empty lines are skipped. Raises `SpanFileError` (``name:line``) for a line that is not a request.
    """
    spans: list[Span] = []
    diagnostics: list[Diagnostic] = []
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line:
            continue
        try:
            decoded = decode_traces(line, "application/json", max_inflated=_LONGEST)
        except TraceError as error:
            raise SpanFileError(error.message, path=name, line=number, hint=_HINT) from error
        is_request = line.startswith(b"{") and (
            b"esourceSpans" in line or b"resource_spans" in line or not line[1:-1].strip()
        )
        if not decoded.spans and not decoded.rejected and not is_request:
            raise SpanFileError("no resourceSpans", path=name, line=number, hint=_HINT)
        if decoded.rejected:
            detail = f"{decoded.rejected} spans: {'; '.join(decoded.problems)}"
            diagnostics.append(Diagnostic(DataFinding.UNREADABLE_SPAN, f"{name}:{number}", detail))
        spans.extend(map(canonical, decoded.spans))
    return spans, diagnostics
