"""Which rollout a request belongs to.

Three ways to name it: headers (``x-lgov-rollout-id``, ``x-lgov-attempt``, ``x-lgov-agent``: what ``OPENAI_CUSTOM_HEADERS``
sends; an agent's name may be percent-encoded), the path prefix ``/rollout/{id}/attempt/{n}``, and a scoped key. Where
several are given they have to agree; lgov never guesses which one is meant.
"""

from __future__ import annotations

import contextvars
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from starlette.datastructures import Headers

from lgov_core.errors import EndpointError
from lgov_core.gateway.serving.keys import KeyGrant

ROLLOUT_HEADER = "x-lgov-rollout-id"
ATTEMPT_HEADER = "x-lgov-attempt"
AGENT_HEADER = "x-lgov-agent"

_ROLLOUT_ID = re.compile(r"[!-.0-~]{1,200}")  # printable ASCII without space and slash
_ATTEMPT = re.compile(r"[1-9][0-9]{0,8}")
_AGENT = re.compile(r"[ -~]{1,200}")


@dataclass(frozen=True, slots=True)
class Attribution:
    """Whose call it is. ``rollout_id`` and ``attempt`` are both set or both None."""

    rollout_id: str | None = None
    attempt: int | None = None
    agent: str | None = None


_CALLER = contextvars.ContextVar("lgov_endpoint_caller", default=Attribution())  # noqa: B039 - it is frozen


def caller() -> Attribution:
    """Whose call this task answers: what `attribute` found last in it."""
    return _CALLER.get()


def bearer_key(headers: Headers) -> str | None:
    """The key in an ``Authorization: Bearer`` or ``x-api-key`` header, or None.

    Raises `EndpointError` (400) for two that differ, and for a header given twice: lgov does not guess which one is meant.
    """
    scheme, _, key = (_only(headers, "authorization") or "").partition(" ")
    bearer = key.strip() or None if scheme.lower() == "bearer" else None
    own = (_only(headers, "x-api-key") or "").strip() or None
    if bearer is not None and own is not None and bearer != own:
        raise EndpointError("the authorization header and x-api-key hold different keys", hint="send one of them")
    return own if bearer is None else bearer


def attribute(headers: Headers, path: Mapping[str, str], grant: KeyGrant, *, allow_unattributed: bool) -> Attribution:
    """Whose call it is, by headers, path parameters ``rollout_id`` and ``attempt``, and its key's grant.

    Raises `EndpointError`: 403 for a key of another attempt, 400 for malformed, contradicting or repeated ids, or for none
    at all unless ``allow_unattributed``.
    """
    rollout_id = _agree(
        "rollout",
        _checked("the rollout id in the path", path.get("rollout_id"), _ROLLOUT_ID),
        _checked(ROLLOUT_HEADER, _only(headers, ROLLOUT_HEADER), _ROLLOUT_ID),
        grant.rollout_id,
    )
    attempt = _agree(
        "attempt",
        _checked("the attempt in the path", path.get("attempt"), _ATTEMPT),
        _checked(ATTEMPT_HEADER, _only(headers, ATTEMPT_HEADER), _ATTEMPT),
        None if grant.attempt is None else str(grant.attempt),
    )
    agent = _checked(AGENT_HEADER, _only(headers, AGENT_HEADER), _AGENT)
    agent = None if agent is None else unquote(agent)
    if agent is not None and not agent.isprintable():
        raise EndpointError(f"{AGENT_HEADER} is {agent[:60]!r}, which holds what cannot be printed")
    if (rollout_id is None) != (attempt is None):
        missing = "rollout id" if rollout_id is None else "attempt"
        raise EndpointError(
            f"the call names only half of its attempt: the {missing} is missing",
            hint=f"call /rollout/<id>/attempt/<n>/v1, or send {ROLLOUT_HEADER} and {ATTEMPT_HEADER}",
        )
    if rollout_id is None and not (allow_unattributed or grant.admin):
        raise EndpointError(
            "the call does not name its rollout",
            hint=f"send {ROLLOUT_HEADER} and {ATTEMPT_HEADER}, call /rollout/<id>/attempt/<n>/v1, or use its key",
        )
    who = Attribution(rollout_id, None if attempt is None else int(attempt), agent)
    _CALLER.set(who)
    return who


def _only(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) > 1:
        raise EndpointError(f"the header {name} is given {len(values)} times", hint="send it once")
    return values[0] if values else None


def _checked(name: str, value: str | None, form: re.Pattern[str]) -> str | None:
    if value is None or form.fullmatch(value):
        return value
    shown = value if len(value) <= 60 else value[:60] + "..."
    raise EndpointError(f"{name} is {shown!r}, which does not match {form.pattern}")


def _agree(what: str, in_path: str | None, in_header: str | None, in_key: str | None) -> str | None:
    if in_path is not None and in_header is not None and in_path != in_header:
        raise EndpointError(f"the path says {what} {in_path!r} and the header says {in_header!r}")
    claimed = in_header if in_path is None else in_path
    if claimed is not None and in_key is not None and claimed != in_key:
        raise EndpointError(f"the key is for {what} {in_key!r}, not for {claimed!r}", status=403)
    return in_key if claimed is None else claimed
