"""``lgov transitions``: recorded calls as training data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from lgov_core._util.atomic_file import write_lines
from lgov_core._util.plurals import counted
from lgov_core.commands.group import Exit
from lgov_core.commands.options import FILE, command, limit_option, rollouts_option
from lgov_core.commands.output import rewards_text, write_table
from lgov_core.commands.transition_choice import chosen, reward_options, split_option
from lgov_core.commands.transition_formats import FORMATS, write_parquet_for
from lgov_core.errors import TransitionError

if TYPE_CHECKING:
    from lgov_core.transitions import CreditRules, Records, Transition, TransitionSet

_SQLITE: Final = b"SQLite format 3\0"
#: Diagnostics of each kind that are written out beside their count.
_SHOWN: Final = 5
_REWARD_FIELDS: Final = ("reward_id", "dimension", "rollout_id", "attempt", "response_id", "tool_call_id")


@command(Exit.OK, Exit.FINDING, Exit.USAGE, more="with --strict 1 also for any diagnostic")
@click.argument("source", metavar="STORE|RUN|SPANS.jsonl")
@rollouts_option
@click.option("--agents", multiple=True, metavar="GLOB", help="Only calls of this agent (glob); repeatable.")
@click.option("--models", multiple=True, metavar="GLOB", help="Only calls of this model (glob); repeatable.")
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME=GLOB",
    help="Only calls whose span, or nearest ancestor with the attribute, matches NAME=GLOB; repeatable.",
)
@click.option(
    "--credit",
    metavar="NAME",
    default="return_to_go",
    show_default=True,
    help="Credit scheme: identical, return_to_go, step, gigpo, flow_grpo or one from a plugin; none assigns no credit.",
)
@click.option(
    "--discount", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Discount factor of later rewards."
)
@click.option(
    "--cap",
    "caps",
    multiple=True,
    metavar="DIMENSION=NUMBER",
    help="Bound the absolute sum of a rollout's rewards of one dimension (DIMENSION=NUMBER); repeatable.",
)
@click.option(
    "--include-infrastructure", is_flag=True, help="Keep attempts that ended by infrastructure failure or timeout."
)
@split_option
@click.option("--include-held-out", is_flag=True, help="The same as --split all.")
@reward_options
@click.option("--chains", is_flag=True, help="Merge turns whose tokens extend one another into chains.")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMATS)),
    help="Write records for verl, TRL, fine-tuning, preferences or prompt tuning instead of transitions.",
)
@limit_option("Rows")
@click.option("--out", type=FILE, help="Also write to a .jsonl or .parquet file.")
@click.option("--diagnostics", type=FILE, help="Write all diagnostics to this file, as JSON.")
@click.option("--strict", is_flag=True, help="Exit with status 1 when there is any diagnostic.")
def transitions(
    source: str,
    rollout_ids: tuple[str, ...],
    agents: tuple[str, ...],
    models: tuple[str, ...],
    attributes: tuple[str, ...],
    credit: str,
    discount: float,
    caps: tuple[str, ...],
    include_infrastructure: bool,
    split: str,
    include_held_out: bool,
    min_reward: tuple[tuple[str, float], ...],
    max_reward: tuple[tuple[str, float], ...],
    chains: bool,
    form: str | None,
    limit: int,
    out: Path | None,
    diagnostics: Path | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Build training data from recorded rollouts.

    The source is a trace store (a path, an address or a run folder), or a file with one OTLP/JSON
    ExportTraceServiceRequest a line (- is standard input). Credit compares all rollouts of a task in the source; what a
    training learned from, with its advantages, is in the files transitions/step-*.parquet of its folder. A glob must match
    the whole name. With --json an array is written, one transition a line. Diagnostics are counted on standard error.
    Rewards count in full unless --cap bounds them.
    """
    from lgov_core.transitions import Selection, assign_credit, make_transitions

    tabular = not chains and form in (None, "verl")
    if out is not None and (out.suffix not in (".jsonl", ".parquet") or (out.suffix == ".parquet" and not tabular)):
        wanted = "or a .parquet file" if tabular else "with --chains" if chains else f"with --format {form}"
        raise click.UsageError(f"--out takes a .jsonl file {wanted}")
    if form is not None and (chains or not (out or as_json)):
        raise click.UsageError("--format goes with --out or --json, and not with --chains")
    _require_different(source, out, diagnostics)
    rules = _rules(credit, discount, caps)
    pairs = dict(_pair("--attribute", "NAME=GLOB", text) for text in attributes)
    split = "all" if include_held_out else split
    selection = Selection(agents, models, pairs, split != "train")
    records = _records(source, rollout_ids)
    data = make_transitions(records, selection, keep_infrastructure=include_infrastructure)
    if credit != "none":
        data = assign_credit(data, rules)
    data = chosen(data, split, min_reward, max_reward)
    if diagnostics is not None:
        write_lines(diagnostics, [json.dumps(_diagnostics(data), indent=2)], TransitionError)
    rows, left_out = (_rows(data.transitions, chains), {}) if form is None else FORMATS[form](records, data)
    if out is not None:
        _write_rows(out, form, data, rows)
    if as_json:
        _write_json_lines(rows, sys.stdout)
    elif form is None:
        _show(rows, limit, chains=chains)
    everything = selection.everything and split != "held-out" and not (min_reward or max_reward)
    _summarize(data, "" if everything else "selected ")
    measuring = sum(one.held_out for one in records.rollouts)
    if measuring and split == "train":
        click.echo(f"{measuring} held-out rollouts are left out; --split all takes them", err=True)
    if form is not None:
        click.echo(f"{counted(len(rows), 'record')} for {form}", err=True)
        for reason, count in sorted(left_out.items()):
            click.echo(f"  left out, {reason}: {count}", err=True)
    if strict and data.diagnostics:
        click.get_current_context().exit(Exit.FINDING)


