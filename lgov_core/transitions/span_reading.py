"""Spans in the documented format read as rollouts, attempts, calls and rewards.

Mostly one span shows a call. A reward is a span named ``lgov.reward``, or an evaluation among the events of what was judged.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from lgov_core.trace import semconv
from lgov_core.transitions.spans import (
    CALL_OPERATIONS,
    Place,
    SpanTree,
    Tokens,
    finish_reason_of,
    messages_of,
    number_of,
    number_or,
    proposed_tool_calls,
    request_of,
    text_of,
    tokens_agree,
    tokens_of,
    unreadable_tokens,
    version_of,
)
from lgov_core.transitions.transition_set import DataFinding, Diagnostic
from lgov_core.types import TRAIN_MODE, Attempt, CapturedCall, Outcome, Reward, Rollout, Span, SpanEvent

#: A call in its attempt: its response id and choice.
CallKey: TypeAlias = tuple[str, int]
#: A span that shows a call, and its place.
Shown: TypeAlias = tuple[Span, Place]


def calls_of_spans(
    key: CallKey,
    rollout_id: str | None,
    attempt: int | None,
    placed_spans: Sequence[Shown],
    proposed: Collection[str],
    diagnostics: list[Diagnostic],
) -> list[CapturedCall]:
    """The call that some spans show; spans that claim different tokens for it are as many calls.

    The call itself is the innermost of the spans. What one does not say another may. ``proposed`` are tool calls that
    other spans say it proposed.
    """
    inside_out = sorted(
        placed_spans,
        key=lambda placed: (placed[0].started_at, placed[0].span_id, placed[0].trace_id or ""),
        reverse=True,
    )
    spans = [span for span, _ in inside_out]
    agent = next((name for span in spans if (name := text_of(span.attributes.get(semconv.AGENT_NAME)))), None)
    agent = agent or next((place.agent for _, place in inside_out if place.agent), None)
    tools = tuple(dict.fromkeys(call_id for span in spans for call_id in proposed_tool_calls(span.attributes)))
    if proposed:
        tools = tuple(sorted({*tools, *proposed}))
    calls: list[CapturedCall] = []
    for span, attributes, tokens in _claims(spans, diagnostics):
        raw_version = attributes.get(semconv.WEIGHTS_VERSION)
        version = version_of(raw_version)
        if version is None and raw_version is not None:
            diagnostics.append(invalid(span, semconv.WEIGHTS_VERSION))
        calls.append(
            CapturedCall(
                response_id=key[0],
                choice=key[1],
                model=str(attributes.get(semconv.RESPONSE_MODEL) or attributes.get(semconv.REQUEST_MODEL) or ""),
                request=request_of(attributes),
                response=messages_of(attributes.get(semconv.OUTPUT_MESSAGES)),
                prompt_ids=tokens[0],
                response_ids=tokens[1],
                logprobs=tokens[2],
                finish_reason=finish_reason_of(attributes.get(semconv.FINISH_REASONS)),
                weights_version=version,
                temperature=number_or(attributes.get(semconv.REQUEST_TEMPERATURE), 1.0),
                top_p=number_or(attributes.get(semconv.REQUEST_TOP_P), 1.0),
                started_at=span.started_at,
                ended_at=span.started_at if span.ended_at is None else span.ended_at,
                rollout_id=rollout_id,
                attempt=attempt,
                agent=agent,
                tool_call_ids=tools,
            )
        )
    return calls


def invalid(span: Span, name: str) -> Diagnostic:
    """The finding that an attribute of ``span`` is not of its kind."""
    return Diagnostic(DataFinding.INVALID_ATTRIBUTE, span.span_id, f"{name} is {str(span.attributes.get(name))[:60]!r}")


def _claims(spans: Sequence[Span], diagnostics: list[Diagnostic]) -> list[tuple[Span, Mapping[str, Any], Tokens]]:
    """The different tokens that the spans of one call claim, mostly one; what one does not say another may."""
    claims: list[tuple[Span, Tokens]] = []
    for span in spans:
        tokens = tokens_of(span.attributes)
        diagnostics += [invalid(span, name) for name in unreadable_tokens(span.attributes, tokens)]
        same = next((index for index, claim in enumerate(claims) if tokens_agree(claim[1], tokens)), None)
        if same is None:
            claims.append((span, tokens))
        elif claims[same][1].count(None) > tokens.count(None):
            claims[same] = (span, tokens)
    claims = [claim for claim in claims if claim[1][1] is not None] or claims[:1]
    attributes: dict[str, Any] = {}
    for span in reversed(spans):
        attributes.update(span.attributes)
    return [(span, {**attributes, **span.attributes}, tokens) for span, tokens in claims]


def reward_of_span(span: Span, place: Place) -> Reward:
    """The reward of an ``lgov.reward`` span. A value that is not a number is NaN: it is reported later and never counted."""
    get = span.attributes.get
    choice = get(semconv.CHOICE)
    return Reward(
        value=number_of(get(semconv.REWARD_VALUE)),
        dimension=str(get(semconv.REWARD_DIMENSION) or "task"),
        rollout_id=place.rollout_id,
        attempt=place.attempt,
        response_id=_named(get(semconv.RESPONSE_ID)),
        tool_call_id=_named(get(semconv.TOOL_CALL_ID)),
        source=str(get(semconv.REWARD_SOURCE) or ""),
        reward_id=_id(span),
        choice=choice if type(choice) is int else None,
    )


def further_rewards(span: Span, reward: Reward) -> list[Reward]:
    """The further dimensions that its evaluation events add to the ``reward`` that a span is."""
    return [
        _judged(event, replace(reward, source="", reward_id=f"{_id(span)}#{position}"))
        for position, event in enumerate(span.events)
        if event.name == semconv.EVALUATION_EVENT
    ]


def evaluations_of_span(span: Span, tree: SpanTree) -> Iterator[Reward]:
    """The evaluations of what ``span`` shows: a call, a tool call, or at the top of an attempt all of it."""
    for position, event in enumerate(span.events):
        if event.name == semconv.EVALUATION_EVENT:
            yield _judged(event, _target(span, tree, f"{_id(span)}#{position}"))


def _id(span: Span) -> str:
    return span.span_id if span.trace_id is None else f"{span.trace_id}:{span.span_id}"


def _named(value: object) -> str | None:
    """The id that a reward names. Other values than text are ids too: of something that does not exist."""
    return text_of(value) if value is None or isinstance(value, str) else str(value)


def _judged(event: SpanEvent, target: Reward) -> Reward:
    """The reward of an event, on the target that it names itself, or else on ``target``."""
    attributes = event.attributes
    choice = attributes.get(semconv.CHOICE)
    response_id, tool_call = _named(attributes.get(semconv.RESPONSE_ID)), _named(attributes.get(semconv.TOOL_CALL_ID))
    if response_id is not None or tool_call is not None:
        target = replace(target, response_id=response_id, tool_call_id=tool_call, choice=None)
    return replace(
        target,
        value=number_of(attributes.get(semconv.REWARD_VALUE, attributes.get(semconv.EVALUATION_SCORE))),
        dimension=str(attributes.get(semconv.REWARD_DIMENSION) or attributes.get(semconv.EVALUATION_NAME) or "task"),
        source=str(attributes.get(semconv.REWARD_SOURCE) or ""),
        choice=choice if type(choice) is int else target.choice,
    )


def _target(span: Span, tree: SpanTree, reward_id: str) -> Reward:
    place, attributes = tree.place(span), span.attributes
    operation = attributes.get(semconv.OPERATION)
    response_id = tool_call = None
    choice = attributes.get(semconv.CHOICE)
    if operation in CALL_OPERATIONS:
        response_id = text_of(attributes.get(semconv.RESPONSE_ID)) or span.span_id
        choice = choice if type(choice) is int else 0
    elif operation == semconv.EXECUTE_TOOL:
        tool_call = text_of(attributes.get(semconv.TOOL_CALL_ID)) or span.span_id
    elif _inside_something(span, tree):
        response_id = span.span_id  # what it judges is none of a reward's targets, and no call has this id
    return Reward(
        0.0,
        rollout_id=place.rollout_id,
        attempt=place.attempt,
        response_id=response_id,
        tool_call_id=tool_call,
        reward_id=reward_id,
        choice=choice if type(choice) is int else None,
    )


def _inside_something(span: Span, tree: SpanTree) -> bool:
    """Returns whether an agent, a call or a tool of the same attempt is above the span."""
    place = tree.place(span)
    above = tree.above(span)
    while above is not None:
        its = tree.place(above)
        if (its.rollout_id, its.attempt) != (place.rollout_id, place.attempt):
            break
        operation = above.attributes.get(semconv.OPERATION)
        if operation in CALL_OPERATIONS or operation in (semconv.INVOKE_AGENT, semconv.EXECUTE_TOOL):
            return True
        above = tree.above(above)
    return False


@dataclass(slots=True)
class _Seen:
    """An attempt as its spans tell of it: when it began and ended, how, and the spans of each of its calls."""

    started_at: float = math.inf
    ended_at: float = -math.inf
    open: bool = False
    outcomes: set[Outcome] = field(default_factory=set[Outcome])
    calls: dict[CallKey, list[Shown]] = field(default_factory=dict[CallKey, list[Shown]])

    def extend(self, started_at: float, ended_at: float) -> None:
        self.started_at = min(self.started_at, started_at)
        self.ended_at = max(self.ended_at, ended_at)


class SpanReading:
    """One reading of a set of spans. Everything it gives is independent of the order in which the spans came.

    ``last`` are the last attempts of rollouts that others than the spans name.
    """

    def __init__(self, spans: Iterable[Span], last: Mapping[str, int] | None = None) -> None:
        self.found: list[Diagnostic] = []
        self.tree = SpanTree(spans, self.found)
        self.rewards: list[Reward] = []
        self.proposed_in: dict[tuple[str | None, str], str] = {}
        self.tools_run: set[tuple[str | None, int | None, str]] = set()
        self._seen: dict[tuple[str, int | None], _Seen] = defaultdict(
            _Seen
        )  # by rollout and attempt, None if not named
        self._of_no_rollout: dict[int | None, _Seen] = defaultdict(_Seen)
        self._tasks: dict[str, set[str]] = defaultdict(set)
        self._runs: dict[str, set[str]] = defaultdict(set)
        #: What rollouts are for that are not to be trained on, by rollout.
        self.held_out: dict[str, str] = {}
        self._proposals: dict[tuple[str | None, str], set[tuple[str, int | None]]] = defaultdict(set)
        for span, place in self.tree:
            self._read(span, place)
        # Spans that name no attempt belong to the last one that others name.
        self._last = dict(last or {})
        for rollout_id, attempt in self._seen:
            self._last[rollout_id] = max(self._last.get(rollout_id, 1), attempt or 1)

    # ------------------------------------------------------------------ one span

    def _read(self, span: Span, place: Place) -> None:
        attributes = span.attributes
        if place.rollout_id is not None:
            mode = attributes.get(semconv.ROLLOUT_MODE)
            if mode is not None and not isinstance(mode, str):
                self.found.append(invalid(span, semconv.ROLLOUT_MODE))
            elif mode not in (None, TRAIN_MODE):
                self.held_out[place.rollout_id] = mode
        if span.name == semconv.REWARD_SPAN_NAME or semconv.REWARD_VALUE in attributes:
            reward = reward_of_span(span, place)
            self.rewards += (reward, *further_rewards(span, reward))
            return
        if place.rollout_id is None:
            seen = self._of_no_rollout[place.attempt]
        else:
            seen = self._seen[place.rollout_id, place.attempt]
            self._read_attempt(span, place, place.rollout_id, seen)
        operation = attributes.get(semconv.OPERATION)
        if operation in CALL_OPERATIONS or (operation is None and semconv.RESPONSE_TOKEN_IDS in attributes):
            self._read_call(span, place, seen)
        elif operation == semconv.EXECUTE_TOOL:
            self._read_tool(span, place)
        self.rewards += evaluations_of_span(span, self.tree)

    def _read_attempt(self, span: Span, place: Place, rollout_id: str, seen: _Seen) -> None:
        attributes = span.attributes
        seen.extend(span.started_at, span.started_at if span.ended_at is None else span.ended_at)
        above = self.tree.place_above(span)
        is_inside = (above.rollout_id, above.attempt) == (rollout_id, place.attempt)
        if span.ended_at is None and not is_inside:
            seen.open = True
        if semconv.OUTCOME in attributes:
            try:
                outcome = Outcome(str(attributes[semconv.OUTCOME]).lower())
            except ValueError:
                self.found.append(invalid(span, semconv.OUTCOME))
            else:
                if not (
                    is_inside and above.ended_above
                ):  # of spans inside each other the outermost says how the attempt ended
                    seen.outcomes.add(outcome)
        if (task_id := attributes.get(semconv.TASK_ID)) not in (None, ""):  # an empty text is not a shared task
            self._tasks[rollout_id].add(str(task_id))
        if semconv.RUN_ID in attributes:
            self._runs[rollout_id].add(str(attributes[semconv.RUN_ID]))

    def _read_call(self, span: Span, place: Place, seen: _Seen) -> None:
        attributes = span.attributes
        response_id = attributes.get(semconv.RESPONSE_ID)
        if not isinstance(response_id, str) or not response_id:
            if semconv.RESPONSE_TOKEN_IDS not in attributes:
                # A call that was denied, or failed, has no reply to be identified.
                if semconv.ERROR_TYPE not in attributes and span.ended_at is not None:
                    self.found.append(Diagnostic(DataFinding.NO_RESPONSE_ID, span.span_id, span.name))
                return
            self.found.append(Diagnostic(DataFinding.NO_RESPONSE_ID, span.span_id, "its span's id is used instead"))
            response_id = span.span_id
        choice = attributes.get(semconv.CHOICE, 0)
        if type(choice) is not int or choice < 0:
            self.found.append(invalid(span, semconv.CHOICE))
            choice = 0
        seen.calls.setdefault((response_id, choice), []).append((span, place))
        if place.tool_call_id is not None:
            self.proposed_in[place.rollout_id, response_id] = place.tool_call_id

    def _read_tool(self, span: Span, place: Place) -> None:
        """A tool span may itself name the call that proposed it, or be directly below that call's span."""
        tool_call = span.attributes.get(semconv.TOOL_CALL_ID)
        if not isinstance(tool_call, str) or not tool_call:
            return
        self.tools_run.add((place.rollout_id, place.attempt, tool_call))
        says = span.attributes
        if says.get(semconv.RESPONSE_ID) is None:
            parent = self.tree.above(span)
            if parent is not None and parent.attributes.get(semconv.OPERATION) in CALL_OPERATIONS:
                says = parent.attributes
        response_id, choice = says.get(semconv.RESPONSE_ID), says.get(semconv.CHOICE)
        if isinstance(response_id, str) and response_id:
            chosen = choice if type(choice) is int else None
            self._proposals[place.rollout_id, response_id].add((tool_call, chosen))

    # ------------------------------------------------------------------ all of them

    def rollouts(self, skipped: Container[str] = ()) -> Iterator[Rollout]:
        """The rollouts that spans other than rewards belong to, but for those ``skipped``, which are known from elsewhere.

        One without a task is a group of its own.
        """
        began: dict[str, float] = {}
        for (rollout_id, _), seen in self._seen.items():
            began[rollout_id] = min(seen.started_at, began.get(rollout_id, math.inf))
        for rollout_id, started_at in began.items():
            if rollout_id in skipped:
                continue
            tasks = sorted(self._tasks.get(rollout_id, ()))
            if not tasks:
                self.found.append(Diagnostic(DataFinding.NO_TASK_ID, rollout_id, "it is a group of its own"))
            elif len(tasks) > 1:
                self.found.append(Diagnostic(DataFinding.TASK_IDS_DIFFER, rollout_id, ", ".join(tasks)))
            runs = sorted(self._runs.get(rollout_id, ()))
            mode = {"mode": self.held_out[rollout_id]} if rollout_id in self.held_out else {}
            yield Rollout(rollout_id, tasks[0] if tasks else rollout_id, runs[0] if runs else "", mode, started_at)

    def attempts(self, skipped: Container[str] = ()) -> Iterator[Attempt]:
        """The attempts of rollouts, but for those ``skipped``, whose attempts are known from elsewhere.

        An attempt has ended when something says so: an outcome, a final reward, or the end of the spans at its top.
        Where none of these names the outcome it stays None.
        """
        judged = {
            (reward.rollout_id, reward.attempt)
            for reward in self.rewards
            if reward.response_id is None and reward.tool_call_id is None
        }
        merged: dict[tuple[str, int], _Seen] = {}
        for (rollout_id, attempt), seen in self._seen.items():
            key = (rollout_id, self._last[rollout_id] if attempt is None else attempt)
            same = merged.setdefault(key, seen)
            if same is not seen:
                same.extend(seen.started_at, seen.ended_at)
                same.open = same.open or seen.open
                same.outcomes |= seen.outcomes
        for (rollout_id, number), seen in merged.items():
            if rollout_id in skipped:
                continue
            if len(seen.outcomes) > 1:
                names = ", ".join(sorted(seen.outcomes))
                self.found.append(Diagnostic(DataFinding.OUTCOMES_DIFFER, rollout_id, f"attempt {number}: {names}"))
            outcome = next(iter(seen.outcomes)) if len(seen.outcomes) == 1 else None
            running = seen.open and not seen.outcomes and not judged & {(rollout_id, number), (rollout_id, None)}
            yield Attempt(rollout_id, number, seen.started_at, None if running else seen.ended_at, outcome)

    def calls(self) -> list[CapturedCall]:
        """The calls; spans that show one call are one, and those that claim different tokens for it are several."""
        self._find_owners()
        calls: list[CapturedCall] = []
        for (rollout_id, attempt), seen in self._seen.items():
            self._add_calls(seen, rollout_id, self._last[rollout_id] if attempt is None else attempt, calls)
        for attempt, seen in self._of_no_rollout.items():
            self._add_calls(seen, None, attempt, calls)
        return calls

    def _add_calls(self, seen: _Seen, rollout_id: str | None, attempt: int | None, calls: list[CapturedCall]) -> None:
        proposals = self._proposals
        named = {
            (response_id, tool_call)
            for (response_id, _), placed_spans in seen.calls.items()
            for tool_call in (proposed_tool_calls(placed_spans[0][0].attributes) if proposals else ())
        }
        for key, placed_spans in seen.calls.items():
            proposed = {
                tool_call
                for owner in {rollout_id, None}
                for tool_call, choice in proposals.get((owner, key[0]), ())
                # What a choice says that it proposed is no other choice's.
                if choice in (None, key[1]) and (key[0], tool_call) not in named
            }
            calls += calls_of_spans(key, rollout_id, attempt, placed_spans, proposed, self.found)

    def _find_owners(self) -> None:
        """A call whose span names no rollout is that of another span of the same call, if only one attempt has it."""
        lost = [(seen, key) for seen in self._of_no_rollout.values() for key in seen.calls]
        if not lost:
            return
        owners: dict[CallKey, list[_Seen]] = {}
        for seen in self._seen.values():
            for key in seen.calls:
                owners.setdefault(key, []).append(seen)
        for seen, key in lost:
            if len(owners.get(key, ())) == 1:
                owners[key][0].calls[key] += seen.calls.pop(key)

    def origins(self) -> dict[str, list[Span]]:
        """The spans that describe a call, by its response id."""
        spans_of: dict[str, list[Span]] = {}
        for seen in (*self._seen.values(), *self._of_no_rollout.values()):
            for key, placed_spans in seen.calls.items():
                spans_of.setdefault(key[0], []).extend(span for span, _ in placed_spans)
        return spans_of
