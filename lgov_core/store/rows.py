"""Values as table rows and back: pure functions. What cannot be kept exactly raises `StoreError`; nothing is written then.

A reply is stored without the prompt's token ids, which have a column of their own: a server that is asked for token ids
repeats those of the whole prompt in each reply, which as text would take space that grows with the square of the turns. What is
left out is read back unchanged.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import eq
from typing import Any, Final, TypeAlias

from lgov_core._util.json_text import ReceivedBody, token_ids, wire_text
from lgov_core.errors import StoreError
from lgov_core.store.rollout_states import QueueEntry, RolloutConfig, RolloutState
from lgov_core.types import Attempt, CapturedCall, JSONValue, Outcome, Reward, Rollout, Span, SpanEvent


def stored_text(value: JSONValue | Mapping[str, Any] | Sequence[Any], what: str) -> str:
    """``value`` as JSON text in ASCII. What JSON cannot hold raises `StoreError` that names ``what``."""
    try:
        return _WRITE(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the {what} cannot be written as JSON: {error}", hint="give plain JSON values") from error


def object_text(values: Mapping[str, str]) -> str:
    """The JSON text of an object, from the JSON texts of its values."""
    return "{" + ",".join(f"{_WRITE(name)}:{text}" for name, text in values.items()) + "}"


def object_values(text: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The inverse of `object_text`: the JSON texts of the values, and the values, by name."""
    texts: dict[str, str] = {}
    values: dict[str, Any] = {}
    end = 0
    while text[end] != "}" and text != "{}":
        name, at = _DECODER.raw_decode(text, end + 1)
        values[name], end = _DECODER.raw_decode(text, at + 1)
        texts[name] = text[at + 1 : end]
    return texts, values


def text_name(name: Any) -> str:
    """``name``, which must be a text."""
    if not isinstance(name, str):
        raise StoreError(f"a request has the name {name!r}, which is not a text", hint="give plain JSON values")
    return name


