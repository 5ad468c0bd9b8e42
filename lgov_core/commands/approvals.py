"""``lgov approvals``: calls that wait for approval."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import command
from lgov_core.commands.output import write_json, write_table

if TYPE_CHECKING:
    from lgov_core.policies import ApprovalRequest, ApprovalRequests


_file = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_requests = click.argument("request_ids", metavar="REQUEST...", nargs=-1, required=True)
_by = click.option("--by", required=True, help="Name of the person who answers; kept in the audit record.")


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@_file
@click.option("--all", "everything", is_flag=True, help="Include requests that were answered, used or expired.")
def list_requests(file: Path, everything: bool, as_json: bool) -> None:
    """List the calls in FILE that wait for approval, oldest first.

    FILE is the `store` of a rule with `use: approval`. "call waits" says that the call itself waits for the answer;
    otherwise an approval lets the same call through when it is made again. Requests that lapsed or were used over a day
    ago are forgotten.
    """
    from lgov_core.policies import ApprovalRequests

    with closing(ApprovalRequests(file)) as requests:
        found = requests.all() if everything else requests.pending()
    _write(found, as_json)
    if not found and not as_json:
        click.echo("nothing waits", err=True)


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@_file
@_requests
@_by
def approve(file: Path, request_ids: tuple[str, ...], by: str, as_json: bool) -> None:
    """Approve each REQUEST in FILE: exactly that call may be made once, until the approval expires.

    REQUEST is an id, or the beginning of one. Stops with exit status 1 at the first that is not pending; the
    earlier ones stay answered.
    """
    _answer(file, request_ids, as_json, lambda requests, one: requests.approve(one, by=by))


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@_file
@_requests
@_by
@click.option("--reason", default="", help="Reason for the rejection; shown to the model.")
def reject(file: Path, request_ids: tuple[str, ...], by: str, reason: str, as_json: bool) -> None:
    """Reject each REQUEST in FILE: the model reads that, and the reason, when it makes the call again.

    REQUEST is an id, or the beginning of one. Stops with exit status 1 at the first that is not pending; the
    earlier ones stay answered.
    """
    _answer(file, request_ids, as_json, lambda requests, one: requests.reject(one, by=by, reason=reason))


def _answer(
    file: Path, ids: Sequence[str], as_json: bool, answer: Callable[[ApprovalRequests, str], ApprovalRequest]
) -> None:
    from lgov_core.policies import ApprovalRequests

    done: list[ApprovalRequest] = []
    try:
        with closing(ApprovalRequests(file)) as requests:
            for request_id in ids:
                done.append(answer(requests, request_id))
    finally:
        _write(done, as_json)


def _write(found: Sequence[ApprovalRequest], as_json: bool) -> None:
    if as_json:
        write_json([asdict(request) for request in found])
    elif found:
        columns = ("request", "state", "asked", "lapses in", "rollout", "agent", "tool", "arguments")
        write_table(columns, (_row(request, found) for request in found))


def _row(request: ApprovalRequest, shown: Sequence[ApprovalRequest]) -> tuple[object, ...]:
    from lgov_core.policies.approvals.notice import short_id

    now = time.time()
    short = short_id(request.request_id)
    waits = request.state == "pending" and request.waits_until is not None and request.waits_until > now
    by = "" if request.answered_by is None else f" by {request.answered_by}"
    return (
        short if sum(one.request_id.startswith(short) for one in shown) == 1 else request.request_id,
        f"{request.state}, call waits" if waits else f"{request.state}{by}",
        f"{_duration(now - request.asked_at)} ago",
        _duration(request.until - now) if request.state in ("pending", "approved", "rejected") else "",
        short_id(request.rollout_id or ""),
        request.content.get("agent"),
        request.name,
        json.dumps(request.arguments, ensure_ascii=False),
    )


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )
