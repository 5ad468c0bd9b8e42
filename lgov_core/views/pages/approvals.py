"""Calls that wait for approval, with exactly the text that an answer is bound to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal

from lgov_core._util.json_text import canonical_json
from lgov_core.errors import PolicyError
from lgov_core.policies import ApprovalRequest, ApprovalRequests
from lgov_core.policies.document import read_yaml
from lgov_core.policies.loader import read_policy_file

#: Of a request, what is shown as it is.
_SHOWN: Final = ("state", "asked_at", "until", "name", "digest", "answered_by", "answered_at", "reason")


class NoSuchRequest(PolicyError):
    """There is no approval request of that id."""

    code = "not_found"


class ChangedRequest(PolicyError):
    """The digest of an answer is not the request's: the person saw another text."""

    code = "changed"


class AnsweredRequest(PolicyError):
    """The request is not pending any more. ``item`` is what it became."""

    code = "answered"

    def __init__(self, message: str, item: dict[str, Any], *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.item = item


def list_approvals(files: Sequence[Path], *, everything: bool) -> list[dict[str, Any]]:
    """The requests in these files, oldest first; without ``everything`` those that wait. Raises `PolicyError`."""
    items: list[dict[str, Any]] = []
    for file in files:
        with closing(ApprovalRequests(file)) as requests:
            items += [_item(file, request) for request in (requests.all() if everything else requests.pending())]
    return sorted(items, key=lambda item: item["asked_at"])


def answer_approval(
    files: Sequence[Path],
    request_id: str,
    answer: Literal["approve", "reject"],
    *,
    by: str,
    reason: str,
    digest: str,
) -> dict[str, Any]:
    """Answers one request; of several answers the first counts.

    Raises `NoSuchRequest`, `ChangedRequest`, `AnsweredRequest`, and `PolicyError` where the file cannot be used.
    """
    for file in files:
        with closing(ApprovalRequests(file)) as requests:
            pending = next((request for request in requests.all() if request.request_id == request_id), None)
            if pending is None:
                continue
            if pending.digest != digest:
                raise ChangedRequest(
                    f"the answer to {request_id} is for another call than the one that waits", hint="look at it again"
                )
            try:
                if answer == "approve":
                    return _item(file, requests.approve(request_id, by=by))
                return _item(file, requests.reject(request_id, by=by, reason=reason))
            except PolicyError as error:
                now = next((request for request in requests.all() if request.request_id == request_id), None)
                if now is None or now.state == "pending":
                    raise
                raise AnsweredRequest(error.message, _item(file, now), hint=error.hint) from error
    raise NoSuchRequest(f"there is no approval request {request_id}", hint="it lapsed over a day ago, or never was")


def _item(file: Path, request: ApprovalRequest) -> dict[str, Any]:
    return {
        **{name: getattr(request, name) for name in _SHOWN},
        **{name: request.content.get(name) for name in ("agent", "point", "kind")},
        "id": request.request_id,
        "file": str(file),
        "arguments": dict(request.arguments),
        "bound": canonical_json(request.content),
    }


def approval_files(policy: Path) -> list[Path]:
    """The files of approval requests that a policy file names (``store`` of ``use: approval``). Raises `PolicyFileError`."""
    document, _ = read_yaml(read_policy_file(policy).decode("utf-8", "replace"), str(policy))
    files: list[Path] = []
    unread: list[Any] = [document]
    while unread:
        value = unread.pop()
        if isinstance(value, dict):
            rule: dict[Any, Any] = value
            options = rule.get("with")
            if rule.get("use") == "approval" and isinstance(options, dict) and isinstance(options.get("store"), str):
                files.append(policy.parent / Path(options["store"]).expanduser())
            unread += rule.values()
        elif isinstance(value, list):
            unread += value
    return files
