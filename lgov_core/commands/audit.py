"""``lgov audit``: verifies, shows, counts, erases and archives the record of decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lgov_core._util.sqlite_file import finish_log
from lgov_core.commands.group import Exit, effect_text, write_json, write_result, write_table
from lgov_core.commands.options import (
    FOLDER,
    PATH,
    command,
    entries_option,
    limit_option,
    moment_option,
    opened_record,
    opened_store,
    record_or_setting,
    settings_option,
    yes_option,
)
from lgov_core.errors import AuditError, LgovError, counted
from lgov_core.settings import load_settings, without_password

if TYPE_CHECKING:
    from lgov_core.audit import AuditEntry, Signer
    from lgov_core.audit.reading import EntrySelection
    from lgov_core.audit.report import AuditReport
    from lgov_core.settings import Settings

#: Characters of arguments in the table.
_ARGUMENTS_SHOWN: Final = 80


# ---------------------------------------------------------------------- verify


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@click.option("--key", help="Public key that must have signed the record: 64 hex digits, or a file with them.")
@click.option("--head", type=PATH, help="File with signed heads kept outside the record.")
@click.option("--archive", type=FOLDER, help="Folder of archived records: verify those before PATH too.")
@click.option("--require-signed", is_flag=True, help="Require a signed head over every entry.")
@click.pass_context
def verify(
    ctx: click.Context,
    path: Path,
    key: str | None,
    head: Path | None,
    archive: Path | None,
    require_signed: bool,
    as_json: bool,
) -> None:
    """Verify every chain, text and signature in the audit record PATH, and report what that proves.

    Without --key any key is accepted; without --head a record cut at its end, or an older copy, is not detected. The same
    check is one file that needs nothing of lgov: python -m lgov_core.audit.verify, or a copy of it.

    PATH may be a report that lgov export --format report wrote: its signature beside it, PATH.sig, is verified.

    PATH may be the folder of a checkpoint, an export or a run (all its checkpoints): every file, the weights, the data and
    the chain of statements since the first checkpoint are compared with the statements.
    """
    if not path.exists():
        raise LgovError(f"there is no audit record {path}", hint="name the record that was given to --audit")
    if path.is_dir():
        if head is not None or archive is not None:
            raise click.UsageError("--head and --archive are for audit records; a checkpoint has none")
        ctx.exit(_verify_folder(path, key, require_signed, as_json))
    from lgov_core.audit.verify import in_words, verify_given

    heads, folder = (None if each is None else str(each) for each in (head, archive))
    reports = verify_given(str(path), archive=folder, key=key, head=heads, require_signed=require_signed)
    if reports[0][1].usage:
        raise click.UsageError(str(reports[0][1].problem))
    values: list[dict[str, Any]] = [{"path": name, **asdict(report)} for name, report in reports]
    words = [in_words(report) if archive is None else f"{name}\n{in_words(report)}" for name, report in reports]
    ok = all(report.ok for _, report in reports)
    if ok:
        finish_log(path)
    write_result(values[0] if archive is None else {"ok": ok, "records": values}, "\n".join(words), as_json=as_json)
    ctx.exit(Exit.OK if ok else Exit.AUDIT_BROKEN)


def _verify_folder(path: Path, key: str | None, require_signed: bool, as_json: bool) -> Exit:
    """Verifies one checkpoint, or all of a run."""
    from lgov_core.audit.lineage import FOLDERS, LINEAGE_FILE, in_words, verify_lineage

    inner = sorted(file.parent for pattern in FOLDERS for file in path.glob(f"{pattern}/{LINEAGE_FILE}"))
    alone = (path / LINEAGE_FILE).exists() or not inner
    bare = [folder for pattern in FOLDERS for folder in path.glob(pattern) if folder.is_dir() and folder not in inner]
    folders = [path] if alone else sorted([*inner, *bare])
    reports = [verify_lineage(folder, key=key, require_signed=require_signed) for folder in folders]
    if reports[0].usage:
        raise click.UsageError(str(reports[0].problem))
    ok, values = all(report.ok for report in reports), [asdict(report) for report in reports]
    about = values[0] if alone else {"path": str(path), "ok": ok, "checkpoints": values}
    write_result(about, "\n".join(map(in_words, reports)), as_json=as_json)
    return Exit.OK if ok else Exit.AUDIT_BROKEN


# ---------------------------------------------------------------------- show


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH, required=False)
@entries_option
@click.option(
    "--denied", is_flag=True, help="Only decisions that blocked something, or would have outside shadow mode."
)
@click.option("--counts", is_flag=True, help="Count the decisions instead, and verify the record.")
@limit_option("Most recent rows")
@click.pass_context
def show(
    ctx: click.Context,
    path: Path | None,
    selection: EntrySelection,
    denied: bool,
    counts: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List the entries of the audit record PATH (default: the one of the settings), in the order of writing.

    A row is one line, where long values are cut; --json has everything. Times are in UTC.

    --counts counts the decisions by tool, result, rule, agent, point and time, and verifies the record with the public key
    beside the setting audit_key, and with the setting heads. A tool has one decision for each call; those on what it returned
    are under "result". "would deny" is what shadow mode allowed and the policies deny.
    """
    from lgov_core.audit.reading import modes_of
    from lgov_core.audit.report import plain
    from lgov_core.types import BLOCKING

    path = record_or_setting(path)
    damage: list[AuditError] = []
    with opened_record(path) as record:
        read = record.entries(selection.rollout_id, damage=damage)
        entries = [entry for entry in read if selection.holds(entry)]
        modes = modes_of(record.entries(damage=damage)) if counts else {}
    if denied:
        entries = [entry for entry in entries if entry.verdict["effect"] in BLOCKING]
    if counts:
        ctx.exit(_count(path, entries, modes, as_json))
    newest = entries[-limit:] if limit else entries
    if as_json:
        write_json([plain(entry) for entry in newest])
    else:
        columns = ("#", "time", "what", "action", "answer", "why")
        write_table(columns, [_row(entry) for entry in newest], shortened=("action", "why"))
        click.echo(f"{len(newest)} of {counted(len(entries), 'entry', 'entries')}", err=True)
    for error in damage:
        raise error


