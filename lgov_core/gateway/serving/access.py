"""Who may use which route, and which rollout a request belongs to.

Every route of the endpoint has a rule; one without is not mounted. Three ways name a rollout: headers (``x-lgov-rollout-id``,
``x-lgov-attempt``, ``x-lgov-agent``: what ``OPENAI_CUSTOM_HEADERS`` sends; an agent's name may be percent-encoded), the path
prefix ``/rollout/{id}/attempt/{n}``, and a scoped key. Where several are given they have to agree: nothing is guessed.
"""

from __future__ import annotations

import contextvars
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lgov_core.errors import EndpointError, LgovError
from lgov_core.gateway.serving.keys import KeyGrant, KeyRing
from lgov_core.gateway.serving.limits import Admission, BodyBudget, LimitedRequest, Limits
from lgov_core.gateway.serving.metrics import Metrics

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
    excerpt = value if len(value) <= 60 else value[:60] + "..."
    raise EndpointError(f"{name} is {excerpt!r}, which does not match {form.pattern}")


def _agree(what: str, in_path: str | None, in_header: str | None, in_key: str | None) -> str | None:
    if in_path is not None and in_header is not None and in_path != in_header:
        raise EndpointError(f"the path says {what} {in_path!r} and the header says {in_header!r}")
    claimed = in_header if in_path is None else in_path
    if claimed is not None and in_key is not None and claimed != in_key:
        raise EndpointError(f"the key is for {what} {in_key!r}, not for {claimed!r}", status=403)
    return in_key if claimed is None else claimed


_LOG = logging.getLogger("lgov.gateway")


class Access(StrEnum):
    """Who may use a route.

    ``open``: everybody. ``agent``: the bearer of a key, for its rollout only (the path parameter ``rollout_id`` is checked
    here, ids in the body by the route). ``admin``: an admin key; where keys are not required also a caller without one.
    """

    OPEN = "open"
    AGENT = "agent"
    ADMIN = "admin"


class RuledRoute(Route):
    """A route with its access rule. ``is_call``: it asks a model, so it is admitted (`Admission`) and can be paused."""

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, methods: Sequence[str], access: Access, is_call: bool = False
    ) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.access = access
        self.is_call = is_call


class Guard:
    """Wraps every route: checks keys and limits, admits calls, counts requests. For one event loop."""

    def __init__(self, keys: KeyRing, limits: Limits, admission: Admission, metrics: Metrics) -> None:
        self._keys = keys
        self._limits = limits
        self._admission = admission
        self._metrics = metrics
        self.bodies = BodyBudget(limits)

    def before(self, route: RuledRoute) -> RuledRoute:
        """The route, with this guard before it."""
        app = route.app

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            await self._serve(route, app, scope, receive, send)

        route.app = guarded
        return route

    def _grant(self, scope: Scope, access: Access) -> KeyGrant:
        """Returns the request's rights. Raises `EndpointError`: 401 for a bad key, 403 for one not meant for the route."""
        grant = self._keys.check(bearer_key(Headers(scope=scope)))
        if access is Access.ADMIN and not grant.admin and not grant.anonymous:
            raise EndpointError("the key of a rollout may not do this", status=403, hint="it takes an admin key")
        named = scope["path_params"].get("rollout_id")
        if named is not None and grant.rollout_id not in (None, named):
            raise EndpointError(f"the key is for rollout {grant.rollout_id!r}, not for {named!r}", status=403)
        return grant

    async def _serve(self, route: RuledRoute, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        limited = LimitedRequest(self._limits, self.bodies, receive, send)
        self._metrics.began(route.path)
        try:
            scope["lgov.request"] = limited
            if route.access is not Access.OPEN:
                scope["lgov.grant"] = self._grant(scope, route.access)
            if route.is_call:
                await self._admission.enter()
            try:
                await app(scope, limited.receive, limited.send)
            finally:
                if route.is_call:
                    self._admission.leave()
        except Exception as error:
            status = error.status if isinstance(error, EndpointError) else 500
            limited.status = limited.status or status  # what the error handler is about to send
            if isinstance(error, LgovError | HTTPException | OSError) or limited.first_at is not None:
                raise
            _LOG.error("%s failed", route.path, exc_info=error)
            raise EndpointError(f"{type(error).__name__}: {error}", status=500) from error
        finally:
            limited.release()
            took = time.perf_counter() - began
            first = None if limited.first_at is None else limited.first_at - began
            self._metrics.ended(route.path, limited.status, took, first)


def grant_of(scope: Scope) -> KeyGrant:
    """The rights of a request's key, as its guard found them. Fails closed: an error where there was no guard."""
    grant = scope.get("lgov.grant")
    if not isinstance(grant, KeyGrant):
        raise EndpointError("this route has no rule of who may use it", status=500)
    return grant
