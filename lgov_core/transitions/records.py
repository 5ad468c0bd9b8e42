"""The records of rollouts: from a trace store, from spans, or from both, joined on the response's id."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from lgov_core.errors import TransitionError
from lgov_core.store import TraceStore
from lgov_core.trace.canonical import canonical
from lgov_core.transitions.span_reading import SpanReading
from lgov_core.transitions.spans import SpanTree
from lgov_core.transitions.transition_set import DataFinding, Diagnostic
from lgov_core.types import Attempt, CapturedCall, Reward, Rollout, Span

_NO_TREE = SpanTree((), [])


@dataclass(frozen=True, slots=True)
class Records:
    """Rollouts with everything that belongs to them, in any order; and what was found wrong while reading.

    ``origins`` are the spans that describe a call, by its response id, and ``tree`` their tree: what a
    selection by span attributes looks at. ``held_out`` are the modes of rollouts by which spans say that they are not to be
    trained on. ``proposed_in`` says for calls (rollout and response id) that were made inside
    a tool call which tool call that was, and ``tools_run`` which tool calls (rollout, attempt, id) there were spans of. All
    are empty where there were no spans.
    """

    rollouts: tuple[Rollout, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    calls: tuple[CapturedCall, ...] = ()
    rewards: tuple[Reward, ...] = ()
    spans: tuple[Span, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    origins: Mapping[str, Sequence[Span]] = field(default_factory=dict[str, Sequence[Span]], repr=False, compare=False)
    proposed_in: Mapping[tuple[str | None, str], str] = field(
        default_factory=dict[tuple[str | None, str], str], repr=False, compare=False
    )
    tools_run: Set[tuple[str | None, int | None, str]] = field(
        default=frozenset[tuple[str | None, int | None, str]](), repr=False, compare=False
    )
    tree: SpanTree = field(default=_NO_TREE, repr=False, compare=False)
    held_out: Mapping[str, str] = field(default_factory=dict[str, str], repr=False, compare=False)


def of_rollouts(records: Records, rollout_ids: Sequence[str]) -> Records:
    """The part of ``records`` that is of the given rollouts. Spans stay: an attribute of a call may be on a span above it.

    Raises `TransitionError` for one of which they hold nothing.
    """
    everything = (records.rollouts, records.attempts, records.calls, records.rewards, records.spans)
    recorded = {record.rollout_id for values in everything for record in values}
    if missing := sorted({*rollout_ids} - recorded):
        raise TransitionError(
            f"nothing is recorded of rollout {', '.join(missing)}", hint="look for the id as it was written"
        )
    chosen = frozenset(rollout_ids)
    calls = tuple(record for record in records.calls if record.rollout_id in chosen)
    targets = {("", record.response_id) for record in calls} | {
        (tool, "") for record in calls for tool in record.tool_call_ids
    }

    def is_theirs(reward: Reward) -> bool:
        if reward.rollout_id is not None:
            return reward.rollout_id in chosen
        return ("", reward.response_id) in targets or (reward.tool_call_id, "") in targets

    others = {record.rollout_id for record in records.rollouts} - chosen
    return replace(
        records,
        rollouts=tuple(record for record in records.rollouts if record.rollout_id in chosen),
        attempts=tuple(record for record in records.attempts if record.rollout_id in chosen),
        calls=calls,
        rewards=tuple(filter(is_theirs, records.rewards)),
        diagnostics=tuple(record for record in records.diagnostics if record.subject not in others),
    )


def read_spans(spans: Iterable[Span]) -> Records:
    """The rollouts, attempts, calls and rewards of spans in the documented format (docs/reference/data.md).

    Pure: the same spans give the same records in whatever order they come, and a span that comes twice counts once. What
    a span does not say is taken from the spans above it (rollout, attempt, agent), never from clocks. A span without a
    rollout is left out, with a diagnostic if it is a call or a reward. Never raises for the contents of a span.
    """
    return _read(SpanReading(spans))


def _read(reading: SpanReading, rollouts: Container[str] = (), attempted: Container[str] = ()) -> Records:
    read = Records(
        rollouts=tuple(reading.rollouts(rollouts)),
        attempts=tuple(reading.attempts(attempted)),
        calls=tuple(reading.calls()),
        rewards=tuple(reading.rewards),
        spans=reading.tree.kept(),
        origins=reading.origins(),
        proposed_in=reading.proposed_in,
        tools_run=reading.tools_run,
        tree=reading.tree,
        held_out=reading.held_out,
    )
    return replace(read, diagnostics=tuple(reading.found))  # all of them: reading goes on while it is asked


def read_store(store: TraceStore, rollout_ids: Sequence[str] | None = None) -> Records:
    """The records of a trace store about the given rollouts (None: of all), its spans joined in, in lgov's names.

    What is written meanwhile does no harm: how attempts ended is read first, so that all that came before is there, and
    rollouts last, so that whatever belongs to one finds it. Raises `StoreError`.
    """
    attempts = tuple(store.attempts(rollout_ids))
    rewards = tuple(store.rewards(rollout_ids))
    spans = tuple(map(canonical, store.spans(rollout_ids)))
    calls = tuple(store.calls(rollout_ids))
    return join(Records(tuple(store.rollouts(ids=rollout_ids)), attempts, calls, rewards), spans)


def join(recorded: Records, spans: Iterable[Span]) -> Records:
    """``recorded`` with what ``spans`` add.

    The record is the truth where it says something: tokens of a captured call, how an attempt ended, a rollout's task.
    Spans that name the same response id add the agent's name, the rollout and the tool calls where the record has none,
    and stand in for calls that were not captured. They say what a rollout is for where the record does not.
    Tokens that a span claims otherwise are a finding.

    Of an attempt with captured calls the record knows all: a call that only came in from outside is left out with a
    diagnostic, since any holder of a key of the attempt could invent one that takes the final reward.

    A rollout that was never added exists by its captured calls: a group of its own, whose attempts have ended where they
    have a final reward.
    """
    rollouts = {rollout.rollout_id for rollout in recorded.rollouts}
    # A record that has no attempt of a rollout leaves it to the spans; one that has some knows all of them.
    attempted = {attempt.rollout_id for attempt in recorded.attempts}
    last: dict[str, int] = {}
    for call in recorded.calls:
        if call.rollout_id is not None and (call.attempt or 1) > last.get(call.rollout_id, 0):
            last[call.rollout_id] = call.attempt or 1
    spanned = _read(SpanReading(spans, last), rollouts, attempted)
    if not spanned.spans:
        return _with_unannounced(recorded, rollouts)
    diagnostics = [*recorded.diagnostics, *spanned.diagnostics]
    by_response: dict[str, list[CapturedCall]] = {}
    for call in spanned.calls:
        by_response.setdefault(call.response_id, []).append(call)
    captured = {(call.response_id, call.choice) for call in recorded.calls}
    responses = {response_id for response_id, _ in captured}
    proposed = {(call.response_id, name) for call in recorded.calls for name in call.tool_call_ids}
    calls = [_joined(call, by_response.get(call.response_id, ()), proposed, diagnostics) for call in recorded.calls]
    on_record = {(call.rollout_id, attempt) for call in calls for attempt in (call.attempt, None)}
    for call in spanned.calls:
        if (call.response_id, call.choice) not in captured and (call.rollout_id, call.attempt) in on_record:
            origins = [span for span in spanned.origins.get(call.response_id, ()) if span.rollout_id == call.rollout_id]
            if call.response_ids is not None and all(span.claimed for span in origins):
                diagnostics.append(
                    Diagnostic(DataFinding.CLAIM_NOT_CAPTURED, call.response_id, "only a span from outside has it")
                )
                continue
        # What only describes a reply without its tokens says nothing about a further choice.
        if (call.response_id, call.choice) not in captured and not (
            call.response_ids is None and call.response_id in responses
        ):
            calls.append(call)
    rewards = {reward.reward_id for reward in recorded.rewards}
    joined = replace(
        spanned,
        rollouts=(*(_with_mode(rollout, spanned.held_out) for rollout in recorded.rollouts), *spanned.rollouts),
        attempts=(*recorded.attempts, *spanned.attempts),
        calls=tuple(calls),
        rewards=(*recorded.rewards, *(reward for reward in spanned.rewards if reward.reward_id not in rewards)),
        diagnostics=tuple(diagnostics),
    )
    return _with_unannounced(joined, rollouts)


def _with_mode(rollout: Rollout, held_out: Mapping[str, str]) -> Rollout:
    if rollout.mode is not None or rollout.rollout_id not in held_out:
        return rollout
    return replace(rollout, input={**rollout.input, "mode": held_out[rollout.rollout_id]})


def _with_unannounced(records: Records, announced: Container[str]) -> Records:
    """``records`` with the rollouts, and the attempts of those not ``announced``, that only captured calls name."""
    rollout_ids = {record.rollout_id for record in records.rollouts}
    attempted = {(record.rollout_id, record.attempt) for record in records.attempts}
    times: dict[tuple[str, int], tuple[float, float]] = {}
    for call in records.calls:
        if call.rollout_id is None or call.rollout_id in announced:
            continue
        key = (call.rollout_id, call.attempt or 1)
        if key not in attempted:
            began, ended = times.get(key, (call.started_at, call.ended_at))
            times[key] = (min(began, call.started_at), max(ended, call.ended_at))
    if not times:
        return records
    judged = {
        (record.rollout_id, record.attempt)
        for record in records.rewards
        if record.response_id is None and record.tool_call_id is None and record.rollout_id is not None
    }
    last = dict(sorted({*times, *attempted}))  # a reward that names no attempt is of the last one
    attempts: list[Attempt] = []
    began_at: dict[str, float] = {}
    for (rollout_id, number), (began, ended) in sorted(times.items()):
        began_at[rollout_id] = min(began, began_at.get(rollout_id, began))
        is_judged = (rollout_id, number) in judged or (last[rollout_id] == number and (rollout_id, None) in judged)
        attempts.append(Attempt(rollout_id, number, began, ended if is_judged else None))
    rollouts = tuple(
        _with_mode(Rollout(name, name, "", {}, began), records.held_out)
        for name, began in began_at.items()
        if name not in rollout_ids
    )
    diagnostics = tuple(
        Diagnostic(DataFinding.NO_TASK_ID, record.rollout_id, "it is a group of its own") for record in rollouts
    )
    return replace(
        records,
        rollouts=(*records.rollouts, *rollouts),
        attempts=(*records.attempts, *attempts),
        diagnostics=(*records.diagnostics, *diagnostics),
    )


def _joined(
    call: CapturedCall, by_spans: Sequence[CapturedCall], proposed: Set[tuple[str, str]], diagnostics: list[Diagnostic]
) -> CapturedCall:
    """``call`` with what spans say of it; ``proposed`` are the tool calls that captured calls are known to have proposed."""
    if not by_spans:
        return call
    agent, rollout_id, attempt, tools = call.agent, call.rollout_id, call.attempt, call.tool_call_ids
    if len(by_spans) > 1:  # where they contradict each other, the order of arrival decides nothing
        by_spans = sorted(by_spans, key=repr)
    for spanned in by_spans:
        if None not in (call.rollout_id, spanned.rollout_id) and call.rollout_id != spanned.rollout_id:
            continue  # a span says nothing about another rollout's calls
        agent = agent or spanned.agent
        if rollout_id is None and spanned.rollout_id is not None:
            rollout_id, attempt = spanned.rollout_id, spanned.attempt
        if spanned.choice == call.choice:
            # A span may tell of all choices at once: what another one proposed is not this one's.
            tools = tools or tuple(name for name in spanned.tool_call_ids if (call.response_id, name) not in proposed)
            if spanned.response_ids is not None and (spanned.prompt_ids, spanned.response_ids) != (
                call.prompt_ids,
                call.response_ids,
            ):
                diagnostics.append(
                    Diagnostic(
                        DataFinding.CLAIM_DIFFERS, call.response_id, "a span names other tokens than were captured"
                    )
                )
    if (agent, rollout_id, tools) == (call.agent, call.rollout_id, call.tool_call_ids):
        return call
    return replace(call, agent=agent, rollout_id=rollout_id, attempt=attempt, tool_call_ids=tools)
