"""Which rollout and attempt a span says it belongs to, whatever instrumentation wrote it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final

from lgov_core.trace import semconv
from lgov_core.types import JSONValue

#: Attributes that name the rollout, and the attempt, in order of preference.
ROLLOUT_NAMES: Final = (semconv.ROLLOUT_ID, "agentlightning.rollout_id", "agent_os.rollout_id")
ATTEMPT_NAMES: Final = (semconv.ATTEMPT, "agentlightning.attempt_id", "agent_os.attempt")

#: What a span takes over from its resource where it does not say it itself: who, and whose work it is.
OF_RESOURCE: Final = (
    *ROLLOUT_NAMES,
    *ATTEMPT_NAMES,
    semconv.TASK_ID,
    semconv.RUN_ID,
    semconv.AGENT_NAME,
    semconv.AGENT_ID,
    semconv.CONVERSATION_ID,
    semconv.WEIGHTS_VERSION,
    semconv.SERVICE_NAME,
    "session.id",
    "agentlightning.span_sequence_id",
)

_LONGEST: Final = 200


def take(attributes: MutableMapping[str, JSONValue]) -> tuple[str | None, int | None]:
    """The rollout and attempt that ``attributes`` name. lgov's own two names are taken out of them.

    A name that is not a valid id stays where it is and is ignored.
    """
    rollout_id = next((named for name in ROLLOUT_NAMES if (named := _rollout(attributes.get(name))) is not None), None)
    attempt = next((nth for name in ATTEMPT_NAMES if (nth := _attempt(attributes.get(name))) is not None), None)
    if rollout_id is not None and attributes.get(semconv.ROLLOUT_ID) == rollout_id:
        del attributes[semconv.ROLLOUT_ID]
    if attempt is not None and _attempt(attributes.get(semconv.ATTEMPT)) == attempt:
        del attributes[semconv.ATTEMPT]
    return rollout_id, attempt


def put(attributes: MutableMapping[str, JSONValue], rollout_id: str | None, attempt: int | None) -> None:
    """Writes the rollout and attempt into ``attributes``, under lgov's names."""
    if rollout_id is not None:
        attributes[semconv.ROLLOUT_ID] = rollout_id
    if attempt is not None:
        attributes[semconv.ATTEMPT] = attempt


def names_rollout(attributes: Mapping[str, JSONValue]) -> bool:
    """True where ``attributes`` say anything about a rollout, readable or not."""
    return any(attributes.get(name) is not None for name in ROLLOUT_NAMES)


def _rollout(value: JSONValue) -> str | None:
    if type(value) is int:
        value = str(value)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        return None
    return None if any(char in "/\r\n\0" for char in value) else value


def _attempt(value: JSONValue) -> int | None:
    number = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        number = int(value)
    return number if type(number) is int and 0 < number < 10**9 else None
