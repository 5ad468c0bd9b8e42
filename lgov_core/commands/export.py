"""``lgov export``: what was recorded, for other programs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import click

from lgov_core._util.files import atomic_file, atomic_write
from lgov_core.commands.group import Exit, printable, write_json, write_result
from lgov_core.commands.options import (
    FOLDER,
    Where,
    command,
    content_option,
    is_audit_record,
    is_store,
    moment_option,
    opened_record,
    opened_store,
    selection_of,
    single,
    where_option,
)
from lgov_core.errors import AuditError, ExportError, LgovError, StoreError, counted
from lgov_core.settings import load_settings
from lgov_core.store import rows
from lgov_core.store.trace_store import TraceStore
from lgov_core.trace.rollout_spans import without_content as span_without_content
from lgov_core.types import Attempt, CapturedCall, Reward, Rollout, Span

if TYPE_CHECKING:
    from lgov_core.audit.reading import EntrySelection
    from lgov_core.audit.report import Format
    from lgov_core.store import RolloutQueue


#: What is exported, in this order, and the fields of each.
KINDS: Final[dict[str, type[Any]]] = {
    "rollout": Rollout,
    "attempt": Attempt,
    "call": CapturedCall,
    "reward": Reward,
    "span": Span,
}
#: Fields whose values are JSON of any shape: text in a Parquet file.
_JSON: Final = {"input", "result", "request", "response", "attributes", "events"}
_NUMBERS: Final = {"started_at", "ended_at", "created_at", "value", "temperature", "top_p"}
_INTEGERS: Final = {"attempt", "choice", "weights_version"}
#: Of an attempt, what a store does not keep: it is the rollout's.
_ELSEWHERE: Final = {"task_id"}
_ROWS_A_GROUP: Final = 1000


#: Returns the values of one kind, in the order of writing.
Reader: TypeAlias = Callable[[str], Iterator[Any]]


def reader_of(
    store: TraceStore, *, content: bool, run_id: str | None = None, rollout_ids: Sequence[str] | None = None
) -> Reader:
    """The reader of all values of a store, of a run's, or of some rollouts'; without ``content`` as `without_content`."""
    if run_id is not None:
        rollout_ids = [rollout.rollout_id for rollout in store.rollouts(run_id=run_id, ids=rollout_ids)]

    def read(kind: str) -> Iterator[Any]:
        if kind == "rollout":
            values: Iterable[Any] = store.rollouts(ids=rollout_ids)
        else:
            of = {"attempt": store.attempts, "call": store.calls, "reward": store.rewards, "span": store.spans}[kind]
            values = of(rollout_ids)
        return iter(values) if content else map(without_content, values)

    return read


def without_content(value: Any) -> Any:
    """``value`` without what users, models and tools wrote, and without tokens, which can be read."""
    match value:
        case Rollout():
            return replace(value, input={"mode": value.mode} if value.mode else {})
        case Attempt():
            return replace(value, error=None, result={"counts": dict(value.counts)} if value.counts else None)
        case CapturedCall():
            return replace(value, request={}, response={}, prompt_ids=None, response_ids=None, logprobs=None)
        case Span():
            return span_without_content(value)
        case _:  # a reward is a number, and names
            return value


def json_lines(read: Reader) -> Iterator[str]:
    """One JSON object a value: its fields, and ``kind``."""
    for kind in KINDS:
        for value in read(kind):
            yield rows.stored_text({"kind": kind, **_fields(value)}, kind)


def write_parquet(folder: Path, read: Reader) -> int:
    """Writes ``rollouts.parquet``, ``attempts.parquet`` and so on to ``folder``, made if need be; returns how many rows.

    Each file is written whole or not at all, a thousand rows at a time. Values of any JSON shape are JSON texts; token
    ids are lists of int32, logprobs lists of float64. Raises `ExportError`. Needs pyarrow (the extra ``train``).
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExportError("Parquet needs pyarrow", hint="pip install 'lgov[train]'") from error
    count = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"{folder} cannot be created: {error.strerror}", hint="name another folder") from error
    for kind, shape in KINDS.items():
        schema = pa.schema([(name, _column(pa, name)) for name in _columns(shape)])
        path = folder / f"{kind}s.parquet"
        try:
            with atomic_file(path, ExportError) as beside, pq.ParquetWriter(beside, schema) as writer:
                values = read(kind)
                while group := list(itertools.islice(values, _ROWS_A_GROUP)):
                    writer.write_table(pa.Table.from_pylist([_flat(value) for value in group], schema=schema))
                    count += len(group)
        except pa.ArrowException as error:
            raise ExportError(f"{path} cannot be written: {error}", hint="name another folder") from error
    return count


def _columns(shape: type[Any]) -> list[str]:
    """The names of the fields of a kind that are exported."""
    return [field.name for field in fields(shape) if shape is not Attempt or field.name not in _ELSEWHERE]


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _columns(type(value))} | (
        {"events": [asdict(event) for event in value.events]} if isinstance(value, Span) else {}
    )


