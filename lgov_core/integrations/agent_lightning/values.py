"""agent-lightning 1.0's rollouts and events as JSON: read with what they may hold, and written from what the store has."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from lgov_core.errors import EndpointError
from lgov_core.trace.semconv import storable
from lgov_core.types import CapturedCall, Span
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
    return {
        "event_type": kind,
        "rollout_id": rollout_id,
        "attempt_id": str(attempt - 1),
        "timestamp": at,
        "data": data,
    }


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
