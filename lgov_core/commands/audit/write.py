"""``lgov audit erase`` and ``lgov audit keygen``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lgov_core._util.plurals import counted
from lgov_core.commands.audit.selected import selection_options
from lgov_core.commands.group import Exit
from lgov_core.commands.options import FOLDER, PATH, command, heads_option, moment_option, own_key_option, yes_option
from lgov_core.commands.output import write_result
from lgov_core.commands.recorded import opened_record
from lgov_core.errors import LgovError
from lgov_core.settings import load_settings

if TYPE_CHECKING:
    from lgov_core.audit import AuditEntry, AuditLog
    from lgov_core.audit.selection import Selection


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@click.option("--entry", "entry_id", help="The entry whose texts to erase.")
@selection_options
@click.option("--reason", default="", help="Reason; recorded.")
@own_key_option
@heads_option
@yes_option
@click.pass_context
def erase(
    ctx: click.Context,
    path: Path,
    entry_id: str | None,
    selection: Selection,
    reason: str,
    yes: bool,
    as_json: bool,
    **flags: Path | None,
) -> None:
    """Erase arguments and texts of one entry, or of all that fit the options, from the audit record PATH.

    The chain stays valid, and an entry says what was erased; in a signed record it is signed with the record's key. Exits 1
    when there was nothing to erase. Names, ids and reasons are part of the chain and stay: entries where --text is in one
    are counted. Copies, exports and trace stores keep the texts.
    """
    from lgov_core.audit import default_signer
    from lgov_core.audit.selection import Selection

    if (entry_id is None) == (selection == Selection()):
        raise click.UsageError("give --entry, or options such as --rollout, --text or --before")
    if as_json and not yes:
        raise click.UsageError("--json does not prompt: give --yes with it")
    if not yes:
        click.confirm(_question(path, entry_id, selection), abort=True, err=True)
    settings = load_settings(flags)
    with opened_record(path, signer=default_signer(settings.audit_key), heads=settings.heads) as record:
        rollouts = sorted({one.rollout_id for one in _with_texts(record, entry_id, selection) if one.rollout_id})
        count = record.erase(entry_id=entry_id, selection=None if entry_id else selection, reason=reason)
        kept = 0 if selection.text is None else sum(map(selection.holds, record.entries()))
    said = f"erased the texts of {counted(count, 'entry', 'entries')}"
    if kept:
        said += f"; {counted(kept, 'entry', 'entries')} still with it in a name or a reason, which the chain needs"
    if rollouts:
        said += f"\nfrom {counted(len(rollouts), 'rollout')}, which a trace store has too (lgov traces prune STORE"
        said += f"{''.join(f' --rollout {rollout}' for rollout in rollouts)})"
    write_result({"path": str(path), "erased": count, "kept": kept, "rollouts": rollouts}, said, as_json=as_json)
    ctx.exit(Exit.OK if count else Exit.FINDING)


def _question(path: Path, entry_id: str | None, selection: Selection) -> str:
    """What to ask before erasing: how much it is."""
    if entry_id is not None:
        return f"Erase the texts of {entry_id} for good?"
    with opened_record(path) as record:
        count = len(_with_texts(record, None, selection))
    return f"Erase the texts of {counted(count, 'entry', 'entries')} for good?"


def _with_texts(record: AuditLog, entry_id: str | None, selection: Selection) -> list[AuditEntry]:
    """The chosen entries that have texts."""
    return [
        one
        for one in record.entries()
        if (one.arguments or one.content) and entry_id in (None, one.entry_id) and selection.holds(one)
    ]


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@click.option("--to", "folder", type=FOLDER, required=True, help="Folder of archived records, on the same file system.")
@moment_option("--delete-before", "Also delete archived records last written before")
@own_key_option
@heads_option
def rotate(path: Path, folder: Path, delete_before: float | None, as_json: bool, **flags: Path | None) -> None:
    """Archive the audit record PATH and begin the next one, which states what the archive holds.

    No program may have it open meanwhile. lgov audit verify --archive checks the records across: one that is missing, cut or
    changed is found. --delete-before is for retention: an entry of the new record names what was deleted.
    """
    from lgov_core.audit import default_signer
    from lgov_core.audit.rotation import retire
    from lgov_core.audit.rotation import rotate as archived

    if not path.is_file():
        raise LgovError(f"there is no audit record {path}", hint="name the record that was given to --audit")
    settings = load_settings(flags)
    signer, heads = default_signer(settings.audit_key), settings.heads
    target = archived(path, folder, signer=signer, heads=heads)
    deleted = [] if delete_before is None else retire(path, folder, before=delete_before, signer=signer, heads=heads)
    said = f"archived as {target}; {path} continues it" + "".join(f"\ndeleted {name}" for name in deleted)
    about = {"path": str(path), "archive": str(target), "deleted": [str(name) for name in deleted]}
    write_result(about, said, as_json=as_json)


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.option("--key", type=PATH, help="Where to write the key. [default: the user's configuration folder]")
def keygen(key: Path | None, as_json: bool) -> None:
    """Create the Ed25519 key that signs audit records, and the public key beside it (.pub).

    Give the public key to those who verify. With the key at its default place every record is signed from then on.
    """
    from lgov_core.audit import default_key_path, make_key
    from lgov_core.audit.keys import public_path

    place = key or default_key_path()
    made = make_key(place)
    public, key_hex = public_path(place), made.public.hex()
    write_result(
        {"key": str(place), "public_key_file": str(public), "public_key": key_hex},
        f"secret key: {place} (keep it away from those who can write the record)\npublic key: {public}\n  {key_hex}",
        as_json=as_json,
    )