def _flat(value: Any) -> dict[str, Any]:
    return {
        name: (None if value_ is None else rows.stored_text(value_, name)) if name in _JSON else value_
        for name, value_ in _fields(value).items()
    }


def _column(pa: Any, name: str) -> Any:
    if name in ("prompt_ids", "response_ids"):
        return pa.list_(pa.int32())
    if name == "logprobs":
        return pa.list_(pa.float64())
    if name == "tool_call_ids":
        return pa.list_(pa.string())
    if name == "claimed":
        return pa.bool_()
    if name in _INTEGERS:
        return pa.int64()
    return pa.float64() if name in _NUMBERS else pa.string()


#: Formats of an audit record, and of a trace store.
OF_RECORD: Final = ("jsonl", "cloudevents", "ocsf", "report")
OF_STORE: Final = ("jsonl", "parquet", "otlp", "otlp-json")


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN, Exit.INTERRUPTED)
@click.argument("source", metavar="STORE|RECORD")
@click.option(
    "--format", "form", type=click.Choice(tuple(dict.fromkeys((*OF_STORE, *OF_RECORD)))), default="jsonl",
    show_default=True, help="cloudevents, ocsf and report are for records; parquet, otlp and otlp-json for stores.",
)  # fmt: skip
@click.option(
    "--to", "target", metavar="FILE|FOLDER|URL",
    help="File, folder (parquet) or URL of a collector (otlp). [default: standard output]",
)  # fmt: skip
@where_option(
    {"rollout": "ID", "run": "ID", "session": "ID", "tool": "GLOB", "agent": "GLOB", "text": "TEXT"},
    note="a store has rollout and run, a record all but run",
)
@moment_option("--since", "Only entries written since")
@moment_option("--before", "Only entries written before")
@click.option(
    "--after", type=click.IntRange(0, 2**63 - 1), default=0, help="Only entries of a record after this position."
)
@click.option(
    "--archive", type=FOLDER, help="Folder of archived records of a report. [default: the one that the record names]"
)
@content_option
def export(
    source: str, form: str, target: str | None, where: Where, content: bool, as_json: bool, **period: Any
) -> None:
    """Write what is in a trace store (a path, an address, a run folder) or an audit record, or send it to a collector.

    A store: its rollouts, attempts, calls, rewards and spans as JSON lines (the fields of one of them, and kind), as a folder
    of Parquet files, or as spans to an OpenTelemetry collector (--format otlp --to http://HOST:4318/v1/traces). Headers
    are taken from OTEL_EXPORTER_OTLP_HEADERS. Sent again, a span has the same id. A collector that refuses spans makes the exit
    status 1. For training data: lgov transitions.

    A record: its entries as JSON lines with its own fields, CloudEvents 1.0, or OCSF 1.3 API Activity. --format report is one
    report for an auditor, with the archived records before it: as HTML or JSON if the name of the file ends so, else as text.
    It is verified with the public key beside the setting audit_key, and with the setting heads. Where that key signed the
    record, it signs the report too: FILE.sig, which lgov audit verify FILE checks. Exits 4 if one is broken or missing.

    --no-content leaves out texts, tokens, arguments, and reasons, which may quote. A file is written whole or not at all. With
    --json the summary about --to is JSON; standard output always is.
    """
    target = None if target == "-" else target
    if is_audit_record(source):
        _require("an audit record", form, OF_RECORD, where, ("rollout", "session", "tool", "agent", "text"))
        _export_record(Path(source), form, target, where, content, as_json, **period)
        return
    if not is_store(source) and not Path(source).exists():
        raise LgovError(f"there is no trace store or audit record {source}", hint="name a file that lgov wrote")
    _require("a trace store", form, OF_STORE, where, ("rollout", "run"))
    if any(period.values()):
        raise click.UsageError("--since, --before, --after and --archive are for audit records")
    with opened_store(source) as store:
        if form.startswith("otlp"):
            _send(store, source, form, target, where, content, as_json)
        else:
            _export_store(store, form, target, where, content, as_json)


def _require(kind: str, form: str, forms: Sequence[str], where: Where, fields: Sequence[str]) -> None:
    """Raises `click.UsageError` for what ``kind`` does not have."""
    if form not in forms:
        raise click.UsageError(f"{kind} is exported as {', '.join(forms)}, not as {form}")
    if unknown := next((field for field in where if field not in fields), None):
        raise click.UsageError(f"--where: {kind} has {', '.join(fields)}, not {unknown}")


def _export_record(
    path: Path,
    form: str,
    target: str | None,
    where: Where,
    content: bool,
    as_json: bool,
    *,
    after: int,
    archive: Path | None,
    **period: Any,
) -> None:
    from lgov_core.audit.report import lines

    selection = selection_of(where, **period)
    if form == "report":
        _report_evidence(path, selection, target, as_json, archive=archive, after=after, content=content)
        return
    if archive is not None:
        raise click.UsageError("--archive is for --format report")
    damage: list[AuditError] = []
    with opened_record(path) as record:
        read = record.entries(selection.rollout_id, after=after, damage=damage)
        entries = [entry for entry in read if selection.holds(entry)]
    if not content:
        entries = [entry.without_content() for entry in entries]
    _write(lines(entries, cast("Format", form)), target, form, "entry", as_json)
    for error in damage:
        raise error


