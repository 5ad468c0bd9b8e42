"""The evidence of a training: values that the checks look at, read from a run folder or a trace store.

Of a long run only some updates are read: the first and the last quarter, at most ten each, and the last ten; from the
store at most 512 rollouts of either end. So time and memory do not grow with the length of the run.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from lgov_core._util.json_text import canonical_json
from lgov_core.errors import EndpointError, LgovError, TransitionError
from lgov_core.store import TraceStore, open_store, store_of
from lgov_core.trace import semconv
from lgov_core.trace.canonical import written_calls
from lgov_core.train.loop.run_files import read_metrics, train_lines
from lgov_core.transitions import Diagnostic
from lgov_core.transitions.build import CUT_OFF
from lgov_core.transitions.tokens import find_drift
from lgov_core.transitions.transition_set import INTERMEDIATE
from lgov_core.types import BLOCKING, Attempt, CapturedCall, Point, Reward, Rollout, Span
from lgov_core.wire.apis import BY_ROUTE
from lgov_core.wire.turns import text_of

#: The channel of the task's own reward.
TASK = "task"


@dataclass(frozen=True, slots=True)
class TrainedRollout:
    """A rollout with what it earned. ``group`` is its update (0: unknown) and task.

    ``rewards`` are totals by channel, ``air`` the tool rewards in order. ``credited`` says whether any of its turns has
    an advantage, None where that was not recorded. ``truncated`` of its ``calls`` were cut off by the limit of tokens.
    """

    rollout_id: str
    group: tuple[int, str]
    rewards: Mapping[str, float]
    air: tuple[float, ...]
    credited: bool | None
    calls: int
    truncated: int


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """A rollout as the store holds it, beside its rewards.

    Of ``tool_calls``, ``malformed`` could not be read or had arguments that the tool cannot take, and ``failed`` raised.
    ``drifted`` of its ``calls`` went on in other tokens. ``violated`` is true when an act that the policies object to was
    executed; ``repeats`` counts tool calls that were rewarded although an earlier one was the same.

    Texts are `words`: ``hidden`` the fields of its task that its first prompt does not show, ``reply`` its last reply, and
    ``lookups`` the results of its tool calls, by call. ``first_reply`` stands for the tokens of its first reply, which had
    this ``chance`` by their log-probabilities, and ``conversation`` for those of its last call, prompt and reply.
    """

    calls: int
    tool_calls: int
    malformed: int
    drifted: int
    violated: bool
    repeats: int
    failed: int = 0
    hidden: Mapping[str, str] = field(default_factory=dict[str, str])
    reply: str = ""
    lookups: Mapping[str, str] = field(default_factory=dict[str, str])
    first_reply: int = 0
    chance: float = 1.0
    conversation: int = 0

    @property
    def later_calls(self) -> int:
        """Calls that go on from another."""
        return max(self.calls - 1, 0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The record of a run.

    ``updates`` are the lines of ``metrics.jsonl`` about updates, ``failed`` those about updates that failed. ``early``
    and ``late`` are rollouts of the first and the last quarter, ``recent`` of the last updates; ``early`` is empty in a
    run too short to compare. ``recorded`` has rollouts of these, by id; it is empty where there is no store. ``overlap``:
    how many held-out tasks are trained on, of how many; None where the tasks are not known.
    """

    updates: Sequence[Mapping[str, Any]] = ()
    failed: Sequence[Mapping[str, Any]] = ()
    early: Sequence[TrainedRollout] = ()
    late: Sequence[TrainedRollout] = ()
    recent: Sequence[TrainedRollout] = ()
    recorded: Mapping[str, RecordedRollout] = field(default_factory=dict[str, RecordedRollout])
    overlap: tuple[int, int] | None = None

    def recorded_of(self, rollouts: Iterable[TrainedRollout]) -> list[tuple[TrainedRollout, RecordedRollout]]:
        """Those of ``rollouts`` that the store was read for."""
        return [
            (rollout, self.recorded[rollout.rollout_id]) for rollout in rollouts if rollout.rollout_id in self.recorded
        ]


