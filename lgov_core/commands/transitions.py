"""``lgov transitions``: recorded calls as training data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import click

from lgov_core._util.files import write_lines
from lgov_core.commands.group import Exit, rewards_text, write_table
from lgov_core.commands.options import (
    FILE,
    Where,
    command,
    is_store,
    limit_option,
    opened_store,
    option_group,
    pair,
    single,
    where_option,
)
from lgov_core.errors import TransitionError, counted

if TYPE_CHECKING:
    from lgov_core.transitions import CreditRules, Records, Selection, TransitionSet
    from lgov_core.transitions.calls import RecordedConversations

#: Diagnostics of each kind that are written out beside their count.
_SHOWN: Final = 5
_REWARD_FIELDS: Final = ("reward_id", "dimension", "rollout_id", "attempt", "response_id", "tool_call_id")
#: Fields of ``--where`` that are not attributes of spans.
_FIELDS: Final = {"rollout": "ID", "agent": "GLOB", "model": "GLOB"}


# ---------------------------------------------------------------------- formats

#: Records, and how much was left out for which reason.
_Formatted: TypeAlias = tuple[list[dict[str, Any]], Mapping[str, int]]


def _verl(_records: Records, data: TransitionSet) -> _Formatted:
    """A row for each call, as verl's TransferQueue takes them."""
    from lgov_core.transitions.rows import verl_rows

    return [{"key": row.key, **row.fields, "tag": dict(row.tag)} for row in verl_rows(data)], {}


def _trl(_records: Records, data: TransitionSet) -> _Formatted:
    """A row for each rollout, as TRL's ``rollout_func`` returns them (there in columns)."""
    from lgov_core.transitions.rows import trl_rollouts

    rollouts = trl_rollouts(data)
    names = list(rollouts.columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*rollouts.columns.values(), strict=True)]
    return rows, rollouts.left_out


def _sft(records: Records, data: TransitionSet) -> _Formatted:
    """Conversations of attempts that succeeded without a denied action."""
    from lgov_core.transitions.messages import denied_attempts, sft_records

    denied = denied_attempts(records.spans)
    conversations = sft_records(data, records.calls, denied=denied, read=_conversations(records))
    return conversations.records, conversations.left_out


def _preferences(records: Records, data: TransitionSet) -> _Formatted:
    """Pairs of replies to one prompt."""
    from lgov_core.transitions.messages import preference_pairs

    pairs = preference_pairs(data, records.calls, read=_conversations(records))
    return pairs.records, pairs.left_out


def _prompts(records: Records, data: TransitionSet) -> _Formatted:
    """Attempts as text, for prompt tuning."""
    from lgov_core.transitions.messages import denied_attempts, prompt_records

    denied, read = denied_attempts(records.spans), _conversations(records)
    prompts = prompt_records(data, records.calls, records.rollouts, records.attempts, denied=denied, read=read)
    return prompts.records, prompts.left_out


def _conversations(records: Records) -> RecordedConversations:
    from lgov_core.transitions.calls import RecordedConversations

    return RecordedConversations(records.calls)


FORMATS: Final[Mapping[str, Callable[[Records, TransitionSet], _Formatted]]] = {
    "verl": _verl, "trl": _trl, "sft": _sft, "preferences": _preferences, "prompts": _prompts,
}  # fmt: skip


