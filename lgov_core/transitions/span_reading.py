"""Spans in the documented format read as rollouts, attempts, calls and rewards."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from lgov_core.trace import semconv
from lgov_core.transitions.findings import Diagnostic, Finding
from lgov_core.transitions.quick_values import call_of
from lgov_core.transitions.span_rewards import evaluations_of_span, rewards_of_span
from lgov_core.transitions.span_tree import CALL_OPERATIONS, Place, SpanTree
from lgov_core.transitions.span_values import (
    Tokens,
    finish_reason_of,
    messages_of,
    number_or,
    proposed_tool_calls,
    text_of,
    tokens_agree,
    tokens_of,
    unreadable_tokens,
    version_of,
)
from lgov_core.types import Attempt, CapturedCall, Outcome, Reward, Rollout, Span

#: A rollout and its attempt, None for spans that name none.
_AttemptKey: TypeAlias = tuple[str, int | None]
#: A call's rollout, attempt, response id and choice.
_CallKey: TypeAlias = tuple[str | None, int | None, str, int]


class _Seen:
    """What the spans of an attempt say about it: when it began and ended, and how."""

    __slots__ = ("ended_at", "open", "outcomes", "started_at")

    def __init__(self, started_at: float, ended_at: float) -> None:
        self.started_at = started_at
        self.ended_at = ended_at
        self.open = False
        self.outcomes: set[Outcome] = set()

    def extend(self, started_at: float, ended_at: float) -> None:
        if started_at < self.started_at:
            self.started_at = started_at
        if ended_at > self.ended_at:
            self.ended_at = ended_at


class SpanReading:
    """One reading of a set of spans. Everything it gives is independent of the order in which the spans came."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.found: list[Diagnostic] = []
        self.tree = SpanTree(spans, self.found)
        self.rewards: list[Reward] = []
        self.origins: dict[str, list[Span]] = {}
        self.proposed_in: dict[tuple[str | None, str], str] = {}
        self._seen: dict[_AttemptKey, _Seen] = {}
        self._tasks: dict[str, set[str]] = {}
        self._runs: dict[str, set[str]] = {}
        self._calls: dict[_CallKey, list[tuple[Span, Place]]] = {}
        self._proposals: dict[tuple[str | None, str], set[str]] = {}
        for span in self.tree.kept:
            self._read(span)
        # Spans that name no attempt belong to the last one that others name: what is said of a rollout is said of that.
        self._last: dict[str, int] = {}
        for rollout_id, attempt in self._seen:
            self._last[rollout_id] = max(self._last.get(rollout_id, 1), attempt or 1)

    # ------------------------------------------------------------------ one span

    def _read(self, span: Span) -> None:
        attributes = span.attributes
        place = self.tree.place(span)
        if span.name == semconv.REWARD_SPAN_NAME or semconv.REWARD_VALUE in attributes:
            self.rewards += rewards_of_span(span, place)
            return
        if place.rollout_id is not None:
            self._read_attempt(span, place, place.rollout_id)
        operation = attributes.get(semconv.OPERATION)
        if operation in CALL_OPERATIONS or (operation is None and semconv.RESPONSE_TOKEN_IDS in attributes):
            self._read_call(span, place)
        elif operation == semconv.EXECUTE_TOOL:
            self._read_tool(span, place.rollout_id)
        if span.events:
            self.rewards += evaluations_of_span(span, self.tree)

    def _read_attempt(self, span: Span, place: Place, rollout_id: str) -> None:
        attributes = span.attributes
        started_at = span.started_at
        ended_at = started_at if span.ended_at is None else span.ended_at
        key = (rollout_id, place.attempt)
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = seen = _Seen(started_at, ended_at)
        else:
            seen.extend(started_at, ended_at)
        if span.ended_at is None:
            above = self.tree.place_above(span)
            seen.open = seen.open or (above.rollout_id, above.attempt) != (rollout_id, place.attempt)
        if semconv.OUTCOME in attributes:
            above = self.tree.place_above(span)
            inner = above.ended_above and (above.rollout_id, above.attempt) == (rollout_id, place.attempt)
            try:
                outcome = Outcome(str(attributes[semconv.OUTCOME]).lower())
            except ValueError:
                self._invalid(span, semconv.OUTCOME)
            else:
                if not inner:  # of spans inside each other the outermost says how the attempt ended
                    seen.outcomes.add(outcome)
        if semconv.TASK_ID in attributes:
            self._tasks.setdefault(rollout_id, set()).add(str(attributes[semconv.TASK_ID]))
        if semconv.RUN_ID in attributes:
            self._runs.setdefault(rollout_id, set()).add(str(attributes[semconv.RUN_ID]))

    def _read_call(self, span: Span, place: Place) -> None:
        attributes = span.attributes
        response_id = attributes.get(semconv.RESPONSE_ID)
        if not isinstance(response_id, str) or not response_id:
            if semconv.RESPONSE_TOKEN_IDS not in attributes:
                # A call that was denied, or failed, has no reply to be identified.
                if semconv.ERROR_TYPE not in attributes and span.ended_at is not None:
                    self.found.append(Diagnostic(Finding.NO_RESPONSE_ID, span.span_id, span.name))
                return
            self.found.append(Diagnostic(Finding.NO_RESPONSE_ID, span.span_id, "its span's id stands for it"))
            response_id = span.span_id
        choice = attributes.get(semconv.CHOICE, 0)
        if type(choice) is not int or choice < 0:
            self._invalid(span, semconv.CHOICE)
            choice = 0
        rollout_id = place.rollout_id
        key = (rollout_id, place.attempt, response_id, choice)
        self._calls.setdefault(key, []).append((span, place))
        self.origins.setdefault(response_id, []).append(span)
        if place.tool_call_id is not None:
            self.proposed_in[rollout_id, response_id] = place.tool_call_id

    def _read_tool(self, span: Span, rollout_id: str | None) -> None:
        """A tool span may itself name the call that proposed it, or stand right under that call's span."""
        tool_call = span.attributes.get(semconv.TOOL_CALL_ID)
        if not isinstance(tool_call, str) or not tool_call:
            return
        response_id = span.attributes.get(semconv.RESPONSE_ID)
        if response_id is None:
            parent = self.tree.above(span)
            if parent is not None and parent.attributes.get(semconv.OPERATION) in CALL_OPERATIONS:
                response_id = parent.attributes.get(semconv.RESPONSE_ID)
        if isinstance(response_id, str) and response_id:
            self._proposals.setdefault((rollout_id, response_id), set()).add(tool_call)

    def _invalid(self, span: Span, name: str) -> None:
        detail = f"{name} is {str(span.attributes.get(name))[:60]!r}"
        self.found.append(Diagnostic(Finding.INVALID_ATTRIBUTE, span.span_id, detail))

    # ------------------------------------------------------------------ all of them

    def rollouts(self, known: Container[str] = ()) -> Iterator[Rollout]:
        """The rollouts that spans other than rewards belong to, but for those ``known`` from elsewhere.

        One without a task is a group of its own.
        """
        began: dict[str, float] = {}
        for (rollout_id, _), seen in self._seen.items():
            began[rollout_id] = min(seen.started_at, began.get(rollout_id, math.inf))
        for rollout_id, started_at in began.items():
            if rollout_id in known:
                continue
            tasks = sorted(self._tasks.get(rollout_id, ()))
            if not tasks:
                self.found.append(Diagnostic(Finding.NO_TASK_ID, rollout_id, "it is a group of its own"))
            elif len(tasks) > 1:
                self.found.append(Diagnostic(Finding.TASK_IDS_DIFFER, rollout_id, ", ".join(tasks)))
            runs = sorted(self._runs.get(rollout_id, ()))
            yield Rollout(rollout_id, tasks[0] if tasks else rollout_id, runs[0] if runs else "", {}, started_at)

    def attempts(self, known: Container[str] = ()) -> Iterator[Attempt]:
        """The attempts of rollouts, but for those whose attempts are ``known`` from elsewhere.

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
            if rollout_id in known:
                continue
            if len(seen.outcomes) > 1:
                told = ", ".join(sorted(seen.outcomes))
                self.found.append(Diagnostic(Finding.OUTCOMES_DIFFER, rollout_id, f"attempt {number}: {told}"))
            outcome = next(iter(seen.outcomes)) if len(seen.outcomes) == 1 else None
            running = seen.open and not seen.outcomes and not judged & {(rollout_id, number), (rollout_id, None)}
            yield Attempt(rollout_id, number, seen.started_at, None if running else seen.ended_at, outcome)

    def calls(self) -> list[CapturedCall]:
        """The calls; spans that show one call are one, and those that claim different tokens for it are several."""
        rollouts_of: dict[tuple[str, int], list[_CallKey]] = {}
        if any(key[0] is None for key in self._calls):
            for key in self._calls:
                if key[0] is not None:
                    rollouts_of.setdefault((key[2], key[3]), []).append(key)
            for key in [key for key in self._calls if key[0] is None]:
                owners = rollouts_of.get((key[2], key[3]), ())
                if len(owners) == 1:  # another span of the same call says whose it is
                    self._calls[owners[0]] += self._calls.pop(key)
        made: list[CapturedCall] = []
        for key, shown in self._calls.items():
            self._add_call(key, shown, made)
        return made

    def _add_call(self, key: _CallKey, shown: list[tuple[Span, Place]], made: list[CapturedCall]) -> None:
        rollout_id, attempt, response_id, choice = key
        if rollout_id is not None and attempt is None:
            attempt = self._last[rollout_id]
        span, place = shown[0]
        if len(shown) == 1:
            attributes: Mapping[str, Any] = span.attributes
            tokens = self._tokens(span)
            tools = proposed_tool_calls(attributes)
            agent = text_of(attributes.get(semconv.AGENT_NAME)) or place.agent
            claims = [(span, attributes, tokens)]
        else:
            # The call itself is the innermost of the spans that show it.
            shown.sort(key=lambda one: (one[0].started_at, one[0].span_id, one[0].trace_id or ""), reverse=True)
            spans = [span for span, _ in shown]
            agent = next((name for span in spans if (name := text_of(span.attributes.get(semconv.AGENT_NAME)))), None)
            agent = agent or next((place.agent for _, place in shown if place.agent), None)
            tools = tuple(dict.fromkeys(one for span in spans for one in proposed_tool_calls(span.attributes)))
            claims = self._claims(spans)
        for whose in (rollout_id,) if rollout_id is None else (rollout_id, None):
            if proposed := self._proposals.get((whose, response_id)):
                tools = tuple(sorted({*tools, *proposed}))
        for span, attributes, tokens in claims:
            get = attributes.get
            version = version_of(get(semconv.WEIGHTS_VERSION))
            if version is None and get(semconv.WEIGHTS_VERSION) is not None:
                self._invalid(span, semconv.WEIGHTS_VERSION)
            started_at = span.started_at
            made.append(
                call_of(
                    response_id,
                    choice,
                    str(get(semconv.RESPONSE_MODEL) or get(semconv.REQUEST_MODEL) or ""),
                    messages_of(get(semconv.INPUT_MESSAGES)),
                    messages_of(get(semconv.OUTPUT_MESSAGES)),
                    tokens,
                    finish_reason_of(get(semconv.FINISH_REASONS)),
                    version,
                    (number_or(get(semconv.REQUEST_TEMPERATURE), 1.0), number_or(get(semconv.REQUEST_TOP_P), 1.0)),
                    (started_at, started_at if span.ended_at is None else span.ended_at),
                    (rollout_id, attempt, agent),
                    tools,
                )
            )

    def _claims(self, spans: list[Span]) -> list[tuple[Span, Mapping[str, Any], Tokens]]:
        """The different tokens that the spans of one call claim, mostly one; what one does not say another may."""
        claims: list[tuple[Span, Tokens]] = []
        for span in spans:
            tokens = self._tokens(span)
            same = next((index for index, one in enumerate(claims) if tokens_agree(one[1], tokens)), None)
            if same is None:
                claims.append((span, tokens))
            elif claims[same][1].count(None) > tokens.count(None):
                claims[same] = (span, tokens)
        claims = [one for one in claims if one[1][1] is not None] or claims[:1]
        said = {name: value for span in reversed(spans) for name, value in span.attributes.items()}
        return [(span, {**said, **span.attributes}, tokens) for span, tokens in claims]

    def _tokens(self, span: Span) -> Tokens:
        tokens = tokens_of(span.attributes)
        if None in tokens:
            for name in unreadable_tokens(span.attributes, tokens):
                self._invalid(span, name)
        return tokens