def groups_of(rollouts: Iterable[TrainedRollout]) -> dict[tuple[int, str], list[TrainedRollout]]:
    """The rollouts that are compared with each other: groups of two or more."""
    groups: dict[tuple[int, str], list[TrainedRollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return {key: group for key, group in groups.items() if len(group) > 1}


#: Outcomes of tool calls whose arguments, or whose tool, do not exist.
_MALFORMED: Final = frozenset({"invalid_args", "unknown_tool"})

#: The share of tasks that a text tells apart.
_TELLING: Final = 0.9
_WORD: Final = re.compile(r"\w+")

_Row = TypeVar("_Row", CapturedCall, Reward, Span)


def trained_rollouts(
    rollouts: Sequence[Rollout],
    attempts: Sequence[Attempt],
    calls: Sequence[CapturedCall],
    rewards: Sequence[Reward],
) -> list[TrainedRollout]:
    """The rollouts whose last attempt ended by the agent's doing, with the rewards that name the rollout."""
    last = {attempt.rollout_id: attempt for attempt in sorted(attempts, key=lambda attempt: attempt.attempt)}
    calls_of, rewards_of = _by_rollout(calls), _by_rollout(rewards)
    trained: list[TrainedRollout] = []
    for rollout in rollouts:
        attempt = last.get(rollout.rollout_id)
        if attempt is None or attempt.outcome is None or not attempt.outcome.trainable:
            continue
        totals: dict[str, float] = defaultdict(float)
        own = [reward for reward in rewards_of[rollout.rollout_id] if reward.attempt in (None, attempt.attempt)]
        for reward in own:
            totals[reward.dimension] += reward.value
        own_calls = [call for call in calls_of[rollout.rollout_id] if call.attempt in (None, attempt.attempt)]
        trained.append(
            TrainedRollout(
                rollout.rollout_id,
                (0, rollout.task_id),
                dict(totals),
                tuple(reward.value for reward in own if reward.dimension == INTERMEDIATE),
                None,
                len(own_calls),
                sum(call.finish_reason in CUT_OFF for call in own_calls),
            )
        )
    return trained


def recorded_rollouts(
    rollouts: Sequence[Rollout],
    calls: Sequence[CapturedCall],
    rewards: Sequence[Reward],
    spans: Sequence[Span],
    oracle: Mapping[str, bool],
) -> dict[str, RecordedRollout]:
    """By rollout what its calls and spans say. ``oracle`` says of rollouts whether they violated something; where it is
    silent, an act that shadow mode let pass is a violation.
    """
    calls_of, spans_of = _by_rollout(calls), _by_rollout(span for span in spans if not span.claimed)
    paid = {reward.tool_call_id for reward in rewards if reward.tool_call_id is not None and reward.value > 0}
    recorded: dict[str, RecordedRollout] = {}
    for rollout in rollouts:
        own, its_spans = calls_of[rollout.rollout_id], spans_of[rollout.rollout_id]
        written = [written_call for call in own for written_call in written_calls(call)]
        about = [span.attributes for span in its_spans if span.attributes.get(semconv.TOOL_STATUS)]
        unreadable = sum(written_call.arguments is None for written_call in written)
        refused = [values for values in about if values.get(semconv.TOOL_STATUS) in _MALFORMED]
        recorded[rollout.rollout_id] = RecordedRollout(
            calls=len(own),
            tool_calls=max(len(written), len(about)),
            malformed=unreadable + len(refused),
            failed=sum(values.get(semconv.TOOL_STATUS) == "error" for values in about),
            drifted=_drifted(own),
            violated=oracle.get(rollout.rollout_id, any(map(_let_pass, its_spans))),
            repeats=_repeats(its_spans, paid),
            **_conversation(
                rollout,
                sorted(own, key=lambda call: (call.attempt or 1, call.started_at)),
                {str(values.get(semconv.TOOL_CALL_ID)) for values in refused},
            ),
        )
    return recorded


def words(text: str) -> str:
    """The words of a text in small letters, with a space around each: so that a text can be looked for in another."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "


def _conversation(rollout: Rollout, calls: Sequence[CapturedCall], refused: Set[Any]) -> dict[str, Any]:
    """The fields of a `RecordedRollout` that are about the first and the last of its calls.

    Tool calls whose ids are ``refused`` did not reach their tool: what they were told is no result.
    """
    try:
        first, last = ([*BY_ROUTE[call.route].translate(call.request, ()).messages] for call in (calls[0], calls[-1]))
        reply = BY_ROUTE[calls[-1].route].read_reply({"id": "", **calls[-1].response}).content
    except (IndexError, KeyError, EndpointError):  # there is none, or of an API that is not known here
        return {}
    task: Any = rollout.input.get("task")
    fields = {name: words(str(value)) for name, value in task.items()} if isinstance(task, Mapping) else {}
    prompt = words(" ".join(text_of(message.get("content")) for message in first))
    tool_calls = {call.get("id"): call["function"] for message in last for call in message.get("tool_calls") or ()}
    answered = tool_calls.keys() - refused
    results = [message for message in last if message.get("tool_call_id") in answered]
    return {
        "hidden": {name: value for name, value in fields.items() if value.strip() and value not in prompt},
        "reply": words(reply or ""),
        "lookups": {
            str(tool_calls[result["tool_call_id"]]): words(text_of(result.get("content"))) for result in results
        },
        "first_reply": hash(calls[0].response_ids),
        "chance": math.exp(math.fsum(calls[0].logprobs or ())),
        "conversation": hash((calls[-1].prompt_ids, calls[-1].response_ids)),
    }


def _by_rollout(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    rows_of: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        if row.rollout_id is not None:
            rows_of[row.rollout_id].append(row)
    return rows_of


def _drifted(calls: Sequence[CapturedCall]) -> int:
    diagnostics: list[Diagnostic] = []
    for attempt in sorted({call.attempt or 1 for call in calls}):
        of_it = [call for call in calls if (call.attempt or 1) == attempt and call.prompt_ids is not None]
        find_drift(of_it, diagnostics)
    return len(diagnostics)


def _let_pass(span: Span) -> bool:
    """Returns whether ``span`` is a decision on an act that would have blocked it, and did not."""
    attributes = span.attributes
    return (
        span.name == semconv.DECISION_SPAN_NAME
        and attributes.get(semconv.POINT) == Point.PRE_TOOL_CALL.value
        and attributes.get(semconv.DECISION_WOULD) in BLOCKING
    )


def _repeats(spans: Sequence[Span], paid: Set[Any]) -> int:
    """Tool calls that were rewarded, and were the same as an earlier one of their attempt."""
    seen: set[Hashable] = set()
    count = 0
    for span in spans:
        attributes = span.attributes
        if attributes.get(semconv.TOOL_STATUS) is None:
            continue
        same = (span.attempt, str(attributes.get(semconv.TOOL_NAME)), str(attributes.get(semconv.TOOL_ARGUMENTS)))
        count += same in seen and attributes.get(semconv.TOOL_CALL_ID) in paid
        seen.add(same)
    return count


_UPDATES: Final = 10
_ROLLOUTS: Final = 512
#: Rollouts whose calls are held in memory at a time.
_AT_ONCE: Final = 32
_COLUMNS: Final = ("rollout_id", "attempt", "task_id", "rewards", "credit", "truncated", "set_aside")


def read_evidence(place: str) -> Evidence:
    """The evidence in ``place``: the folder of a run, or a trace store (a path or an address).

    Raises `StoreError`, `TrainError` or `TransitionError` for what is not there or cannot be read.
    """
    folder = Path(place)
    if not folder.is_dir():
        with closing(open_store(place, make=False)) as store:
            return _of_store(store)
    if store_of(place) == place and not any((folder / name).exists() for name in ("metrics.jsonl", "transitions")):
        raise LgovError(f"there is no run in {folder}", hint="name a folder with a metrics.jsonl, or a trace store")
    return replace(_of_folder(folder), overlap=held_out_overlap(folder / "data"))


def _of_folder(folder: Path) -> Evidence:
    lines = read_metrics(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    batches = {int(path.stem.removeprefix("step-")): path for path in (folder / "transitions").glob("step-*.json")}
    if store_of(folder) == str(folder):
        return _of_run(lines, batches, None, {})
    with closing(open_store(folder, make=False)) as store:
        if not batches:
            return _of_store(store, lines)
        return _of_run(lines, batches, store, _violated(folder / "oracle.jsonl"))


def _of_run(
    lines: Sequence[Mapping[str, Any]],
    batches: Mapping[int, Path],
    store: TraceStore | None,
    oracle: Mapping[str, bool],
) -> Evidence:
    steps = sorted(batches)
    quarter = max(1, min(_UPDATES, len(steps) // 4))
    first, last = (steps[:quarter] if len(steps) > 1 else []), steps[-quarter:]
    recent = steps[-_UPDATES:]
    read = {step: _batch(step, batches[step].with_suffix(".parquet")) for step in {*first, *last, *recent}}

    def rollouts(chosen: Sequence[int]) -> list[TrainedRollout]:
        return [rollout for step in chosen for rollout in read[step]]

    early, late = rollouts(first), rollouts(recent)
    recorded: dict[str, RecordedRollout] = {}
    if store is not None:
        ids = [rollout.rollout_id for rollout in (*early[:_ROLLOUTS], *late[-_ROLLOUTS:])]
        for _, records in _portions(store, ids, oracle):
            recorded |= records
    return Evidence(train_lines(lines), _failed(lines), early, rollouts(last), late, recorded)


def _of_store(store: TraceStore, lines: Sequence[Mapping[str, Any]] = ()) -> Evidence:
    rollouts = sorted(store.rollouts(), key=lambda rollout: (rollout.created_at, rollout.rollout_id))
    every = [rollout.rollout_id for rollout in rollouts if not rollout.held_out]
    quarter = min(_ROLLOUTS, len(every) // 4)
    recent = every[-_ROLLOUTS:]
    trained: dict[str, TrainedRollout] = {}
    recorded: dict[str, RecordedRollout] = {}
    for portion, records in _portions(store, list(dict.fromkeys([*every[:quarter], *recent])), {}):
        trained |= {rollout.rollout_id: rollout for rollout in portion}
        recorded |= records

    def chosen(ids: Sequence[str]) -> list[TrainedRollout]:
        return [trained[rollout_id] for rollout_id in ids if rollout_id in trained]

    late = every[-quarter:] if quarter else []
    return Evidence(train_lines(lines), _failed(lines), chosen(every[:quarter]), chosen(late), chosen(recent), recorded)


def _portions(
    store: TraceStore, ids: Sequence[str], oracle: Mapping[str, bool]
) -> Iterator[tuple[list[TrainedRollout], dict[str, RecordedRollout]]]:
    for start in range(0, len(ids), _AT_ONCE):
        portion = ids[start : start + _AT_ONCE]
        rollouts, attempts = store.rollouts(ids=portion), store.attempts(portion)
        calls, rewards, spans = list(store.calls(portion)), store.rewards(portion), store.spans(portion)
        yield (
            trained_rollouts(rollouts, attempts, calls, rewards),
            recorded_rollouts(rollouts, calls, rewards, spans, oracle),
        )


def _batch(step: int, path: Path) -> list[TrainedRollout]:
    """The rollouts of one update. Only the columns that are needed are read: no tokens."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise TransitionError("Parquet needs pyarrow", hint='pip install "lgov[train]"') from error
    try:
        rows: list[dict[str, Any]] = pq.read_table(path, columns=list(_COLUMNS)).to_pylist()
    except (OSError, ValueError, LookupError, pa.ArrowException) as error:
        raise TransitionError(f"{path} cannot be read as transitions: {error}") from error
    by_rollout: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_rollout[row["rollout_id"]].append(row)
    return [_rollout(step, rollout_id, turns) for rollout_id, turns in by_rollout.items()]


def _rollout(step: int, rollout_id: str, turns: Sequence[Mapping[str, Any]]) -> TrainedRollout:
    rewards: dict[str, float] = defaultdict(float)
    air: list[float] = []
    for turn in turns:
        for pair in () if turn["set_aside"] else turn["rewards"]:
            rewards[pair["dimension"]] += pair["value"]
            if pair["dimension"] == INTERMEDIATE:
                air.append(pair["value"])
    credits = [turn["credit"] for turn in turns if turn["credit"] is not None]
    return TrainedRollout(
        rollout_id,
        (step, turns[0]["task_id"]),
        dict(rewards),
        tuple(air),
        any(credits) if credits else None,
        len(turns),
        sum(turn["truncated"] for turn in turns),
    )


def _failed(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The failed updates that no later line made good."""
    last_step = max((line["step"] for line in train_lines(lines)), default=0)
    return [line for line in lines if line.get("phase") == "failed_update" and line.get("step", 0) > last_step]


def _violated(path: Path) -> dict[str, bool]:
    """Reads from an ``oracle.jsonl`` which rollouts violated the policy, over their attempts."""
    violated: dict[str, bool] = {}
    for entry in read_metrics(path) if path.exists() else ():
        name = str(entry.get("rollout_id"))
        violated[name] = violated.get(name, False) or bool(entry.get("violated"))
    return violated


def held_out_overlap(data: Path) -> tuple[int, int] | None:
    """How many of the held-out tasks are trained on, of the tasks that a training server keeps in ``data``."""
    if not (data / "train.jsonl").exists():
        return None
    train, test = (read_metrics(path) if path.exists() else [] for path in (data / "train.jsonl", data / "test.jsonl"))
    return tasks_trained_on(train, test), len(test)


def tasks_trained_on(train: Sequence[Mapping[str, Any]], test: Iterable[Mapping[str, Any]]) -> int:
    """How many of the tasks in ``test`` are in ``train`` too: the same in all fields, or in a text that differs between
    the tasks in ``train``, whatever their other fields (an id, a seed) are.
    """
    texts: dict[str, set[str]] = defaultdict(set)
    for task in train:
        for name, value in task.items():
            texts[name].add(words(value) if isinstance(value, str) else "")
    telling = {
        name: values
        for name, values in texts.items()
        if len(values) >= _TELLING * len(train) and all(value.strip().count(" ") for value in values)
    }
    same = {canonical_json(task) for task in train}
    return sum(
        canonical_json(task) in same or any(words(str(task.get(name))) in values for name, values in telling.items())
        for task in test
    )
