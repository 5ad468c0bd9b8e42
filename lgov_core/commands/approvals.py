"""``lgov approvals``: calls that wait for approval."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lgov_core.commands.group import Exit, printable, write_json, write_result, write_table
from lgov_core.commands.options import PATH, command
from lgov_core.places import DEFAULT_APPROVALS
from lgov_core.settings import load_settings

if TYPE_CHECKING:
    from lgov_core.policies import ApprovalRequest


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("file", type=PATH, required=False)
@click.option("--all", "everything", is_flag=True, help="Include requests that were answered, used or expired.")
@click.option("--approve", "approved", metavar="REQUEST", multiple=True, help="Approve this request; repeatable.")
@click.option("--reject", "rejected", metavar="REQUEST", multiple=True, help="Reject this request; repeatable.")
@click.option("--by", help="Who answers, for the audit record: a name, or an approver's key; - reads the key.")
@click.option("--reason", default="", help="Reason of a rejection; shown to the model.")
@click.option(
    *("--key", "approver"),
    metavar="NAME",
    expose_value=False,
    callback=lambda context, _option, name: context.meta.update(approver=name),
    help="Make a key for this approver and print it, instead.",
)
def approvals(
    file: Path | None,
    everything: bool,
    approved: tuple[str, ...],
    rejected: tuple[str, ...],
    by: str | None,
    reason: str,
    as_json: bool,
) -> None:
    """List the calls that wait for approval, oldest first; or answer them with --approve and --reject.

    FILE is the `store` of a rule with `use: approval` (default: the one in the policy file of a run here). "call waits" says
    that the call itself waits for the answer; otherwise an approval lets the same call through when it is made again. Requests
    that lapsed or were used over a day ago are forgotten.

    REQUEST is an id, or the beginning of one. An approval is for exactly that call, once, until it expires; a rejection takes
    it back while it is not used. After a rejection the model reads that, and the reason. Stops with exit status 1 at the first
    that cannot be answered so; the earlier ones stay answered.

    Once an approver has a key, every answer takes one, and its name is the one on record. A new key ends the older one, and
    what was approved with that and is not used yet is asked anew. To end a key for good, throw the new one away.
    """
    from lgov_core.policies import ApprovalRequests
    from lgov_core.views.governance import record_answers

    approver: str | None = click.get_current_context().meta["approver"]
    if approver is not None or approved or rejected:
        from lgov_core.process.children import refuse_to_programs

        refuse_to_programs("answer the calls that wait, or make a key to answer them")
    file = _file_of(file, may_be_made=approver is not None)
    if approver is not None:
        return _make_key(file, approver, as_json)
    if (approved or rejected) and by is None:
        raise click.UsageError("say who answers: --by NAME, or --by - for an approver's key")
    if by is None or not (approved or rejected):
        if by is not None or reason:
            raise click.UsageError("--by and --reason go with --approve or --reject")
        with closing(ApprovalRequests(file)) as requests:
            waiting = requests.all() if everything else requests.pending()
        _write(waiting, as_json)
        if not waiting and not as_json:
            click.echo("nothing waits", err=True)
        return
    if by == "-":
        has_person = sys.stdin.isatty()
        by = str(click.prompt("Key", hide_input=True, err=True) if has_person else sys.stdin.readline().strip())
    answered: list[ApprovalRequest] = []
    try:
        with closing(ApprovalRequests(file)) as requests:
            for request_id in approved:
                answered.append(requests.approve(request_id, by=by))
            for request_id in rejected:
                answered.append(requests.reject(request_id, by=by, reason=reason))
    finally:
        waits = record_answers(file)
        _write(answered, as_json)
    if waits:
        click.echo(f"not on record until a governed program starts or ends: {waits}", err=True)


def _make_key(file: Path, approver: str, as_json: bool) -> None:
    """Makes a key for ``approver``, and hands it out once that is on record."""
    from lgov_core.governance import Governance
    from lgov_core.policies import ApprovalRequests

    with Governance.from_settings().open_record("", "") as log, closing(ApprovalRequests(file)) as requests:
        ends = requests.has_key(approver)
        key = requests.add_approver(approver)
        about = {"name": f"approver {approver}", "approvals": str(file.absolute())}
        log.note("policy", "a new key, which ends the older one, made" if ends else "a key made", about)
    write_result({"name": approver, "key": key, "file": str(file)}, key, as_json=as_json)
    click.echo(f"holds until another key is made for {approver}", err=True)


def _file_of(file: Path | None, *, may_be_made: bool) -> Path:
    """``file``, or the one of approval requests in the policy file of a run here, or the usual one in this folder.

    Its folder is made where the file ``may_be_made``. Raises `click.UsageError` for none or several.
    """
    from lgov_core.views.governance import asking_files

    named = [file] if file is not None else asking_files(load_settings()) or [Path(DEFAULT_APPROVALS)]
    files = named if may_be_made else [path for path in named if path.is_file()]
    if len(files) != 1:
        names = ", ".join(map(str, files))
        several = f"the policy has several: {names}" if files else f"there is no {' or '.join(map(str, named))}"
        raise click.UsageError(f"name the file of approval requests; {several}")
    if may_be_made:
        files[0].parent.mkdir(parents=True, exist_ok=True)
    return files[0]


def _write(requests: Sequence[ApprovalRequest], as_json: bool) -> None:
    if as_json:
        write_json([asdict(request) for request in requests])
    elif requests:
        columns = ("request", "state", "asked", "lapses in", "rollout", "agent", "tool", "arguments")
        write_table(columns, (_row(request, requests) for request in requests))
        for request in requests:  # texts that would break the columns
            inquiry = request.inquiry
            texts = {"": inquiry.question, "for ": request.requester, "the user: ": inquiry.user_text}
            about = " | ".join(f"{what}{text}" for what, text in texts.items() if text)
            if about and request.state == "pending":
                click.echo(printable(f"{_shown_id(request, requests)}: {about}"))


def _shown_id(request: ApprovalRequest, listed: Sequence[ApprovalRequest]) -> str:
    from lgov_core.policies.approvals.notices import short_id

    short = short_id(request.request_id)
    return short if sum(other.request_id.startswith(short) for other in listed) == 1 else request.request_id


def _row(request: ApprovalRequest, listed: Sequence[ApprovalRequest]) -> tuple[object, ...]:
    from lgov_core.policies.approvals.notices import short_id

    now = time.time()
    waits = request.state == "pending" and request.waits_until is not None and request.waits_until > now
    by = "" if request.answered_by is None else f" by {request.answered_by}"
    of = f" ({len(request.answers)} of {request.inquiry.approvers})" if request.inquiry.approvers > 1 else ""
    return (
        _shown_id(request, listed),
        f"{request.state}, call waits{of}" if waits else f"{request.state}{by}{of}",
        f"{_duration(now - request.asked_at)} ago",
        _duration(request.until - now) if request.state in ("pending", "approved", "rejected") else "",
        short_id(request.rollout_id or ""),
        request.content.get("agent"),
        request.name,
        json.dumps(request.arguments, ensure_ascii=False),
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