def _report_evidence(path: Path, selection: EntrySelection, target: str | None, as_json: bool, **options: Any) -> None:
    from lgov_core.audit import default_key_path, load_key
    from lgov_core.audit.auditor_report import evidence, evidence_html, evidence_text
    from lgov_core.audit.signing import heads_path, public_path, sign_report
    from lgov_core.audit.verify import SIGNATURE

    settings = load_settings()
    secret, heads = settings.audit_key or default_key_path(), settings.heads or heads_path(path)
    public = public_path(secret)
    report = evidence(
        path, selection, key=public if public.is_file() else None, heads=heads if heads.is_file() else None, **options
    )
    suffix = "" if target is None else Path(target).suffix
    if suffix == ".json" or (target is None and as_json):
        lines = iter(json.dumps(report.as_json(), indent=2).splitlines())
    else:
        lines = evidence_html(report) if suffix in (".html", ".htm") else map(_ascii, evidence_text(report))
    _write(lines, target, "report", "line", as_json)
    if target is not None:
        signature = Path(target + SIGNATURE)
        signature.unlink(missing_ok=True)  # of a report that is no more
        if secret.is_file() and (signer := load_key(secret)).public.hex() == report.verified["key"]:
            signed = sign_report(Path(target).read_bytes(), report.verified["record"], signer)
            atomic_write(signature, signed.encode("ascii"))
            click.echo(f"signed: {signature}", err=True)
        else:
            why = "the key that signed the record is not at hand (the setting audit_key)"
            why = "the record is not signed" if report.verified["key"] is None else why
            click.echo(f"not signed: {why if report.is_right else 'the record is broken'}", err=True)
    if not report.is_right:
        click.get_current_context().exit(Exit.AUDIT_BROKEN)


def _ascii(line: str) -> str:
    return printable(line).encode("ascii", "backslashreplace").decode()


def _export_store(
    store: RolloutQueue, form: str, target: str | None, where: Where, content: bool, as_json: bool
) -> None:
    if form == "parquet" and target is None:
        raise click.UsageError("parquet needs --to FOLDER")
    rollout_ids = list(where.get("rollout", ()))
    for rollout_id in rollout_ids:
        read = reader_of(store, content=content, rollout_ids=[rollout_id])
        if not any(True for kind in KINDS for _ in read(kind)):
            raise StoreError(f"nothing is recorded of rollout {rollout_id}", hint="lgov traces list shows the ids")
    read = reader_of(store, content=content, run_id=single(where, "run"), rollout_ids=rollout_ids or None)
    if form == "parquet" and target is not None:
        _report(write_parquet(Path(target), read), target, form, "row", as_json)
    else:
        _write(json_lines(read), target, form, "row", as_json)


def _write(lines: Iterable[str], target: str | None, form: str, noun: str, as_json: bool) -> None:
    from lgov_core._util.files import write_lines

    if target is None:
        for line in lines:
            click.echo(line)
    else:
        _report(write_lines(Path(target), lines, ExportError), target, form, noun, as_json)


def _report(count: int, target: str, form: str, noun: str, as_json: bool) -> None:
    text = f"wrote {counted(count, noun, 'entries' if noun == 'entry' else f'{noun}s')} to {target}"
    write_result({"to": target, "format": form, "rows": count}, text, as_json=as_json)


# ---------------------------------------------------------------------- to a collector


def _send(
    store: RolloutQueue, source: str, form: str, url: str | None, where: Where, content: bool, as_json: bool
) -> None:
    from lgov_core.trace.otlp_export import Collector, export_spans, headers_in_environment
    from lgov_core.trace.rollout_spans import rollout_spans

    rollout_ids, run_id = list(where.get("rollout", ())), single(where, "run")
    if url is None:
        raise click.UsageError(f"{form} needs --to URL, usually http://HOST:4318/v1/traces")
    if rollout_ids and run_id is not None:
        raise click.UsageError("give --where rollout=ID or --where run=ID, not both")
    if missing := [rollout_id for rollout_id in rollout_ids if not rollout_spans(store, rollout_id)]:
        raise click.UsageError(f"there is no rollout {missing[0]} in {source}")
    collector = Collector(url, headers=headers_in_environment(), protocol="json" if form == "otlp-json" else "protobuf")
    sent = export_spans(store, collector, rollout_ids=rollout_ids or None, run_id=run_id, content=content)
    if as_json:
        write_json(asdict(sent))
    else:
        requests = counted(sent.requests, "request")
        click.echo(f"sent {counted(sent.spans, 'span')} of {counted(sent.rollouts, 'rollout')} in {requests}")
        for message in sent.messages:
            click.echo(f"the collector says: {printable(message[:300])}", err=True)
    if sent.rejected:
        click.echo(f"{sent.rejected} spans were rejected", err=True)
        click.get_current_context().exit(Exit.FINDING)
