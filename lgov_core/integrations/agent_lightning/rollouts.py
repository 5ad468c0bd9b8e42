"""agent-lightning 1.0's rollouts and events: read from its JSON, kept in the trace store, and written as its JSON."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from lgov_core.errors import EndpointError
from lgov_core.gateway.access import KeyGrant
from lgov_core.scope import RolloutScope
from lgov_core.store import TraceStore
from lgov_core.trace.semconv import storable
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span, new_id
from lgov_core.wire.fields import an_object, flag, number, only_known, text

#: States of a rollout, and what may follow each. The last two are final.
MOVES: Final[Mapping[str, frozenset[str]]] = {
    "queuing": frozenset({"running", "failed"}),
    "running": frozenset({"succeeded", "failed"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
}
ENDED: Final = frozenset({"succeeded", "failed"})
FIRST_ATTEMPT: Final = "0"

EVENT_SPAN: Final = "lgov.event"
EVENT_TYPE: Final = "lgov.event.type"
EVENT_DATA: Final = "lgov.event.data"

#: The run to which the rollouts made over this API belong.
RUN_ID: Final = "agent-lightning"

#: The event type of rewards from keys that may not give final ones: trainers take the last ``reward`` for the attempt's.
_CALL_REWARD: Final = "call_reward"
_STATUS_SPAN: Final = "lgov.lightning.status"
_STATUS: Final = "lgov.lightning.status.body"
_STATUS_FIELDS: Final = ("state", "k8s_job_name", "last_attempt_id", "error_message")


def unprocessable(message: str) -> EndpointError:
    """The error for a body that is JSON but not what the API expects."""
    return EndpointError(message, status=422)


@contextmanager
def reading_fields() -> Generator[None]:
    """Turns errors about fields of a body into this API's status for them, 422."""
    try:
        yield
    except EndpointError as error:
        raise EndpointError(error.message, status=422, hint=error.hint) from error


def require_storable(**texts: str | None) -> None:
    """Raises `EndpointError` (422) for a NUL or a lone surrogate, which JSON can hold and not every store can keep."""
    for name, text_ in texts.items():
        if text_ and storable(text_) != text_:
            raise unprocessable(f"{name!r} contains a NUL or a lone surrogate")


def attempt_number(attempt_id: str) -> int:
    """The number of an attempt here, from 1, for agent-lightning's, a text from "0". Raises `EndpointError` (404)."""
    if not attempt_id.isascii() or not attempt_id.isdigit() or len(attempt_id) > 8:
        raise EndpointError(
            f"there is no attempt {attempt_id[:40]!r}", status=404, hint='attempts are "0", "1" and so on'
        )
    return int(attempt_id) + 1


@dataclass(slots=True)
class LightningRollout:
    """A rollout with what its clients gave it: ``document`` is what the store keeps as its input."""

    rollout_id: str
    document: Mapping[str, Any]
    created_at: float
    updated_at: float
    state: str = "queuing"
    version: int = 1
    status: dict[str, Any] = field(default_factory=dict[str, Any])
    deleted: bool = False

    @property
    def data_id(self) -> str:
        """The sample that its input names."""
        named = _object(self.document.get("input"))
        return str(named.get("data_id") or named.get("instance_id") or "")

    @property
    def task_id(self) -> str:
        """Its group: the sample that it names, else its input."""
        if self.data_id:
            return self.data_id
        written = json.dumps(self.document.get("input"), sort_keys=True, ensure_ascii=False, default=str)
        return f"input_{hashlib.sha256(written.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"

    def status_body(self) -> dict[str, Any]:
        """Its status as JSON."""
        fields = {name: self.status.get(name) for name in _STATUS_FIELDS}
        times = {"created_at": self.created_at, "updated_at": self.updated_at}
        return {**fields, "state": self.state, "version": self.version, **times}

    def body(self) -> dict[str, Any]:
        """It as JSON."""
        return {"rollout_id": self.rollout_id, **self.document, "status": self.status_body()}


@reading_fields()
def read_rollout(item: Any) -> tuple[str | None, dict[str, Any]]:
    """The id and the document of a new rollout. Raises `EndpointError` (422)."""
    if not isinstance(item, dict) or "input" not in item:
        raise unprocessable("each rollout is an object with an 'input'")
    fields = cast("dict[str, Any]", item)
    config = {"timeout_seconds": 3600, "local": None, "k8s": None, **an_object(fields, "config")}
    number(config, "timeout_seconds", None, whole=True)
    if isinstance(config["local"], dict):
        config["local"] = {"agent_class": None, "env_map": {}, **config["local"]}
    metadata = {"batch_idx": None, "sample_idx_in_batch": None, **an_object(fields, "metadata")}
    is_train = fields.get("is_train") is None or flag(fields, "is_train")
    return text(fields, "rollout_id"), {
        "input": fields["input"], "is_train": is_train, "config": config, "metadata": metadata
    }  # fmt: skip