def readable(text: str) -> str:
    """``text`` as every database can store it: lone surrogates and NUL are written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_WRITE = json.JSONEncoder(default=_plain, check_circular=False, separators=(",", ":")).encode
_DECODER = json.JSONDecoder()
_TOKEN_IDS = "token ids are integers from 0, below 2^31"


def token_blob(ids: Sequence[int], what: str = "token ids") -> bytes:
    """Token ids as they are stored. Raises `StoreError` that names ``what`` for what is not an integer from 0, below 2^31."""
    packed = blob("i", ids, what) or b""
    if min(ids, default=0) < 0:
        raise StoreError(f"the {what} cannot be stored: {min(ids)} is below 0", hint=_TOKEN_IDS)
    return packed


def logprob_blob(values: Sequence[float] | None, what: str) -> bytes | None:
    """In 32 bits each where that keeps every one exactly, which it does for what a model computed in 32 bits."""
    if values is not None:
        try:
            single = array("f", values)
        except (TypeError, OverflowError):
            return blob("d", values, what)
        if all(map(eq, single, values)):
            return blob("f", single, what)
    return blob("d", values, what)


def blob(typecode: str, values: Iterable[float] | None, what: str) -> bytes | None:
    """Numbers as little-endian values of an `array.array` type. Raises `StoreError` that names ``what``."""
    if values is None:
        return None
    try:
        packed: array[Any] = array(typecode, values)
    except (TypeError, OverflowError) as error:
        raise StoreError(f"the {what} cannot be stored: {error}", hint=_TOKEN_IDS) from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def numbers(typecode: str, stored: bytes | None) -> tuple[Any, ...] | None:
    """Reads the numbers that `blob` wrote."""
    if stored is None:
        return None
    unpacked: array[Any] = array(typecode)
    unpacked.frombytes(stored)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return tuple(unpacked)


_NAME: Final = "prompt_token_ids"
#: The letter before a text without the ids, by where they were; a JSON object begins with neither.
_IN_BODY: Final = "b"
_IN_CHOICE: Final = "c"


def reply_text(call: CapturedCall) -> str:
    """The JSON text of the reply of ``call``.

    Where the reply repeats the call's prompt ids, they are replaced by null, and a letter before the text says where:
    ``b`` for the reply's own ``prompt_token_ids``, ``c`` for those of its only choice. Raises `StoreError` for what JSON
    cannot hold.
    """
    response, what = call.response, f"response of call {call.response_id}"
    if call.prompt_ids:
        if _repeats(response, call.prompt_ids):
            return _IN_BODY + _reply_text(response, {_NAME: None}, what)
        choices = response.get("choices")
        if isinstance(choices, list | tuple) and len(choices) == 1 and _repeats(choices[0], call.prompt_ids):
            return _IN_CHOICE + _reply_text(response, {"choices": [{**choices[0], _NAME: None}]}, what)
    return _reply_text(response, {}, what)


def _reply_text(response: Mapping[str, Any], changes: Mapping[str, Any], what: str) -> str:
    if (
        isinstance(response, ReceivedBody)
        and response.is_plain
        and (fast := wire_text({**response, **changes})).isascii()
    ):
        return fast
    return stored_text({**response, **changes}, what)


def reply_of(text: str, prompt_ids: tuple[int, ...] | None) -> dict[str, Any]:
    """Reads the reply that `reply_text` wrote. Raises `StoreError` where the ids that were left out do not exist."""
    if not text.startswith((_IN_BODY, _IN_CHOICE)):
        return json.loads(text)
    if prompt_ids is None:
        raise StoreError("a reply refers to its prompt's token ids, which do not exist", hint="the store is damaged")
    body = json.loads(text[1:])
    (body if text[0] == _IN_BODY else body["choices"][0])[_NAME] = list(prompt_ids)
    return body


def _repeats(holder: Any, ids: tuple[int, ...]) -> bool:
    """True where ``holder`` has exactly these ids; 1.0 and true equal 1, but are not it."""
    return isinstance(holder, Mapping) and token_ids(holder.get(_NAME)) == ids


Row: TypeAlias = tuple[Any, ...]

ROLLOUT_COLUMNS: Final = "rollout_id, task_id, run_id, input, created_at"
ATTEMPT_COLUMNS: Final = "rollout_id, attempt, started_at, ended_at, outcome, error, result"
CALL_COLUMNS: Final = (
    "response_id, choice, route, model, request, response, prompt_rest, response_ids, logprobs, finish_reason,"
    " weights_version, temperature, top_p, started_at, ended_at, rollout_id, attempt, agent, tool_call_ids, engine"
)
#: The fields of a `CapturedCall` that are in these columns.
_CALL_FIELDS: Final = tuple(CALL_COLUMNS.replace("prompt_rest", "prompt_ids").replace(" ", "").split(","))
#: A call of which only what is new is stored: see `lgov_core.store.folding`.
FOLDED_COLUMNS: Final = f"{CALL_COLUMNS}, base, prompt_shared, request_repeats"
#: Times further from 1970 count as 0 in a digest.
_MOST_SECONDS: Final = 2.0**50
#: No reply has more choices than this.
_MOST_CHOICES: Final = 2**31
#: Places in a row of ``CALL_COLUMNS``.
REQUEST, PROMPT, RESPONSE_IDS, STARTED_AT, ROLLOUT_ID, ATTEMPT = (
    CALL_COLUMNS.replace(" ", "").split(",").index(name)
    for name in ("request", "prompt_rest", "response_ids", "started_at", "rollout_id", "attempt")
)
REWARD_COLUMNS: Final = "reward_id, value, dimension, rollout_id, attempt, response_id, tool_call_id, source, choice"
_REWARD_FIELDS: Final = REWARD_COLUMNS.split(", ")
SPAN_COLUMNS: Final = (
    "span_id, name, started_at, ended_at, attributes, rollout_id, attempt, parent_id, trace_id, events, claimed"
)
_SPAN_FIELDS: Final = SPAN_COLUMNS.split(", ")
#: Places in a row of ``SPAN_COLUMNS``.
SPAN_NAME, SPAN_STARTED, SPAN_ATTRIBUTES, SPAN_ROLLOUT, SPAN_CLAIMED = map(
    _SPAN_FIELDS.index, ("name", "started_at", "attributes", "rollout_id", "claimed")
)
ENTRY_COLUMNS: Final = (
    "rollout_id, run_id, state, config, enqueued_at, available_at, attempt, outcome, worker_id, lease_until, deadline,"
    " ended_at, reason"
)


def insert(table: str, columns: str) -> str:
    """The statement that inserts one row of ``columns`` into ``table``."""
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * (columns.count(',') + 1))})"


#: The columns of the tables with ids, and what a row of each is called.
TABLES: Final = {
    "rollouts": (ROLLOUT_COLUMNS, "rollout"),
    "attempts": (ATTEMPT_COLUMNS, "rollout"),
    "calls": (FOLDED_COLUMNS, "call"),
    "rewards": (REWARD_COLUMNS, "reward"),
}


def exists_already(table: str, row: Row) -> StoreError:
    """The error for a row whose id is in ``table`` already."""
    which = f"{TABLES[table][1]} {row[0]}"
    if table == "attempts":
        which = f"attempt {row[1]} of {which}"
    elif table == "calls" and row[1]:
        which += f", choice {row[1]}"
    return StoreError(f"{which} exists already", hint="ids are written once; use a fresh one")


def rollout_row(rollout: Rollout) -> Row:
    """A row of ``ROLLOUT_COLUMNS``. An id that contains a NUL, which no look-up would find, raises `StoreError`."""
    if "\0" in rollout.rollout_id:
        raise StoreError(
            f"rollout {rollout.rollout_id!r} has a NUL in its id", hint="give it an id of printable characters"
        )
    what = f"input of rollout {rollout.rollout_id}"
    return rollout.rollout_id, rollout.task_id, rollout.run_id, stored_text(rollout.input, what), rollout.created_at


def rollout_of(row: Row) -> Rollout:
    """The rollout of a row of ``ROLLOUT_COLUMNS``."""
    rollout_id, task_id, run_id, text, created_at = row
    return Rollout(rollout_id, task_id, run_id, json.loads(text), created_at)


def attempt_of(row: Row) -> Attempt:
    """The attempt of a row of ``ATTEMPT_COLUMNS``."""
    rollout_id, attempt, started_at, ended_at, outcome, error, text = row
    result = None if text is None else json.loads(text)
    return Attempt(rollout_id, attempt, started_at, ended_at, outcome and Outcome(outcome), error, result)


def call_parts(call: CapturedCall) -> tuple[Row, dict[str, str]]:
    """A row of ``CALL_COLUMNS``, and the JSON text of each value of the request, by name.

    Logprobs without as many response ids raise `StoreError`.
    """
    what = f"call {call.response_id}"
    if call.logprobs is not None and (call.response_ids is None or len(call.logprobs) != len(call.response_ids)):
        tokens = "no response ids" if call.response_ids is None else f"{len(call.response_ids)} response ids"
        raise StoreError(
            f"{what} has {len(call.logprobs)} logprobs and {tokens}", hint="give one logprob for each response token"
        )
    request = {text_name(name): stored_text(value, f"request of {what}") for name, value in call.request.items()}
    values: dict[str, Any] = {name: getattr(call, name) for name in _CALL_FIELDS}
    values["request"], values["response"] = object_text(request), reply_text(call)
    for name in ("prompt_ids", "response_ids"):
        if values[name] is not None:
            values[name] = token_blob(values[name], f"{name.replace('_', ' ')} of {what}")
    values["logprobs"] = logprob_blob(call.logprobs, f"logprobs of {what}")
    values["tool_call_ids"] = stored_text(call.tool_call_ids, f"tool call ids of {what}")
    return tuple(values.values()), request


def call_of(row: Row) -> CapturedCall:
    """The call of a row of ``CALL_COLUMNS`` with token ids as tuples and the request as a mapping."""
    values: dict[str, Any] = dict(zip(_CALL_FIELDS, row, strict=True))
    replied, logprobs = values["response_ids"], values["logprobs"]
    values["response"] = reply_of(values["response"], values["prompt_ids"])
    values["logprobs"] = numbers("d" if replied and len(logprobs or b"") == 8 * len(replied) else "f", logprobs)
    values["tool_call_ids"] = tuple(json.loads(values["tool_call_ids"]))
    return CapturedCall(**values)


def reward_row(reward: Reward) -> Row:
    """A row of ``REWARD_COLUMNS``. A value that is not a finite number, and an invalid choice, raise `StoreError`."""
    try:
        value = float(reward.value)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise StoreError(
            f"reward {reward.reward_id} ({reward.dimension}) of rollout {reward.rollout_id} is {reward.value!r}",
            hint="a reward must be a finite number; leave it out when it is not known",
        )
    if reward.choice is not None and (type(reward.choice) is not int or not 0 <= reward.choice < _MOST_CHOICES):
        raise StoreError(
            f"reward {reward.reward_id} is for choice {reward.choice!r}",
            hint="choices of a reply are counted from 0; None where it has only one",
        )
    return (reward.reward_id, value, *(getattr(reward, name) for name in _REWARD_FIELDS[2:]))


def own_reward(reward: Reward, rollout_id: str, attempt: int) -> Reward:
    """A final reward with the attempt that it closes filled in. One that names another raises `StoreError`."""
    if reward.rollout_id not in (None, rollout_id) or reward.attempt not in (None, attempt):
        raise StoreError(
            f"reward {reward.reward_id} names attempt {reward.attempt} of rollout {reward.rollout_id},"
            f" but attempt {attempt} of rollout {rollout_id} is being finished",
            hint="add it with add_rewards",
        )
    return replace(reward, rollout_id=rollout_id, attempt=attempt)


def reward_of(row: Row) -> Reward:
    """The reward of a row of ``REWARD_COLUMNS``."""
    values: dict[str, Any] = dict(zip(_REWARD_FIELDS, row, strict=True))
    return Reward(**values)


def span_row(span: Span) -> Row:
    """A row of ``SPAN_COLUMNS``."""
    values: dict[str, Any] = {name: getattr(span, name) for name in _SPAN_FIELDS}
    values["attributes"] = stored_text(span.attributes, f"attributes of span {span.name}")
    events = [[event.name, event.at, event.attributes] for event in span.events]
    values["events"] = stored_text(events, f"events of span {span.name}") if events else None
    values["claimed"] = int(span.claimed)
    return tuple(values.values())


def span_digest(row: Row) -> bytes:
    """A digest (24 bytes) of a row of ``SPAN_COLUMNS``: equal for equal rows only.

    It begins with the time at which the span did, so that an index of digests grows at its end.
    """
    started_at, attributes = row[2], row[4]  # the attributes are ASCII, and most of what there is
    rest = f"{row[:4]!r}{row[5:]!r}".encode("ascii", "backslashreplace")
    at = int(started_at * 1000) if abs(started_at) < _MOST_SECONDS else 0
    return at.to_bytes(8, signed=True) + hashlib.blake2b(rest + attributes.encode("ascii"), digest_size=16).digest()


def span_of(row: Row) -> Span:
    """The span of a row of ``SPAN_COLUMNS``."""
    values: dict[str, Any] = dict(zip(_SPAN_FIELDS, row, strict=True))
    values["attributes"] = json.loads(values["attributes"])
    values["events"] = tuple(SpanEvent(*event) for event in json.loads(values["events"] or "[]"))
    values["claimed"] = bool(values["claimed"])
    return Span(**values)


def entry_of(row: Row) -> QueueEntry:
    """The entry of a row of ``ENTRY_COLUMNS``."""
    rollout_id, run_id, state, config, enqueued_at, available_at, attempt, outcome, *rest = row
    return QueueEntry(
        rollout_id,
        run_id,
        RolloutState(state),
        RolloutConfig.from_json(json.loads(config)),
        enqueued_at,
        available_at,
        attempt,
        outcome and Outcome(outcome),
        *rest,
    )
