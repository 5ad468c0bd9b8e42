"""``lgov transitions``: recorded calls as training data."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from lgov_core._util.atomic_file import write_lines
from lgov_core.commands.group import Exit, exit_status, json_option
from lgov_core.commands.output import write_table
from lgov_core.commands.transition_formats import FORMATS, write_parquet_for
from lgov_core.errors import TransitionError

if TYPE_CHECKING:
    from lgov_core.transitions import CreditRules, Records, Selection, Transition, TransitionSet

_SQLITE: Final = b"SQLite format 3\0"
#: Diagnostics that are written out beside their counts.
_TOLD: Final = 5


@click.command(epilog=exit_status(Exit.OK, Exit.FINDING, Exit.USAGE, more="with --strict 1 also for any diagnostic"))
@click.argument("source", metavar="STORE|SPANS.jsonl")
@click.option("--rollout", "rollouts", multiple=True, metavar="ID", help="Only this rollout; repeatable.")
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
@click.option("--chains", is_flag=True, help="Merge turns whose tokens extend one another into chains.")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMATS)),
    help="Write records for verl, TRL, fine-tuning, preferences or prompt tuning instead of transitions.",
)
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="Rows to show; 0 shows all.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write to a .jsonl or .parquet file.")
@click.option(
    "--diagnostics",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all diagnostics to this file, as JSON.",
)
@click.option("--strict", is_flag=True, help="Exit with status 1 when there is any diagnostic.")
@json_option
def transitions(
    source: str,
    rollouts: tuple[str, ...],
    agents: tuple[str, ...],
    models: tuple[str, ...],
    attributes: tuple[str, ...],
    credit: str,
    discount: float,
    caps: tuple[str, ...],
    include_infrastructure: bool,
    chains: bool,
    form: str | None,
    limit: int,
    out: Path | None,
    diagnostics: Path | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Build training data from recorded rollouts.

    The source is a trace store (a path or an address), or a file with one OTLP/JSON ExportTraceServiceRequest a line (- is
    standard input). A glob must match the whole name. With --json an array is written, one transition a line. What
    was found wrong is counted on standard error. Rewards count in full unless --cap bounds them.
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
    selection = Selection(agents, models, dict(map(_pair, attributes)))
    records = _records(source, rollouts)
    data = make_transitions(records, selection, keep_infrastructure=include_infrastructure)
    if credit != "none":
        data = assign_credit(data, rules)
    if diagnostics is not None:
        write_lines(diagnostics, [json.dumps(_diagnostics(data), indent=2)], TransitionError)
    rows, left_out = (_rows(data.transitions, chains), {}) if form is None else FORMATS[form](records, data)
    if out is not None:
        _write_rows(out, form, data, rows)
    if as_json:
        _write_json_lines(rows, sys.stdout)
    elif form is None:
        _show(rows, limit, chains=chains)
    _tell(data, _selected(selection))
    if form is not None:
        click.echo(f"{len(rows)} records for {form}", err=True)
        for reason, count in sorted(left_out.items()):
            click.echo(f"  left out, {reason}: {count}", err=True)
    if strict and data.diagnostics:
        click.get_current_context().exit(Exit.FINDING)


# ---------------------------------------------------------------------- reading


def _records(source: str, rollouts: Sequence[str]) -> Records:
    from dataclasses import replace

    from lgov_core.commands.recorded import opened_store
    from lgov_core.transitions import read_spans, read_store
    from lgov_core.transitions.reading.records import of_rollouts
    from lgov_core.transitions.reading.span_files import read_span_lines

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
    """How credit is assigned; an unknown scheme is a usage error, reported before anything is read."""
    from lgov_core.transitions import CreditRules
    from lgov_core.transitions.credit.plugins import check_known

    bounds = {name: _cap(name, bound) for name, bound in map(_pair_of_cap, caps)}
    try:
        rules = CreditRules(scheme=credit, discount=discount, air_cap=None, caps=bounds)
        if credit != "none":
            check_known(rules, None)
    except TransitionError as error:
        raise click.UsageError(str(error)) from error
    return rules


def _pair(text: str) -> tuple[str, str]:
    name, equals, pattern = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--attribute takes NAME=GLOB, not {text!r}")
    return name, pattern


def _pair_of_cap(text: str) -> tuple[str, str]:
    name, equals, bound = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--cap takes DIMENSION=NUMBER, not {text!r}")
    return name, bound


def _cap(name: str, bound: str) -> float:
    with suppress(ValueError):
        if 0 <= (number := float(bound)) < float("inf"):
            return number
    raise click.UsageError(f"--cap {name} takes a finite number, 0 or more, not {bound!r}")


def _selected(selection: Selection) -> str:
    return "" if selection.everything else " selected"


# ---------------------------------------------------------------------- writing


def _rows(found: Sequence[Transition], chains: bool) -> list[dict[str, Any]]:
    if not chains:
        return [one.as_row() for one in found]
    from lgov_core.transitions.tokens.chains import make_chains

    return [chain.as_row() for chain in make_chains(found)]


def _write_json_lines(rows: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """Writes one JSON array with one row per line."""
    separator = "[\n"
    for row in rows:
        file.write(separator + json.dumps(row, allow_nan=False))
        separator = ",\n"
    file.write("[]\n" if separator == "[\n" else "\n]\n")


def _write_rows(out: Path, form: str | None, data: TransitionSet, rows: Sequence[dict[str, Any]]) -> None:
    from lgov_core.transitions.export.export import write_jsonl

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
                "reward_id": one.reward_id,
                "value": one.value if abs(one.value) < float("inf") else str(one.value),
                "dimension": one.dimension,
                "rollout_id": one.rollout_id,
                "attempt": one.attempt,
                "response_id": one.response_id,
                "tool_call_id": one.tool_call_id,
            }
            for one in data.unassigned
        ],
    }


def _show(rows: Sequence[dict[str, Any]], limit: int, *, chains: bool) -> None:
    shown = rows[: limit or None]
    if chains:
        write_table(
            ("rollout", "attempt", "agent", "turns", "prompt", "reply", "trained", "rewards", "outcome"),
            [
                (
                    row["rollout_id"],
                    row["attempt"],
                    row["agent"],
                    len(row["turns"]),
                    len(row["prompt_ids"]),
                    len(row["response_ids"]),
                    sum(row["response_mask"]),
                    _rewards(row["rewards"]),
                    row["outcome"],
                )
                for row in shown
            ],
        )
    else:
        columns = ("rollout", "attempt", "turn", "agent", "response", "prompt", "reply")
        write_table(
            (*columns, "rewards", "return", "credit", "outcome"),
            [
                (
                    row["rollout_id"],
                    row["attempt"],
                    row["turn"],
                    row["agent"],
                    _named(row),
                    len(row["prompt_ids"]),
                    len(row["response_ids"]),
                    _rewards(row["rewards"]),
                    _number(row["return"]),
                    _number(row["credit"]),
                    row["outcome"],
                )
                for row in shown
            ],
        )
    if len(shown) < len(rows):
        click.echo(f"the first {len(shown)} of {len(rows)}; --limit 0 shows all", err=True)


def _tell(data: TransitionSet, selected: str) -> None:
    rollouts = len({(one.rollout_id, one.attempt) for one in data.transitions})
    groups = len({one.task_id for one in data.transitions})
    calls = len(data.transitions)
    click.echo(f"{calls}{selected} calls of {rollouts} rollouts in {groups} groups", err=True)
    for name, count in sorted(data.counts().items()):
        click.echo(f"  {name}: {count}", err=True)
        for one in [one for one in data.diagnostics if one.finding.value == name][:_TOLD]:
            click.echo(f"    {one.subject}{': ' if one.detail else ''}{one.detail}", err=True)
    if data.unassigned:
        click.echo(f"{len(data.unassigned)} rewards are on no transition", err=True)


def _named(row: dict[str, Any]) -> str:
    choice = f", choice {row['choice']}" if row["choice"] else ""
    return f"{row['response_id']}{choice}{', set aside' if row['set_aside'] else ''}"


def _rewards(rewards: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:+g}" for name, value in rewards.items())


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:+.4g}"