def _row(entry: AuditEntry) -> tuple[object, ...]:
    when = datetime.fromtimestamp(entry.time_ns / 1e9, UTC).strftime("%m-%d %H:%M:%S")
    from lgov_core.audit.report import reason_of

    verdict = entry.verdict
    where = f"{verdict['policy']}/{verdict['rule']}" if verdict["rule"] else verdict["policy"] or ""
    why = ": ".join(filter(None, (where, reason_of(entry))))
    why = f"said in the box: {why}" if entry.body.get("inside") else why
    answer = effect_text(entry.effect, verdict["effect"]) if entry.effect else entry.status or ""
    return entry.position, when, entry.point or entry.kind, _subject(entry), answer, why


def _subject(entry: AuditEntry) -> str:
    """The subject of the entry: an act, or other entries and records."""
    from lgov_core.audit.report import about_records

    return about_records(entry) or f"{entry.name or ''} {(entry.arguments or '')[:_ARGUMENTS_SHOWN]}".strip()


def _count(path: Path, entries: Sequence[AuditEntry], modes: Mapping[str, str], as_json: bool) -> Exit:
    from lgov_core.audit.report import audit_report
    from lgov_core.audit.signing import public_path
    from lgov_core.audit.verify import in_words
    from lgov_core.audit.verify import verify as verify_record

    settings = load_settings()
    key = None if settings.audit_key is None else public_path(settings.audit_key)
    report, verified = audit_report(entries), verify_record(path, key=key, head=settings.heads)
    if verified.usage:
        raise click.UsageError(str(verified.problem))
    digests = [entry.policy_digest for entry in entries if entry.kind == "decision"]
    shadow = sum(modes.get(digest) == "shadow" for digest in digests)
    if as_json:
        write_json({"path": str(path), **report.as_json(), "shadow": shadow, "verified": asdict(verified)})
    else:
        effects = _effects(report)
        sums = ", ".join(f"{report.decisions[effect]} {effect}" for effect in effects)
        when = f", from {report.first} to {report.last}" if report.first else ""
        decisions = counted(report.decisions.total(), "decision")
        click.echo(f"{decisions} ({sums or 'none'}) in {counted(report.entries, 'entry', 'entries')}{when}")
        click.echo(f"{shadow} of them in shadow mode, which enforces nothing\n" if shadow else "")
        for heading, table in report.tables().items():
            if table:
                write_table((heading, "decisions", *effects), _count_rows(report, table))
                click.echo()
        click.echo(f"verified\n{in_words(verified)}")
    return Exit.OK if verified.ok else Exit.AUDIT_BROKEN


