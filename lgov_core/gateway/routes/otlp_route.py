"""``POST /v1/traces``: spans from any OpenTelemetry exporter, over OTLP/HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from lgov_core.errors import EndpointError, LgovError, TraceError
from lgov_core.gateway.routes.bodies import ROLLOUT_PREFIX, read_body
from lgov_core.gateway.serving.access import (
    ATTEMPT_HEADER,
    ROLLOUT_HEADER,
    Access,
    Attribution,
    RuledRoute,
    attribute,
    bearer_key,
)
from lgov_core.gateway.serving.keys import KeyGrant, KeyRing
from lgov_core.gateway.serving.metrics import Reading
from lgov_core.store import TraceStore
from lgov_core.trace import semconv
from lgov_core.trace.canonical import states_result
from lgov_core.trace.otlp_http import (
    CONTENT_TYPE_OF,
    Protocol,
    answered_in,
    decode_traces,
    protocol_of,
    response_body,
    status_body,
)
from lgov_core.types import Span

#: Seconds after which exporters retry when the store fails.
_RETRY_AFTER_S = 5

#: A decompressed body may be this many times the limit, and never longer than `_MAX_INFLATED` bytes.
_INFLATION = 8
_MAX_INFLATED = 32 * 1024 * 1024
#: Requests decoded at the same time: decoding takes CPU, and several times the body in memory.
_AT_ONCE = 2
_PROBLEMS_SHOWN = 5
_PATH = "/v1/traces"

Handler: TypeAlias = Callable[[Request, Exception], Awaitable[Response]]


class TracesRoute:
    """The handler, for one event loop. ``max_body`` is in bytes, as sent.

    The sender is named by the key, the headers and the path, as for a model call. In a request of an attempt, spans that
    name no rollout become its own; those that name another are refused and counted, as is one that states the attempt's
    final reward or outcome, unless the key may give rewards. The admin key may send spans of any rollout.

    Spans are stored as claims (`Span.claimed`). The answer comes after the commit, in the request's own format: 200 with the
    number of rejected spans, or a ``google.rpc.Status``. A store that cannot write is a 503, which exporters try again.
    """

    def __init__(self, store: TraceStore | None, keys: KeyRing, *, max_body: int) -> None:
        self._store = store
        self._keys = keys
        self._max_body = max_body
        self._places = asyncio.Semaphore(_AT_ONCE)
        #: How many spans were stored, could not be read, and were not the sender's to send.
        self._counts: dict[str, int] = {"stored": 0, "unreadable": 0, "refused": 0}

    def routes(self) -> list[RuledRoute]:
        """The routes that an application mounts."""
        return [
            RuledRoute(f"{prefix}{_PATH}", self.receive, methods=["POST"], access=Access.AGENT)
            for prefix in ("", ROLLOUT_PREFIX)
        ]

    def refusing(self, on_error: Handler) -> Handler:
        """``on_error``, except that what this route refuses is answered as OTLP has it, also where others refuse it."""

        async def answer(request: Request, error: Exception) -> Response:
            if isinstance(error, LgovError) and request.url.path.endswith(_PATH):
                return _refusal(answered_in(request.headers.get("content-type")), error)
            return await on_error(request, error)

        return answer

    def readings(self) -> Iterable[Reading]:
        """The metrics of the route."""
        yield (
            "counter",
            "lgov_received_spans",
            "Spans received over OTLP, by what was done with them.",
            "what",
            dict(self._counts),
        )

    async def receive(self, request: Request) -> Response:
        """``POST .../v1/traces``."""
        content_type = request.headers.get("content-type")
        protocol = answered_in(content_type)
        try:
            grant = self._keys.check(bearer_key(request.headers))
            who = self._sender(request, grant)
            protocol = protocol_of(content_type)
            if self._store is None:
                raise EndpointError("this endpoint keeps no record", status=501, hint="start it with a store")
            body = await read_body(request, self._max_body)
            encoding = request.headers.get("content-encoding")
            async with self._places:
                rejected, problems = await asyncio.to_thread(
                    self._keep, self._store, body, protocol, encoding, who, grant
                )
        except LgovError as error:
            return _refusal(protocol, error)
        return Response(response_body(protocol, rejected, problems), media_type=CONTENT_TYPE_OF[protocol])

    def _sender(self, request: Request, grant: KeyGrant) -> Attribution:
        """The sender. With a key of all attempts at a rollout the spans may name their attempt."""
        named = ATTEMPT_HEADER in request.headers or ROLLOUT_HEADER in request.headers or request.path_params
        if grant.rollout_id is not None and grant.attempt is None and not named:
            return Attribution(grant.rollout_id, None)
        return attribute(request.headers, request.path_params, grant, allow_unattributed=True)

    def _keep(
        self,
        store: TraceStore,
        body: bytes,
        protocol: Protocol,
        encoding: str | None,
        who: Attribution,
        grant: KeyGrant,
    ) -> tuple[int, list[str]]:
        limit = max(self._max_body, min(self._max_body * _INFLATION, _MAX_INFLATED))
        traces = decode_traces(body, CONTENT_TYPE_OF[protocol], encoding, max_inflated=limit)
        refused: Counter[str] = Counter()
        spans: list[Span] = []
        for span in traces:
            if (why := _why_not(span, who, grant)) is not None:
                refused[why] += 1
            elif who.rollout_id is None:
                spans.append(span)
            else:
                attempt = span.attempt if who.attempt is None else who.attempt
                spans.append(replace(span, rollout_id=who.rollout_id, attempt=attempt))
        self._counts["stored"] += store.add_spans(spans)
        self._counts["unreadable"] += traces.rejected
        self._counts["refused"] += refused.total()
        problems = [f"{why} ({count} spans)" for why, count in refused.most_common(_PROBLEMS_SHOWN)]
        return traces.rejected + refused.total(), [*traces.problems, *problems]


def _why_not(span: Span, who: Attribution, grant: KeyGrant) -> str | None:
    """Why a span is not the sender's to send, or None."""
    if who.rollout_id is None:
        return None
    named = span.rollout_id is not None or semconv.names_rollout(span.attributes)
    if named and span.rollout_id != who.rollout_id:
        return f"the request belongs to rollout {who.rollout_id}, the span to another"
    if who.attempt is not None and span.attempt not in (None, who.attempt):
        return f"the request belongs to attempt {who.attempt}, the span to another"
    if not grant.may_judge and states_result(span):
        return "the key of an attempt does not give its final reward or its outcome"
    return None


def _refusal(protocol: Protocol, error: LgovError) -> Response:
    status = error.status if isinstance(error, EndpointError | TraceError) else 503
    headers = {"retry-after": str(_RETRY_AFTER_S)} if status == 503 else {}
    return Response(status_body(protocol, status, str(error)), status, headers, CONTENT_TYPE_OF[protocol])
