"""``lgov audit verify``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lgov_core.commands.audit.selected import kept_heads_option, trusted_key_option
from lgov_core.commands.group import Exit
from lgov_core.commands.options import FOLDER, PATH, command
from lgov_core.commands.output import write_result
from lgov_core.errors import LgovError


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@trusted_key_option
@kept_heads_option
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

    PATH may be the folder of a checkpoint, an export or a run (all its checkpoints): every file, the weights, the data and
    the chain of statements since the first checkpoint are compared with the statements.
    """
    if not path.exists():
        raise LgovError(f"there is no audit record {path}", hint="name the record that was given to --audit")
    if path.is_dir():
        if head is not None or archive is not None:
            raise click.UsageError("--head and --archive are for audit records; a checkpoint has none")
        ctx.exit(_folder(path, key, require_signed, as_json))
    from lgov_core.audit.verify import in_words, verify_archived
    from lgov_core.audit.verify import verify as recompute

    if archive is None:
        found = [(str(path), recompute(path, key=key, head=head, require_signed=require_signed))]
    elif archive.is_dir():
        found = verify_archived(path, archive, key=key, head=head, require_signed=require_signed)
    else:
        raise click.UsageError(f"--archive: there is no folder {archive}")
    if found[0][1].usage:
        raise click.UsageError(str(found[0][1].problem))
    values: list[dict[str, Any]] = [{"path": name, **asdict(report)} for name, report in found]
    words = [in_words(report) if archive is None else f"{name}\n{in_words(report)}" for name, report in found]
    ok = all(report.ok for _, report in found)
    write_result(values[0] if archive is None else {"ok": ok, "records": values}, "\n".join(words), as_json=as_json)
    ctx.exit(Exit.OK if ok else Exit.AUDIT_BROKEN)


def _folder(path: Path, key: str | None, require_signed: bool, as_json: bool) -> Exit:
    """Verifies one checkpoint, or all of a run."""
    from lgov_core.audit.lineage import FOLDERS, LINEAGE_FILE, in_words, verify_lineage

    inner = sorted(one.parent for pattern in FOLDERS for one in path.glob(f"{pattern}/{LINEAGE_FILE}"))
    alone = (path / LINEAGE_FILE).exists() or not inner
    bare = [one for pattern in FOLDERS for one in path.glob(pattern) if one.is_dir() and one not in inner]
    folders = [path] if alone else sorted([*inner, *bare])
    reports = [verify_lineage(one, key=key, require_signed=require_signed) for one in folders]
    if reports[0].usage:
        raise click.UsageError(str(reports[0].problem))
    ok, found = all(report.ok for report in reports), [asdict(report) for report in reports]
    about = found[0] if alone else {"path": str(path), "ok": ok, "checkpoints": found}
    write_result(about, "\n".join(map(in_words, reports)), as_json=as_json)
    return Exit.OK if ok else Exit.AUDIT_BROKEN