@reading_fields()
def read_patch(body: Any) -> dict[str, Any]:
    """The fields of a status to change. Raises `EndpointError` (422) for those that cannot be changed."""
    if not isinstance(body, dict):
        raise unprocessable("only 'status' can be patched")
    only_known(cast("dict[str, Any]", body), ("status",), "a patch")
    status = an_object(cast("dict[str, Any]", body), "status")
    only_known(status, _STATUS_FIELDS, "a status")
    for name in status:
        text(status, name, "status.")
    if "state" in status and status["state"] not in MOVES:
        raise unprocessable(f"there is no state {status['state']!r}: there are {', '.join(MOVES)}")
    return dict(status)


def event_body(rollout_id: str, attempt: int, kind: str, at: float, data: Mapping[str, Any]) -> dict[str, Any]:
    """An event as JSON."""
    about = {"event_type": kind, "rollout_id": rollout_id, "attempt_id": str(attempt - 1), "timestamp": at}
    return {**about, "data": data}


def event_of_span(span: Span) -> dict[str, Any]:
    """The event that a span keeps."""
    kind, text_ = str(span.attributes.get(EVENT_TYPE)), span.attributes.get(EVENT_DATA)
    data = json.loads(text_) if isinstance(text_, str) else {}
    return event_body(span.rollout_id or "", span.attempt or 1, kind, span.started_at, data)


def event_of_call(call: CapturedCall, triplet: bool) -> dict[str, Any]:
    """The ``model_request`` event of a captured call: whole, or with its tokens only."""
    data: dict[str, Any] = {"response_id": call.response_id, "choice": call.choice, "http_status": 200, "status": "ok"}
    if triplet:
        data |= {
            "prompt_token_ids": list(call.prompt_ids or ()),
            "response_token_ids": list(call.response_ids or ()),
            "response_log_probs": None if call.logprobs is None else list(call.logprobs),
            "server": {"model": call.model, "version": call.weights_version},
        }
    else:
        response = call.response
        data |= {
            "model": call.model,
            "model_version": call.weights_version,
            "request": call.request,
            "response": response,
            "server": {"model": call.model, "endpoint": call.engine, "version": call.weights_version},
            "latency_ms": (call.ended_at - call.started_at) * 1000,
            "retry_count": 0,
            "usage": response.get("usage"),
            "finish_reason": call.finish_reason,
        }
    return event_body(call.rollout_id or "", call.attempt or 1, "model_request", call.ended_at, data)