# ---------------------------------------------------------------------- options


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which attempts and calls to take."""

    where: Where
    split: str
    include_infrastructure: bool
    min_reward: tuple[tuple[str, float], ...]
    max_reward: tuple[tuple[str, float], ...]

    @property
    def rollout_ids(self) -> tuple[str, ...]:
        return self.where.get("rollout", ())

    def selection(self) -> Selection:
        """The calls to make transitions of. Raises `click.UsageError` for an attribute that is given twice."""
        from lgov_core.transitions import Selection

        attributes = {name: str(single(self.where, name)) for name in self.where if name not in _FIELDS}
        return Selection(self.where.get("agent", ()), self.where.get("model", ()), attributes, self.split != "train")

    def of(self, data: TransitionSet) -> TransitionSet:
        """``data`` without the attempts that do not fit. Credit stays what it was among all."""
        from lgov_core.transitions.messages import totals_of
        from lgov_core.transitions.transition_set import by_rollout

        kept: set[tuple[str, int]] = set()
        for attempt, turns in by_rollout(data.transitions).items():
            earned = totals_of(turns)
            fits = all(earned.get(name, 0.0) >= bound for name, bound in self.min_reward)
            fits = fits and all(earned.get(name, 0.0) <= bound for name, bound in self.max_reward)
            if fits and not (self.split == "held-out" and not turns[0].held_out):
                kept.add(attempt)
        turns = tuple(turn for turn in data.transitions if (turn.rollout_id, turn.attempt) in kept)
        return replace(data, transitions=turns)


@dataclass(frozen=True, slots=True)
class _Output:
    """Where the rows go, and in which form."""

    chains: bool
    form: str | None
    limit: int
    out: Path | None
    diagnostics: Path | None
    as_json: bool

    def check(self, source: str) -> None:
        """Raises `click.UsageError` for options that contradict each other, or would overwrite the source."""
        out, tabular = self.out, not self.chains and self.form in (None, "verl")
        if out is not None and (out.suffix not in (".jsonl", ".parquet") or (out.suffix == ".parquet" and not tabular)):
            files = (
                "or a .parquet file" if tabular else "with --chains" if self.chains else f"with --format {self.form}"
            )
            raise click.UsageError(f"--out takes a .jsonl file {files}")
        if self.form is not None and (self.chains or not (out or self.as_json)):
            raise click.UsageError("--format goes with --out or --json, and not with --chains")
        names = [("the source", Path(source)), ("--out", out), ("--diagnostics", self.diagnostics)]
        files = [(name, path) for name, path in names if path is not None]
        for (name, path), (other, other_path) in combinations(files, 2):
            with suppress(OSError):
                if path.resolve() == other_path.resolve() or path.samefile(other_path):
                    raise click.UsageError(f"{name} and {other} are the same file, {other_path}")


def _bounds(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[str, float], ...]:
    bounds: list[tuple[str, float]] = []
    for text in texts:
        name, equals, number = text.rpartition("=")
        with suppress(ValueError):
            if isfinite(float(number)) and (name or not equals):
                bounds.append((name or "task", float(number)))
                continue
        raise click.BadParameter(f"{text!r} is neither a finite number nor DIMENSION=NUMBER")
    return tuple(bounds)


def _reward_option(flag: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    text = f"Only attempts that earned {what} this in a dimension (task unless named); repeatable."
    return click.option(flag, multiple=True, metavar="[DIMENSION=]NUMBER", callback=_bounds, help=text)


# ---------------------------------------------------------------------- the command


@command(Exit.OK, Exit.FINDING, Exit.USAGE, more="with --strict 1 also for any diagnostic")
@click.argument("source", metavar="STORE|RUN|SPANS.jsonl")
@option_group(
    "choice",
    _Choice,
    where_option(_FIELDS, other="and NAME=GLOB of an attribute of the call's span or its nearest ancestor that has it"),
    click.option(
        "--include-infrastructure", is_flag=True,
        help="Keep attempts that ended by infrastructure failure or timeout.",
    ),
    click.option(
        "--split", type=click.Choice(["train", "held-out", "all"]), default="train", show_default=True,
        help="Rollouts to take: those to train on, those of mode test, val or eval (marked in the rows), or all.",
    ),
    _reward_option("--min-reward", "at least"),
    _reward_option("--max-reward", "at most"),
)  # fmt: skip
@click.option(
    "--credit", metavar="NAME", default="return_to_go", show_default=True,
    help="Credit scheme: identical, return_to_go, step, gigpo, flow_grpo or one from a plugin; none assigns no credit.",
)  # fmt: skip
@click.option(
    "--discount", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Discount factor of later rewards."
)
@click.option(
    "--cap", "caps", multiple=True, metavar="DIMENSION=NUMBER",
    help="Bound the absolute sum of a rollout's rewards of one dimension (DIMENSION=NUMBER); repeatable.",
)  # fmt: skip
@option_group(
    "output",
    _Output,
    click.option("--chains", is_flag=True, help="Merge turns whose tokens extend one another into chains."),
    click.option(
        "--format", "form", type=click.Choice(list(FORMATS)),
        help="Write records for verl, TRL, fine-tuning, preferences or prompt tuning instead of transitions.",
    ),
    limit_option("Rows"),
    click.option("--out", type=FILE, help="Also write to a .jsonl or .parquet file."),
    click.option("--diagnostics", type=FILE, help="Write all diagnostics to this file, as JSON."),
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit with status 1 when there is any diagnostic.")
def transitions(
    source: str,
    choice: _Choice,
    credit: str,
    discount: float,
    caps: tuple[str, ...],
    output: _Output,
    strict: bool,
) -> None:
    """Build training data from recorded rollouts.

    The source is a trace store (a path, an address or a run folder), or a file with one OTLP/JSON
    ExportTraceServiceRequest a line (- is standard input). Credit compares all rollouts of a task in the source; what a
    training learned from, with its advantages, is in the files transitions/step-*.parquet of its folder. A glob must match
    the whole name. With --json an array is written, one transition a line. Diagnostics are counted on standard error.
    Rewards count in full unless --cap bounds them.
    """
    from lgov_core.transitions import assign_credit, make_transitions

    output.check(source)
    rules, selection = _rules(credit, discount, caps), choice.selection()
    records = _records(source, choice.rollout_ids)
    data = make_transitions(records, selection, keep_infrastructure=choice.include_infrastructure)
    if credit != "none":
        data = assign_credit(data, rules)
    data = choice.of(data)
    if output.diagnostics is not None:
        write_lines(output.diagnostics, [json.dumps(_diagnostics(data), indent=2)], TransitionError)
    left_out = _write(records, data, output)
    everything = selection.everything and choice.split != "held-out" and not (choice.min_reward or choice.max_reward)
    _summarize(data, "" if everything else "selected ")
    held_out = sum(rollout.held_out for rollout in records.rollouts)
    if held_out and choice.split == "train":
        click.echo(f"{held_out} held-out rollouts are left out; --split all takes them", err=True)
    for line in left_out:
        click.echo(line, err=True)
    if strict and data.diagnostics:
        click.get_current_context().exit(Exit.FINDING)


# ---------------------------------------------------------------------- reading


def _records(source: str, rollouts: Sequence[str]) -> Records:
    from lgov_core.transitions import read_spans, read_store
    from lgov_core.transitions.records import of_rollouts
    from lgov_core.transitions.spans import read_span_lines

    if source != "-" and is_store(source):
        with opened_store(source) as store:
            records = read_store(store, list(rollouts) or None)
        return of_rollouts(records, rollouts) if rollouts else records
    try:
        if source == "-":
            spans, diagnostics = read_span_lines(sys.stdin.buffer, "standard input")
        else:
            with Path(source).open("rb") as lines:
                spans, diagnostics = read_span_lines(lines, source)
    except OSError as error:
        raise TransitionError(
            f"{source} cannot be read: {error.strerror}", hint="name a trace store or a file of spans"
        ) from error
    records = read_spans(spans)
    if rollouts:
        records = of_rollouts(records, rollouts)
    return replace(records, diagnostics=(*records.diagnostics, *diagnostics))


def _rules(credit: str, discount: float, caps: Sequence[str]) -> CreditRules:
    """The credit rules. Raises `click.UsageError` for an unknown scheme."""
    from lgov_core.plugins import make_part, named_by_plugins
    from lgov_core.train.algorithms.algorithms import KINDS
    from lgov_core.transitions import CreditRules
    from lgov_core.transitions.schemes import SCHEMES, check_known

    bounds = {name: _cap(name, bound) for name, bound in (pair(text, "DIMENSION=NUMBER") for text in caps)}
    try:
        own = {} if credit in SCHEMES else named_by_plugins("lgov_training", KINDS)["scheme"]
        scheme = make_part(credit, own[credit][1], {}) if credit in own else credit
        rules = CreditRules(scheme=scheme, discount=discount, air_cap=None, caps=bounds)
        if credit != "none":
            check_known(rules)
    except TransitionError as error:
        raise click.UsageError(str(error)) from error
    return rules


def _cap(name: str, bound: str) -> float:
    with suppress(ValueError):
        if 0 <= (number := float(bound)) < float("inf"):
            return number
    raise click.UsageError(f"--cap {name} takes a finite number, 0 or more, not {bound!r}")


# ---------------------------------------------------------------------- writing


def _write(records: Records, data: TransitionSet, output: _Output) -> list[str]:
    """Writes the rows, and returns lines that say how many records of a format there are, and what is not among them."""
    left_out: Mapping[str, int] = {}
    if output.form is not None:
        rows, left_out = FORMATS[output.form](records, data)
    elif output.chains:
        from lgov_core.transitions.tokens import make_chains

        rows = [chain.as_row() for chain in make_chains(data.transitions)]
    else:
        rows = [turn.as_row() for turn in data.transitions]
    if output.out is not None:
        _write_file(output.out, output.form, data, rows)
    if output.as_json:
        _write_json_lines(rows, sys.stdout)
    elif output.form is None:
        _show(rows, output.limit, chains=output.chains)
    if output.form is None:
        return []
    reasons = [f"  left out, {reason}: {count}" for reason, count in sorted(left_out.items())]
    return [f"{counted(len(rows), 'record')} for {output.form}", *reasons]


def _write_file(out: Path, form: str | None, data: TransitionSet, rows: Sequence[dict[str, Any]]) -> None:
    from lgov_core.transitions.rows import write_jsonl, write_parquet

    if out.suffix == ".jsonl":
        write_jsonl(rows, out)
    elif form == "verl":
        from lgov_core.transitions.rows import write_verl_parquet

        write_verl_parquet(data, out)
    else:
        write_parquet(data.transitions, out)


def _write_json_lines(rows: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """Writes one JSON array with one row per line."""
    separator = "[\n"
    for row in rows:
        file.write(separator + json.dumps(row, allow_nan=False))
        separator = ",\n"
    file.write("[]\n" if separator == "[\n" else "\n]\n")


def _diagnostics(data: TransitionSet) -> dict[str, Any]:
    return {
        "counts": dict(sorted(data.counts().items())),
        "diagnostics": [
            {"finding": diagnostic.finding.value, "subject": diagnostic.subject, "detail": diagnostic.detail}
            for diagnostic in data.diagnostics
        ],
        "unassigned": [
            {
                "value": reward.value if isfinite(reward.value) else str(reward.value),
                **{name: getattr(reward, name) for name in _REWARD_FIELDS},
            }
            for reward in data.unassigned
        ],
    }


def _show(rows: Sequence[dict[str, Any]], limit: int, *, chains: bool) -> None:
    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        "rollout": itemgetter("rollout_id"),
        "attempt": itemgetter("attempt"),
        **({} if chains else {"turn": itemgetter("turn")}),
        "agent": itemgetter("agent"),
        **({"turns": lambda row: len(row["turns"])} if chains else {"response": _response}),
        "prompt": lambda row: len(row["prompt_ids"]),
        "reply": lambda row: len(row["response_ids"]),
        **({"trained": lambda row: sum(row["response_mask"])} if chains else {}),
        "rewards": lambda row: rewards_text(row["rewards"]),
        **({} if chains else {name: partial(_number, name) for name in ("return", "credit")}),
        "outcome": itemgetter("outcome"),
    }
    first = rows[: limit or None]
    write_table(list(columns), [[value(row) for value in columns.values()] for row in first])
    if len(first) < len(rows):
        click.echo(f"the first {len(first)} of {len(rows)}; --limit 0 shows all", err=True)


def _summarize(data: TransitionSet, selected: str) -> None:
    calls = counted(len(data.transitions), f"{selected}call")
    rollouts = counted(len({(turn.rollout_id, turn.attempt) for turn in data.transitions}), "rollout")
    groups = counted(len({turn.task_id for turn in data.transitions}), "group")
    click.echo(f"{calls} of {rollouts} in {groups}", err=True)
    for name, count in sorted(data.counts().items()):
        click.echo(f"  {name}: {count}", err=True)
        for diagnostic in [each for each in data.diagnostics if each.finding.value == name][:_SHOWN]:
            click.echo(f"    {diagnostic.subject}{': ' if diagnostic.detail else ''}{diagnostic.detail}", err=True)
    if data.unassigned:
        click.echo(f"{len(data.unassigned)} rewards are on no transition", err=True)


def _response(row: dict[str, Any]) -> str:
    choice = f", choice {row['choice']}" if row["choice"] else ""
    return f"{row['response_id']}{choice}{', set aside' if row['set_aside'] else ''}"


def _number(name: str, row: dict[str, Any]) -> str | None:
    return None if row[name] is None else f"{row[name]:+.4g}"
