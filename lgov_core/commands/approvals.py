"""``lgov approvals``: calls that wait for approval."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lgov_core.commands.group import Exit, LazyGroup, exit_status, json_option
from lgov_core.commands.output import write_json, write_table

if TYPE_CHECKING:
    from lgov_core.policies import ApprovalRequest, ApprovalRequests

_HERE = "lgov_core.commands.approvals"
_STATUS = exit_status(Exit.OK, Exit.FINDING, Exit.USAGE)


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (f"{_HERE}:list_requests", "List the calls that wait for approval."),
        "approve": (f"{_HERE}:approve", "Approve calls, once each."),
        "reject": (f"{_HERE}:reject", "Reject calls; the model reads the reason."),
    },
)
def approvals() -> None:
    """List, approve and reject calls that wait for approval."""


def _file(command: Callable[..., None]) -> Callable[..., None]:
    return click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))(command)


@click.command(name="list", epilog=_STATUS)
@_file
@click.option("--all", "everything", is_flag=True, help="Include requests that were answered, used or expired.")
@json_option
def list_requests(file: Path, everything: bool, as_json: bool) -> None:
    """List the calls in FILE that wait for approval, oldest first.

    FILE is the `store` of a rule with `use: approval`. What lapsed or was used more than a day ago is forgotten.
    """
    with _opened(file) as requests:
        found = requests.all() if everything else requests.pending()
    if as_json:
        write_json([asdict(request) for request in found])
    elif found:
        _write(found)
    else:
        click.echo("nothing waits", err=True)


def _answer(command: Callable[..., None]) -> Callable[..., None]:
    by = click.option("--by", required=True, help="Name of the approver; recorded, and shown to the model.")
    named = click.argument("request_ids", metavar="REQUEST...", nargs=-1, required=True)
    return _file(named(by(json_option(command))))


@click.command(epilog=_STATUS)
@_answer
def approve(file: Path, request_ids: tuple[str, ...], by: str, as_json: bool) -> None:
    """Approve each REQUEST in FILE: exactly that call may be made once, until the approval expires.

    Exits 1 at the first that is not pending any more; earlier ones are answered by then.
    """
    _answered(file, request_ids, as_json, lambda requests, one: requests.approve(one, by=by))


@click.command(epilog=_STATUS)
@_answer
@click.option("--reason", default="", help="Reason for the rejection; shown to the model.")
def reject(file: Path, request_ids: tuple[str, ...], by: str, reason: str, as_json: bool) -> None:
    """Reject each REQUEST in FILE: the model reads that, and the reason, when it makes the call again.

    Exits 1 at the first that is not pending any more; earlier ones are answered by then.
    """
    _answered(file, request_ids, as_json, lambda requests, one: requests.reject(one, by=by, reason=reason))


def _answered(
    file: Path,
    request_ids: Sequence[str],
    as_json: bool,
    answer: Callable[[ApprovalRequests, str], ApprovalRequest],
) -> None:
    done: list[ApprovalRequest] = []
    try:
        with _opened(file) as requests:
            for request_id in request_ids:
                done.append(answer(requests, request_id))
    finally:
        if as_json:
            write_json([asdict(request) for request in done])
        elif done:
            _write(done)


@contextmanager
def _opened(file: Path) -> Generator[ApprovalRequests]:
    from lgov_core.policies import ApprovalRequests

    requests = ApprovalRequests(file)
    try:
        yield requests
    finally:
        requests.close()


def _write(found: Sequence[ApprovalRequest]) -> None:
    now = time.time()
    rows: list[tuple[Any, ...]] = [
        (
            request.request_id,
            request.state if request.answered_by is None else f"{request.state} by {request.answered_by}",
            _seconds(request.until - now) if request.state in ("pending", "approved", "rejected") else "",
            request.content.get("agent"),
            request.name,
            json.dumps(request.arguments, ensure_ascii=False),
        )
        for request in found
    ]
    write_table(("request", "state", "lapses in", "agent", "tool", "arguments"), rows)


def _seconds(left: float) -> str:
    return f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min" if left < 7200 else f"{left / 3600:.0f} h"