def trimmed(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """A posted event for training: of a model request its tokens, of a reward its value, anything else whole."""
    data = cast("Mapping[str, Any]", event["data"])
    if event["event_type"] == "reward":
        kept = {name: data[name] for name in ("source", "reason") if name in data}
        return {**event, "data": {"value": data.get("value"), **kept}}
    if event["event_type"] != "model_request":
        return event
    whole, about = _object(data.get("response")), _object(data.get("server"))
    choices = whole.get("choices")
    choice = _object(choices[0] if isinstance(choices, list) and choices else None)
    kept = {name: data[name] for name in ("http_status", "status") if name in data}
    if "error" in whole:
        kept["error"] = whole["error"]
    return {
        **event,
        "data": {
            "prompt_token_ids": whole.get("prompt_token_ids") or choice.get("prompt_token_ids") or [],
            "response_token_ids": choice.get("token_ids") or [],
            "response_log_probs": _logprobs(choice.get("logprobs")),
            "server": {"model": about.get("model"), "version": about.get("version")},
            **kept,
        },
    }


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _logprobs(value: Any) -> list[float] | None:
    content = value.get("content") if isinstance(value, Mapping) else None
    if not isinstance(content, Sequence):
        return None
    try:
        logprobs = [float(item["logprob"]) for item in cast("Sequence[Any]", content)]
    except (KeyError, TypeError, ValueError):
        return None
    return logprobs if all(map(math.isfinite, logprobs)) else None


class LightningRollouts:
    """The state behind the routes. A rollout is one of the store's, its attempt "0" the store's attempt 1.

    A change is in the store before it is answered, and a new process finds it there. A deleted rollout is no longer shown;
    its calls, events and rewards stay in the store. A failed one without a final reward counts as an infrastructure
    failure, which is not training data. All methods block and may be called from any thread, which then take turns.
    """

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[str, LightningRollout] | None = None
        self._ended: list[str] = []

    def create(self, body: Any) -> list[dict[str, Any]]:
        """Makes rollouts; one whose id exists is given back as it is. Raises `EndpointError` (422): then none is made."""
        if not isinstance(body, list):
            raise unprocessable("the request must be a list of rollouts")
        requested = [read_rollout(item) for item in body]
        for rollout_id, _ in requested:
            if rollout_id is not None:
                _check_id(rollout_id)
        with self._lock:
            rollouts = self._all()
            result: list[LightningRollout] = []
            new: list[LightningRollout] = []
            for rollout_id, document in requested:
                rollout = rollouts.get(rollout_id) if rollout_id is not None else None
                rollout = rollout or next((entry for entry in new if entry.rollout_id == rollout_id), None)
                if rollout is not None and rollout.deleted:
                    raise EndpointError(f"rollout {rollout_id} was deleted", status=409, hint="use a fresh id")
                if rollout is None:
                    now = time.time()
                    rollout = LightningRollout(rollout_id or new_id("rol"), document, now, now)
                    require_storable(data_id=rollout.data_id)
                    new.append(rollout)
                result.append(rollout)
            self._store.add_rollouts(
                [Rollout(entry.rollout_id, entry.task_id, RUN_ID, entry.document, entry.created_at) for entry in new]
            )
            rollouts.update({entry.rollout_id: entry for entry in new})
            return [entry.body() for entry in result]

    def get(self, rollout_id: str) -> dict[str, Any]:
        """A rollout and the attempts of which something is known. Raises `EndpointError` (404)."""
        with self._lock:
            rollout = self._one(rollout_id)
        seen = {call.attempt for call in self._store.calls([rollout_id])}
        seen |= {span.attempt for span in self._own_spans(EVENT_SPAN, [rollout_id])}
        return {"rollout": rollout.body(), "attempts": [str(number - 1) for number in sorted(filter(None, seen))]}

    def exists(self, rollout_id: str) -> None:
        """Raises `EndpointError` (404) unless there is the rollout."""
        with self._lock:
            self._one(rollout_id)

    def in_states(self, states: Iterable[str], limit: int) -> list[dict[str, Any]]:
        """Rollouts that are in one of ``states``, the oldest first."""
        chosen = set(states)
        if not chosen or chosen - set(MOVES):
            raise unprocessable(f"'state_in' must be one of {', '.join(MOVES)}")
        with self._lock:
            rollouts = [rollout for rollout in self._all().values() if rollout.state in chosen and not rollout.deleted]
            return [rollout.body() for rollout in rollouts[: max(limit, 0)]]

    def statuses(self, ids: Any) -> dict[str, Any]:
        """The status of each of at most 256 rollouts, by id."""
        if not isinstance(ids, list) or len(ids) > 256 or not all(isinstance(value, str) for value in ids):
            raise unprocessable("the request must be a list of at most 256 rollout ids")
        with self._lock:
            return {rollout_id: self._one(rollout_id).status_body() for rollout_id in ids}

    def ended(self, after: int, limit: int) -> dict[str, Any]:
        """Rollouts that ended, in that order, from place ``after`` on. Places never change, also when one is deleted."""
        after, limit = max(after, 0), max(limit, 1)
        with self._lock:
            rollouts = self._all()
            page = self._ended[after : after + limit]
            items = [
                {
                    "rollout_id": rollout.rollout_id,
                    "state": rollout.state,
                    "data_id": rollout.data_id,
                    "is_train": rollout.document["is_train"],
                }
                for rollout in map(rollouts.__getitem__, page)
                if not rollout.deleted
            ]
            return {"items": items, "next_after": after + len(page), "total_terminal": len(self._ended)}

    def patch(self, rollout_id: str, body: Any) -> dict[str, Any]:
        """Changes the status. Raises `EndpointError`: 404, 409 for a change of state that is not allowed, 422."""
        changes = read_patch(body)
        with self._lock:
            rollout = self._one(rollout_id)
            if not changes:
                return rollout.body()
            state = changes.get("state", rollout.state)
            if "state" in changes and state not in MOVES[rollout.state]:
                raise EndpointError(f"rollout {rollout_id}: cannot go from {rollout.state} to {state}", status=409)
            status = {**rollout.status, **{name: value for name, value in changes.items() if name != "state"}}
            now = time.time()
            if "state" in changes:
                self._move(rollout, state, status.get("error_message"))
            self._write_status(rollout_id, {**status, "state": state, "version": rollout.version + 1, "at": now})
            rollout.state, rollout.status, rollout.version, rollout.updated_at = state, status, rollout.version + 1, now
            if "state" in changes and state in ENDED:
                self._ended.append(rollout_id)
            return rollout.body()

    def delete(self, rollout_id: str) -> None:
        """Shows it no more. One that does not exist counts as deleted."""
        with self._lock:
            rollout = self._all().get(rollout_id)
            if rollout is None or rollout.deleted:
                return
            status = {**rollout.status, "state": rollout.state, "version": rollout.version, "deleted": True}
            self._write_status(rollout_id, status)
            rollout.deleted = True
            rollout.document = {"input": None, "is_train": rollout.document["is_train"], "config": {}, "metadata": {}}

    def add_event(self, rollout_id: str, attempt: str, body: Any, grant: KeyGrant) -> dict[str, Any]:
        """Keeps an event; one of type ``reward`` is a reward too.

        Its ``data`` may name the call that earned it (``response_id``, with the ``choice`` of its reply, or
        ``tool_call_id``) and a ``dimension``; with neither it is the attempt's final reward, for which the key needs the
        right. An ``event_id`` makes it safe to send twice. Raises `EndpointError`: 403, 404, 422.
        """
        at = attempt_number(attempt)
        with reading_fields():
            if not isinstance(body, dict) or not isinstance(body.get("event_type"), str):
                raise unprocessable("an event is an object with an 'event_type' and 'data'")
            kind, data, event_id = body["event_type"], an_object(body, "data"), text(body, "event_id")
        require_storable(event_id=event_id)
        named = event_id is not None
        # An id of one key must not collide with an id of another: of another rollout (no rollout id contains a slash),
        # of another attempt, or of a key that may give final rewards.
        whose = f"{rollout_id}/{at}/{'judge' if grant.may_judge else 'agent'}"
        event_id = f"evt_{whose}/{event_id}" if named else new_id("evt")
        if kind == "model_request" and grant.rollout_id is not None:
            raise EndpointError("the key of a rollout may not report model requests", status=403)
        with self._lock:
            self._one(rollout_id)
            if kind == "reward":
                self._reward(rollout_id, at, data, event_id, grant)
                if not grant.may_judge:
                    kind = _CALL_REWARD
            if named and any(span.span_id == event_id for span in self._own_spans(EVENT_SPAN, [rollout_id])):
                return event_body(rollout_id, at, kind, time.time(), data)
            return self._keep_event(rollout_id, at, kind, data, event_id)

    def note_failed_call(self, rollout_id: str, attempt: str, status: int, response: Mapping[str, Any]) -> None:
        """Keeps that a call of a model was answered with an error."""
        data = {"response": dict(response), "http_status": status, "status": "error", "server": {}}
        self._keep_event(rollout_id, attempt_number(attempt), "model_request", data, new_id("evt"))

    def events(self, rollout_id: str, kind: str | None, form: str | None) -> list[Mapping[str, Any]]:
        """The events and calls of the last attempt, oldest first; all of them, also those with equal prompts.

        ``form`` ``triplet`` keeps what training needs. Raises `EndpointError` (404).
        """
        with self._lock:
            last = self._one(rollout_id).status.get("last_attempt_id") or FIRST_ATTEMPT
        try:
            number = attempt_number(last)
        except EndpointError:
            return []
        triplet = form == "triplet"
        events: list[Mapping[str, Any]] = []
        for span in self._own_spans(EVENT_SPAN, [rollout_id]):
            if span.attempt == number:
                event = event_of_span(span)
                events.append(trimmed(event) if triplet else event)
        if kind in (None, "model_request"):
            calls = (call for call in self._store.calls([rollout_id]) if call.attempt == number)
            events += [event_of_call(call, triplet) for call in calls]
        events.sort(key=lambda event: event["timestamp"])
        return [event for event in events if kind in (None, event["event_type"])]

    def _keep_event(
        self, rollout_id: str, number: int, kind: str, data: Mapping[str, Any], event_id: str
    ) -> dict[str, Any]:
        now = time.time()
        attributes = {EVENT_TYPE: kind, EVENT_DATA: json.dumps(data)}
        span = Span(EVENT_SPAN, event_id, now, now, attributes, rollout_id, number, claimed=True)
        self._store.add_spans([span])
        return event_body(rollout_id, number, kind, now, data)

    def _reward(self, rollout_id: str, attempt: int, data: Mapping[str, Any], event_id: str, grant: KeyGrant) -> None:
        with reading_fields():
            value = number(data, "value", None, low=-sys.float_info.max, high=sys.float_info.max)
            dimension = "task" if (named := text(data, "dimension")) is None else named
            response_id, tool_call_id = text(data, "response_id"), text(data, "tool_call_id")
            choice = number(data, "choice", None, low=0, high=2**31 - 1, whole=True)
        if value is None or not dimension:
            raise unprocessable("a reward needs a finite number as 'value', and a 'dimension' that is not empty")
        require_storable(dimension=dimension, response_id=response_id, tool_call_id=tool_call_id)
        if response_id is None and tool_call_id is None and not grant.may_judge:
            raise EndpointError(
                "this key does not give an attempt its final reward",
                status=403,
                hint="name the call that earned it, or have a key issued with final_reward",
            )
        reward_id = f"rwd_{event_id}"
        at = None if choice is None else int(choice)
        reward = Reward(float(value), dimension, rollout_id, attempt, response_id, tool_call_id, "event", reward_id, at)
        if not any(existing.reward_id == reward_id for existing in self._store.rewards([rollout_id])):
            self._store.add_rewards([reward])

    def _own_spans(self, name: str, rollout_ids: list[str]) -> list[Span]:
        """Those written here: spans sent by clients have a trace id."""
        return [span for span in self._store.spans(rollout_ids) if span.name == name and span.trace_id is None]

    def _one(self, rollout_id: str) -> LightningRollout:
        rollout = self._all().get(rollout_id)
        if rollout is None or rollout.deleted:
            raise EndpointError(f"Rollout not found: {rollout_id[:200]}", status=404)
        return rollout

    def _all(self) -> dict[str, LightningRollout]:
        if self._known is None:
            self._known, self._ended = self._load()
        return self._known

    def _load(self) -> tuple[dict[str, LightningRollout], list[str]]:
        rollouts = self._store.rollouts(run_id=RUN_ID)
        by_id = {
            stored.rollout_id: LightningRollout(stored.rollout_id, stored.input, stored.created_at, stored.created_at)
            for stored in rollouts
        }
        ended: dict[str, float] = {}
        spans = self._own_spans(_STATUS_SPAN, list(by_id)) if by_id else []
        for span in sorted(spans, key=lambda span: span.started_at):
            rollout, text = by_id.get(span.rollout_id or ""), span.attributes.get(_STATUS)
            if rollout is None or not isinstance(text, str):
                continue
            status = json.loads(text)
            rollout.state, rollout.version = status.pop("state"), status.pop("version")
            rollout.updated_at = status.pop("at", span.started_at)
            rollout.deleted = status.pop("deleted", False)
            rollout.status = status
            if rollout.state in ENDED:
                ended.setdefault(rollout.rollout_id, span.started_at)
        return by_id, sorted(ended, key=ended.__getitem__)

    def _move(self, rollout: LightningRollout, state: str, error: str | None) -> None:
        rollout_id = rollout.rollout_id
        outcomes = {attempt.attempt: attempt.outcome for attempt in self._store.attempts([rollout_id])}
        if 1 not in outcomes:
            self._store.start_attempt(rollout_id, 1)
        if state in ENDED and outcomes.get(1) is None:
            judged = any(
                reward.response_id is None and reward.tool_call_id is None
                for reward in self._store.rewards([rollout_id])
            )
            failed = Outcome.FAILED if judged else Outcome.INFRASTRUCTURE
            outcome = Outcome.SUCCEEDED if state == "succeeded" else failed
            self._store.finish_attempt(rollout_id, 1, outcome, error=error)

    def _write_status(self, rollout_id: str, status: Mapping[str, Any]) -> None:
        now = time.time()
        attributes = {_STATUS: json.dumps(status)}
        self._store.add_spans([Span(_STATUS_SPAN, new_id("span"), now, now, attributes, rollout_id)])


def _check_id(rollout_id: str) -> None:
    try:
        RolloutScope(rollout_id)
        fine = rollout_id.isascii() and rollout_id.isprintable() and len(rollout_id) <= 200 and " " not in rollout_id
    except Exception:  # noqa: BLE001 - any failure makes the id invalid
        fine = False
    if not fine:
        raise unprocessable(f"{rollout_id[:60]!r} is not a valid rollout id: printable ASCII without space and slash")
