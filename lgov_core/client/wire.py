"""The messages between client and server, as JSON values. Both sides use these functions."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

import lgov_core
from lgov_core._util.json_text import json_object
from lgov_core._util.schema import checked
from lgov_core.errors import ClientError
from lgov_core.types import Outcome, Reward, Span, SpanEvent

#: Of this form of talking. A client and a server of different numbers do not work together.
PROTOCOL: Final = 1
PROTOCOL_HEADER: Final = "x-lgov-protocol"
VERSION_HEADER: Final = "x-lgov-version"
#: Has the server's `first_hand_key`: what comes with it is kept as seen there, not as a claim.
FIRST_HAND_HEADER: Final = "x-lgov-first-hand"

#: States of a run after which nothing comes.
ENDED: Final = frozenset({"done", "failed", "stopped"})


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at a task, for a worker. ``model_api`` is where its agent calls the model; ``timeout_s`` bounds it in
    seconds.
    """

    rollout_id: str
    attempt: int
    task_id: str
    mode: str
    task: Mapping[str, Any]
    model_api: str
    model: str
    timeout_s: float

    @property
    def key(self) -> tuple[str, int]:
        """Rollout and attempt."""
        return self.rollout_id, self.attempt


@dataclass(frozen=True, slots=True)
class Report:
    """How an attempt ended, as its worker saw it.

    A reward names the call that earned it, or none: then it is the attempt's. ``counts`` are the governor's, and
    ``bad_reward``. ``result`` are JSON values that are kept with the attempt. An agent may return a report instead of a reward.
    """

    outcome: Outcome
    rewards: tuple[Reward, ...] = ()
    spans: tuple[Span, ...] = ()
    error: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    result: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_json(self) -> dict[str, Any]:
        """It as JSON values."""
        return {
            "outcome": self.outcome.value,
            "rewards": [asdict(reward) for reward in self.rewards],
            "spans": [
                {
                    **{name: getattr(span, name) for name in _SpanBody.__struct_fields__},
                    "attributes": dict(span.attributes),
                    "events": [[event.name, event.at, dict(event.attributes)] for event in span.events],
                }
                for span in self.spans
            ],
            "error": self.error,
            "counts": dict(self.counts),
            "result": dict(self.result),
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Report:
        """Reads what `as_json` wrote. Raises ValueError for anything else."""
        return checked(value, ReportBody).report()


class _EventBody(msgspec.Struct, frozen=True, array_like=True):
    name: str
    at: float
    attributes: dict[str, Any]


class _SpanBody(msgspec.Struct, frozen=True):
    name: str
    span_id: str
    started_at: float
    ended_at: float | None
    attributes: dict[str, Any]
    rollout_id: str | None
    attempt: int | None
    parent_id: str | None
    trace_id: str | None
    events: list[_EventBody]

    def span(self) -> Span:
        """The span, as a claim: it came from outside."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        values["events"] = tuple(SpanEvent(event.name, event.at, event.attributes) for event in self.events)
        return Span(**values, claimed=True)


class ReportBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a report as `Report.as_json` writes them."""

    outcome: Outcome
    rewards: list[Reward]
    spans: list[_SpanBody]
    error: str | None
    counts: dict[str, int]
    result: dict[str, Any]

    def report(self) -> Report:
        """The report; its spans are claims."""
        spans = tuple(span.span() for span in self.spans)
        return Report(self.outcome, tuple(self.rewards), spans, self.error, self.counts, self.result)


#: Answers after which the same request may be sent again.
_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
_LOOPBACK: Final = ("127.", "localhost", "::1")


class ServerConnection:
    """Requests to one server, from any thread.

    ``key`` is an admin key. A request that meets no server, or a busy one, is repeated for up to ``patience_s``
    seconds: every request of the protocol may be sent twice. Raises `ClientError`: no server, another version, or a
    refusal. ``first_hand`` is for `FIRST_HAND_HEADER`.
    """

    def __init__(
        self, url: str, *, key: str | None = None, patience_s: float = 60.0, first_hand: str | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClientError(f"{url!r} is not a server's URL", hint="such as http://localhost:8000")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.patience_s = patience_s
        self._headers = {
            "content-type": "application/json",
            PROTOCOL_HEADER: str(PROTOCOL),
            VERSION_HEADER: lgov_core.__version__,
            **({} if key is None else {"authorization": f"Bearer {key}"}),
            **({} if first_hand is None else {FIRST_HAND_HEADER: first_hand}),
        }
        # What a machine says to itself goes through no proxy.
        own = parts.hostname.startswith(_LOOPBACK)
        self._opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if own else []))

    def get(self, path: str) -> dict[str, Any]:
        """The answer to ``GET path``."""
        return self._ask("GET", path, None, 30.0, None)

    def post(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float = 30.0, patience_s: float | None = None
    ) -> dict[str, Any]:
        """The answer to ``POST path`` with a JSON object."""
        return self._ask("POST", path, json.dumps(body, allow_nan=False).encode(), timeout_s, patience_s)

    def _ask(
        self, method: str, path: str, body: bytes | None, timeout_s: float, patience_s: float | None
    ) -> dict[str, Any]:
        patience = self.patience_s if patience_s is None else patience_s
        until, pause = time.monotonic() + patience, 0.05
        while True:
            request = urllib.request.Request(f"{self.url}{path}", body, self._headers, method=method)
            try:
                with self._opener.open(request, timeout=timeout_s) as answer:
                    reply = json_object(answer.read())
                if reply is None:
                    hint = "is this a training server of lgov?"
                    raise ClientError("the server's reply is not a JSON object", hint=hint)
                return reply
            except urllib.error.HTTPError as error:
                refused = self._refused(error, path)
                if error.code not in _AGAIN or time.monotonic() + pause > until:
                    raise refused from None
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() + pause > until:
                    reason = getattr(error, "reason", None) or error
                    raise ClientError(
                        f"there is no answer from {self.url}: {reason}",
                        hint="is the server running? check the address, or AGENT_LIGHTNING_SERVER_URL",
                    ) from error
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _refused(self, error: urllib.error.HTTPError, path: str) -> ClientError:
        raw = error.read()
        try:
            document: Any = json.loads(raw)
            detail = document.get("error") or document.get("detail") or document
            message = detail.get("message") if isinstance(detail, dict) else detail
        except (ValueError, AttributeError):
            message = raw[:200].decode(errors="replace")
        if error.code == 404 and path == "/train/about":
            return ClientError(
                f"{self.url} is not a training server", status=404, hint="start one with python -m lgov_core.server"
            )
        if error.code in (401, 403):
            return ClientError(
                f"{self.url} refuses the key: {message}", status=error.code, hint="pass key=, an admin key"
            )
        return ClientError(f"{self.url} refuses: {message}", status=error.code)