def _effects(report: AuditReport) -> tuple[str, ...]:
    """The effects that occur."""
    from lgov_core.audit.report import EFFECTS

    return tuple(effect for effect in EFFECTS if report.decisions[effect])


def _count_rows(report: AuditReport, table: Mapping[str, Counter[str]]) -> Iterator[tuple[object, ...]]:
    """The rows of one table: times in their order, everything else with what was denied most first."""
    names = sorted(table)
    if table is not report.times:
        names.sort(key=lambda name: (-table[name]["deny"], -table[name]["would deny"], -table[name].total()))
    for name in names:
        yield name, table[name].total(), *(table[name][effect] for effect in _effects(report))


# ---------------------------------------------------------------------- erase

#: The most bytes of a file of which it is looked up whether it holds an erased text.
_MOST_READ: Final = 2**26
_NOT_REACHED: Final = (
    "other spellings of the text, such as one that is percent-encoded",
    "backups, copies, logs and exports elsewhere",
    "ledgers of budgets, which hold names of users and sessions",
    "what was sent away: to models, webhooks and OpenTelemetry",
    "what the framework keeps itself, such as sessions and checkpoints",
)


@dataclass(frozen=True, slots=True)
class _Erased:
    """The texts that are erased in one place, in words, and those that are not, with the reason.

    ``again``: these can be erased later.
    """

    location: str
    count: int
    what: str
    rest: str = ""
    again: bool = False


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH, required=False)
@entries_option
@click.option("--reason", default="", help="Reason; recorded.")
@click.option("--dry-run", is_flag=True, help="List what would be erased, without its texts, and erase nothing.")
@settings_option
@yes_option
@click.pass_context
def erase(
    ctx: click.Context,
    path: Path | None,
    selection: EntrySelection,
    reason: str,
    assignments: Mapping[str, str],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Erase what holds a text (--where text=TEXT), wherever lgov keeps it; or the texts of the audit record PATH that fit.

    Without PATH, or with a folder: in the records, approvals and trace stores in the folder, and those that its settings and
    policy name. Requests for approval, rollouts, and calls of no rollout go as a whole. What is not reached is named.

    Of entries of a record, arguments and texts are erased. The chain stays valid, and an entry says what was erased; in a
    signed record it is signed with the record's key (the setting audit_key). Names, ids and reasons are part of the chain and
    stay; such entries are counted. Exits 1 when there was nothing to erase, or something has to be erased later or by hand.
    """
    from lgov_core.audit.reading import EntrySelection
    from lgov_core.process.children import refuse_to_programs

    if not dry_run:
        refuse_to_programs("erase what is on record")
    settings = load_settings(texts=assignments)
    everywhere = path is None or path.is_dir()
    if selection == EntrySelection() or (everywhere and selection != EntrySelection(text=selection.text)):
        raise click.UsageError(
            "give --where text=TEXT; or a record, and options such as --where rollout=ID or --before"
        )
    if as_json and not (yes or dry_run):
        raise click.UsageError("--json does not prompt: give --yes or --dry-run with it")
    places = _kept_places(path or Path.cwd(), settings) if everywhere else {str(path): "record"}
    strict = not everywhere
    erased = [] if yes and not dry_run else _erase(places, selection, reason, settings, dry_run=True, strict=strict)
    if not dry_run:
        if not yes:
            click.echo("\n".join(f"{each.location}: {each.what}" for each in erased), err=True)
            click.confirm("Erase these texts for good?", abort=True, err=True)
        erased = _erase(places, selection, reason, settings, dry_run=False, strict=strict)
    missed = _not_reached(places) if everywhere else []
    if as_json:
        write_json({"dry_run": dry_run, "places": list(map(asdict, erased)), "not_reached": missed})
    else:
        write_table(
            ("place", "would erase" if dry_run else "erased", "not erased"),
            [(each.location, each.what, each.rest) for each in erased],
        )
        if missed:
            click.echo("\nnot reached: " + "; ".join(missed))
    failed = any(not each.what or each.again for each in erased)
    ctx.exit(Exit.OK if any(each.count for each in erased) and not failed else Exit.FINDING)


def _kept_places(folder: Path, settings: Settings) -> dict[str, str]:
    """The places in ``folder``, and those that the settings and the policy there name, each with its kind."""
    from lgov_core.governance import DEFAULT_AUDIT
    from lgov_core.places import POLICY_NAMES
    from lgov_core.views.governance import approval_files
    from lgov_core.views.sources import kept_below

    policies = [settings.policy, *(folder / name for name in POLICY_NAMES)]
    named = [
        ("approvals", file) for policy in policies if policy and policy.is_file() for file in approval_files(policy)
    ]
    named.append(("record", settings.audit or folder / DEFAULT_AUDIT))
    places = {str(path.resolve()): kind for kind, path in named if path.is_file()}
    if (store := settings.store) is not None and ("://" in store or Path(store).is_file()):
        places[store if "://" in store else str(Path(store).resolve())] = "store"
    return {**{location: kind for kind, location in kept_below(folder.resolve())}, **places}


def _erase(
    places: Mapping[str, str],
    selection: EntrySelection,
    reason: str,
    settings: Settings,
    *,
    dry_run: bool,
    strict: bool,
) -> list[_Erased]:
    """Erases in each place, where not in a ``dry_run``; what cannot be erased is said, or with ``strict`` raised."""
    from lgov_core.audit import default_signer
    from lgov_core.audit.reading import mentions
    from lgov_core.audit.signing import heads_path

    signer = None if dry_run else default_signer(settings.audit_key)

    def holds(value: Any) -> bool:
        return mentions(value, selection.text or "")

    erased: list[_Erased] = []
    for location, kind in places.items():
        try:
            if kind == "record":
                heads = settings.heads if strict or not heads_path(Path(location)).exists() else None
                done = _erase_entries(Path(location), selection, reason, signer, heads, dry_run=dry_run)
            elif kind == "approvals":
                done = _erase_requests(Path(location), holds, dry_run=dry_run)
            elif kind == "store":
                done = _erase_rollouts(location, holds, dry_run=dry_run)
            else:
                done = _look_into(Path(location), holds)
        except LgovError as error:
            if strict:
                raise
            done = _Erased(without_password(location), 0, "", str(error))
        if done is not None and (done.count or done.rest or strict):
            erased.append(done)
    return erased


def _erase_entries(
    path: Path, selection: EntrySelection, reason: str, signer: Signer | None, heads: Path | None, *, dry_run: bool
) -> _Erased:
    with opened_record(path, signer=signer, heads=None if dry_run else heads) as record:
        fitting = [entry for entry in record.entries() if selection.holds(entry)]
        going = [entry for entry in fitting if entry.arguments or entry.content]
        count = len(going) if dry_run else record.erase(selection, reason=reason)
        bare = (replace(entry, arguments=None, content=None) for entry in fitting)
        kept = 0 if selection.text is None else sum(map(selection.holds, bare))
    what = f"the texts of {counted(count, 'entry', 'entries')}"
    rest = f"{counted(kept, 'entry', 'entries')} with it in a name or a reason, which the chain needs" if kept else ""
    return _Erased(str(path), count, what, rest)


def _erase_requests(path: Path, holds: Callable[[Any], bool], *, dry_run: bool) -> _Erased:
    from lgov_core.policies import ApprovalRequests

    with closing(ApprovalRequests(path)) as requests:
        count, waiting = requests.erase(holds, dry_run=dry_run)
    rest = f"{counted(waiting, 'request')} whose call waits for the answer" if waiting else ""
    return _Erased(str(path), count, counted(count, "request"), rest, again=bool(rest))


def _erase_rollouts(source: str, holds: Callable[[Any], bool], *, dry_run: bool) -> _Erased:
    with opened_store(source) as store:
        pruned = store.erase(holds, dry_run=dry_run)
    names = ("rollout", "attempt", "call", "reward", "span")
    what = ", ".join(counted(getattr(pruned, f"{name}s"), name) for name in names)
    rest = f"what waits or runs: {pruned.spared_text()}" if pruned.spared else ""
    count = pruned.rollouts + pruned.calls + pruned.spans
    return _Erased(without_password(source), count, what, rest, again=bool(rest))


def _look_into(path: Path, holds: Callable[[Any], bool]) -> _Erased | None:
    """A file that is not lgov's to change, if the text is in it."""
    try:
        if path.stat().st_size > _MOST_READ:
            return None
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    lines = sum(holds(line) for line in text.splitlines())
    return _Erased(str(path), 0, "nothing", f"{counted(lines, 'line')} with it, in a file of yours") if lines else None


def _not_reached(places: Mapping[str, str]) -> list[str]:
    """Where the text may be as well, in words: archives that are elsewhere, what was trained on, what left the machine."""
    missed: list[str] = []
    for record_path in (path for path, kind in places.items() if kind == "record"):
        names: list[str] = []
        with suppress(LgovError), opened_record(Path(record_path)) as record:
            names = [entry.body["previous"]["file"] for entry in record.entries() if "previous" in entry.body]
        missed += [
            f"{name}, the archive before {record_path}"
            for name in names
            if name not in {Path(each).name for each in places}
        ]
    trained = {str(Path(path).parent) for path in places if path.endswith(".parquet")}
    return [*missed, *(f"{folder}, and the models trained on it" for folder in sorted(trained)), *_NOT_REACHED]


# ---------------------------------------------------------------------- rotate, keygen


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@click.option("--to", "folder", type=FOLDER, required=True, help="Folder of archived records, on the same file system.")
@moment_option("--delete-before", "Also delete archived records last written before")
@click.option(
    "--accept-loss", is_flag=True, help="Go on with an older copy, or without PATH; an entry says what is lost."
)
@settings_option
def rotate(
    path: Path,
    folder: Path,
    delete_before: float | None,
    accept_loss: bool,
    assignments: Mapping[str, str],
    as_json: bool,
) -> None:
    """Archive the audit record PATH and begin the next one, which states what the archive holds.

    No program may have it open meanwhile. A signed record needs its key: the setting audit_key. For a new key, put that into
    the settings file and name the old one here: --set audit_key=OLD. lgov audit verify --archive checks the records across:
    one that is missing, cut or changed is found. --delete-before is for retention: an entry of the new record names what was
    deleted.
    """
    from lgov_core.audit import default_signer
    from lgov_core.audit.rotation import retire
    from lgov_core.audit.rotation import rotate as rotate_record
    from lgov_core.process.children import refuse_to_programs

    refuse_to_programs("archive its record, or accept that entries are lost")
    if not accept_loss and not path.is_file():
        raise LgovError(f"there is no audit record {path}", hint="name the record that was given to --audit")
    settings = load_settings(texts=assignments)
    signer, heads = default_signer(settings.audit_key), settings.heads
    following = load_settings().audit_key
    following_signer = signer if following is None else default_signer(following)
    keys: dict[str, Any] = {"signer": signer, "following_signer": following_signer}
    target = rotate_record(path, folder, heads=heads, accept_loss=accept_loss, **keys)
    deleted: list[Path] = []
    if delete_before is not None:
        deleted = retire(path, folder, before=delete_before, signer=following_signer, heads=heads)
    text = f"archived as {target}; {path} continues it" if target else f"{path} begins anew"
    text += "".join(f"\ndeleted {name}" for name in deleted)
    about = {"path": str(path), "archive": target and str(target), "deleted": [str(name) for name in deleted]}
    write_result(about, text, as_json=as_json)


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.option("--key", type=PATH, help="Where to write the key. [default: the user's configuration folder]")
def keygen(key: Path | None, as_json: bool) -> None:
    """Create the Ed25519 key that signs audit records, and the public key beside it (.pub).

    Give the public key to those who verify. With the key at its default place every record is signed from then on.
    """
    from lgov_core.audit import default_key_path, make_key
    from lgov_core.audit.signing import public_path
    from lgov_core.process.children import refuse_to_programs

    refuse_to_programs("make the key that signs its record")
    secret = key or default_key_path()
    signing_key = make_key(secret)
    public, key_hex = public_path(secret), signing_key.public.hex()
    write_result(
        {"key": str(secret), "public_key_file": str(public), "public_key": key_hex},
        f"secret key: {secret} (keep it away from those who can write the record)\npublic key: {public}\n  {key_hex}",
        as_json=as_json,
    )
