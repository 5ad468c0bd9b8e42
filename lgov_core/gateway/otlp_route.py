"""``POST /v1/traces``: spans from any OpenTelemetry exporter, over OTLP/HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from lgov_core.errors import EndpointError, LgovError, TraceError
from lgov_core.gateway.attribution import Attribution, attribute, bearer_key
from lgov_core.gateway.body import read_body
from lgov_core.gateway.keys import KeyGrant, KeyRing
from lgov_core.store.protocol import TraceStore
from lgov_core.trace import identity
from lgov_core.trace.mapping import states_result
from lgov_core.trace.otlp import CONTENT_TYPE_OF, Protocol, decode_traces, protocol_of, response_body, status_body
from lgov_core.types import Span

#: A store that fails for a moment is asked again after so many seconds.
_RETRY_AFTER_S = 5

#: Unpacked, a body may be so many times as long as it may be packed.
_INFLATION = 8
_PROBLEMS_TOLD = 5


@dataclass(slots=True)
class TraceCounts:
    """How many spans were stored, could not be read, and were not the sender's to send."""

    stored: int = 0
    unreadable: int = 0
    refused: int = 0


class TracesRoute:
    """The handler, for one event loop. ``max_body`` is in bytes, as sent.

    Who sends is told by the key, the headers and the path, as for a model call. A request that belongs to an attempt
    may hold spans of that attempt only: those that name no rollout become its own, those that name another are refused
    and counted; and unless its key may give rewards, a span that states the attempt's final reward or its outcome is
    refused too. The admin key may send spans of any rollout.

    What is stored is marked as a claim (`Span.claimed`). The answer comes after the commit, in the request's own format:
    200 with the number of rejected spans, or a ``google.rpc.Status``. A store that cannot write is a 503, which
    exporters try again.
    """

    def __init__(self, store: TraceStore | None, keys: KeyRing, *, max_body: int) -> None:
        self._store = store
        self._keys = keys
        self._max_body = max_body
        self.counts = TraceCounts()

    async def receive(self, request: Request) -> Response:
        """``POST .../v1/traces``."""
        protocol: Protocol = "json"
        try:
            grant = self._keys.check(bearer_key(request.headers))
            who = attribute(request.headers, request.path_params, self._keys, allow_unattributed=True)
            protocol = protocol_of(request.headers.get("content-type"))
            if self._store is None:
                raise EndpointError("this endpoint keeps no record", status=501, hint="start it with a store")
            body = await read_body(request, self._max_body)
            encoding = request.headers.get("content-encoding")
            rejected, problems = await asyncio.to_thread(self._keep, self._store, body, protocol, encoding, who, grant)
        except LgovError as error:
            return _refusal(protocol, error)
        return Response(response_body(protocol, rejected, problems), media_type=CONTENT_TYPE_OF[protocol])

    def _keep(
        self,
        store: TraceStore,
        body: bytes,
        protocol: Protocol,
        encoding: str | None,
        who: Attribution,
        grant: KeyGrant,
    ) -> tuple[int, list[str]]:
        limit = self._max_body * _INFLATION
        found = decode_traces(body, CONTENT_TYPE_OF[protocol], encoding, max_inflated=limit)
        refused: Counter[str] = Counter()
        spans: list[Span] = []
        for span in found:
            why = _why_not(span, who, grant)
            if why is None:
                spans.append(_owned(span, who))
            else:
                refused[why] += 1
        store.add_spans(spans)
        self.counts.stored += len(spans)
        self.counts.unreadable += found.rejected
        self.counts.refused += refused.total()
        told = [f"{why} ({count} spans)" for why, count in refused.most_common(_PROBLEMS_TOLD)]
        return found.rejected + refused.total(), [*found.problems, *told]


def _why_not(span: Span, who: Attribution, grant: KeyGrant) -> str | None:
    """Why a span is not the sender's to send, or None."""
    if who.rollout_id is None:
        return None
    named = span.rollout_id is not None or identity.names_rollout(span.attributes)
    if named and span.rollout_id != who.rollout_id:
        return f"the request belongs to rollout {who.rollout_id}, the span to another"
    if span.attempt not in (None, who.attempt):
        return f"the request belongs to attempt {who.attempt}, the span to another"
    if grant.rollout_id is not None and not grant.admin and states_result(span):
        return "the key of an attempt does not give its final reward or its outcome"
    return None


def _owned(span: Span, who: Attribution) -> Span:
    if who.rollout_id is None:
        return span
    return replace(span, rollout_id=who.rollout_id, attempt=who.attempt)


def _refusal(protocol: Protocol, error: LgovError) -> Response:
    status = error.status if isinstance(error, EndpointError | TraceError) else 503
    headers = {"retry-after": str(_RETRY_AFTER_S)} if status == 503 else {}
    return Response(status_body(protocol, status, str(error)), status, headers, CONTENT_TYPE_OF[protocol])
