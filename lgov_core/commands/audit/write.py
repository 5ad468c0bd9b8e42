"""``lgov audit erase`` and ``lgov audit keygen``."""

from __future__ import annotations

from pathlib import Path

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import PATH, command, yes_option
from lgov_core.commands.output import write_result
from lgov_core.commands.recorded import opened_record


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@click.option("--entry", "entry_id", help="The entry whose texts to erase.")
@click.option("--rollout", "rollout_id", help="The rollout whose texts to erase.")
@click.option("--reason", default="", help="Reason; recorded.")
@click.option("--key", type=PATH, help="Secret key of a signed record. [default: the key of lgov audit keygen, if any]")
@yes_option
@click.pass_context
def erase(
    ctx: click.Context,
    path: Path,
    entry_id: str | None,
    rollout_id: str | None,
    reason: str,
    key: Path | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Erase arguments and texts of one entry, or of a rollout, from the audit record PATH.

    The chain stays valid, and an entry says what was erased; in a signed record it is signed with the record's key. Exits 1
    when there was nothing to erase. Copies and exports keep the texts.
    """
    if (entry_id is None) == (rollout_id is None):
        raise click.UsageError("give --entry or --rollout")
    if as_json and not yes:
        raise click.UsageError("--json does not prompt: give --yes with it")
    if not yes:
        click.confirm(f"Erase the texts of {entry_id or rollout_id} for good?", abort=True, err=True)
    from lgov_core.audit import default_signer

    with opened_record(path, signer=default_signer(key)) as record:
        count = record.erase(entry_id=entry_id, rollout_id=rollout_id, reason=reason)
    write_result({"path": str(path), "erased": count}, f"erased the texts of {count} entries", as_json=as_json)
    ctx.exit(Exit.OK if count else Exit.FINDING)


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.option("--key", type=PATH, help="Where to write the key. [default: the user's configuration folder]")
def keygen(key: Path | None, as_json: bool) -> None:
    """Create the Ed25519 key that signs audit records, and the public key beside it (.pub).

    Give the public key to those who verify. With the key at its default place every record is signed from then on.
    """
    from lgov_core.audit import default_key_path, make_key
    from lgov_core.audit.keys import public_path
    from lgov_core.errors import AuditError, LgovError

    place = key or default_key_path()
    try:
        made = make_key(place)
    except AuditError as error:  # there is no record here that could be broken
        raise LgovError(error.message, hint=error.hint) from error
    public, key_hex = public_path(place), made.public.hex()
    write_result(
        {"key": str(place), "public_key_file": str(public), "public_key": key_hex},
        f"secret key: {place} (keep it away from those who can write the record)\npublic key: {public}\n  {key_hex}",
        as_json=as_json,
    )