# ---------------------------------------------------------------------- reading


def _records(source: str, rollouts: Sequence[str]) -> Records:
    from dataclasses import replace

    from lgov_core.commands.recorded import opened_store, store_of
    from lgov_core.transitions import read_spans, read_store
    from lgov_core.transitions.reading.records import of_rollouts
    from lgov_core.transitions.reading.spans import read_span_lines

    source = store_of(source)
    if source != "-" and ("://" in source or _is_sqlite(source)):
        with opened_store(source) as store:
            records = read_store(store, list(rollouts) or None)
        return of_rollouts(records, rollouts) if rollouts else records
    try:
        if source == "-":
            spans, found = read_span_lines(sys.stdin.buffer, "standard input")
        else:
            with Path(source).open("rb") as lines:
                spans, found = read_span_lines(lines, source)
    except OSError as error:
        raise TransitionError(
            f"{source} cannot be read: {error.strerror}", hint="name a trace store or a file of spans"
        ) from error
    records = read_spans(spans)
    if rollouts:
        records = of_rollouts(records, rollouts)
    return replace(records, diagnostics=(*records.diagnostics, *found))


def _is_sqlite(path: str) -> bool:
    with suppress(OSError), Path(path).open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE
    return False


def _rules(credit: str, discount: float, caps: Sequence[str]) -> CreditRules:
    """The credit rules. Raises `click.UsageError` for an unknown scheme."""
    from lgov_core.transitions import CreditRules
    from lgov_core.transitions.credit.schemes import check_known

    pairs = [_pair("--cap", "DIMENSION=NUMBER", text) for text in caps]
    bounds = {name: _cap(name, bound) for name, bound in pairs}
    try:
        rules = CreditRules(scheme=credit, discount=discount, air_cap=None, caps=bounds)
        if credit != "none":
            check_known(rules, None)
    except TransitionError as error:
        raise click.UsageError(str(error)) from error
    return rules


def _pair(option: str, form: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"{option} takes {form}, not {text!r}")
    return name, value


def _cap(name: str, bound: str) -> float:
    with suppress(ValueError):
        if 0 <= (number := float(bound)) < float("inf"):
            return number
    raise click.UsageError(f"--cap {name} takes a finite number, 0 or more, not {bound!r}")


# ---------------------------------------------------------------------- writing


def _rows(found: Sequence[Transition], chains: bool) -> list[dict[str, Any]]:
    if not chains:
        return [one.as_row() for one in found]
    from lgov_core.transitions.tokens import make_chains

    return [chain.as_row() for chain in make_chains(found)]


def _write_json_lines(rows: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """Writes one JSON array with one row per line."""
    separator = "[\n"
    for row in rows:
        file.write(separator + json.dumps(row, allow_nan=False))
        separator = ",\n"
    file.write("[]\n" if separator == "[\n" else "\n]\n")


def _write_rows(out: Path, form: str | None, data: TransitionSet, rows: Sequence[dict[str, Any]]) -> None:
    from lgov_core.transitions.export.files import write_jsonl

    if out.suffix == ".parquet":
        write_parquet_for(form or "", data, out)
    else:
        write_jsonl(rows, out)


def _require_different(source: str, out: Path | None, diagnostics: Path | None) -> None:
    """Raises UsageError when an output would overwrite the source or another output."""
    names = [("the source", Path(source)), ("--out", out), ("--diagnostics", diagnostics)]
    named = [(what, path) for what, path in names if path is not None]
    for (one, path), (other, also) in combinations(named, 2):
        with suppress(OSError):
            if path.resolve() == also.resolve() or path.samefile(also):
                raise click.UsageError(f"{one} and {other} are the same file, {also}")


def _diagnostics(data: TransitionSet) -> dict[str, Any]:
    return {
        "counts": dict(sorted(data.counts().items())),
        "diagnostics": [
            {"finding": one.finding.value, "subject": one.subject, "detail": one.detail} for one in data.diagnostics
        ],
        "unassigned": [
            {
                "value": one.value if abs(one.value) < float("inf") else str(one.value),
                **{name: getattr(one, name) for name in _REWARD_FIELDS},
            }
            for one in data.unassigned
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
    shown = rows[: limit or None]
    write_table(list(columns), [[value(row) for value in columns.values()] for row in shown])
    if len(shown) < len(rows):
        click.echo(f"the first {len(shown)} of {len(rows)}; --limit 0 shows all", err=True)


def _summarize(data: TransitionSet, selected: str) -> None:
    calls = counted(len(data.transitions), f"{selected}call")
    rollouts = counted(len({(one.rollout_id, one.attempt) for one in data.transitions}), "rollout")
    groups = counted(len({one.task_id for one in data.transitions}), "group")
    click.echo(f"{calls} of {rollouts} in {groups}", err=True)
    for name, count in sorted(data.counts().items()):
        click.echo(f"  {name}: {count}", err=True)
        for one in [one for one in data.diagnostics if one.finding.value == name][:_SHOWN]:
            click.echo(f"    {one.subject}{': ' if one.detail else ''}{one.detail}", err=True)
    if data.unassigned:
        click.echo(f"{len(data.unassigned)} rewards are on no transition", err=True)


def _response(row: dict[str, Any]) -> str:
    choice = f", choice {row['choice']}" if row["choice"] else ""
    return f"{row['response_id']}{choice}{', set aside' if row['set_aside'] else ''}"


def _number(name: str, row: dict[str, Any]) -> str | None:
    return None if row[name] is None else f"{row[name]:+.4g}"
