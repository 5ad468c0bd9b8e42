"""Recorded calls of every route as conversations in chat messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lgov_core.errors import EndpointError
from lgov_core.gateway.formats.messages_request import read_messages_request
from lgov_core.gateway.formats.responses_request import chat_messages, read_responses_request
from lgov_core.transitions.reading.conversations import Conversation, Message, chat_conversation
from lgov_core.types import CapturedCall


class RecordedConversations:
    """Reads calls of the chat, Responses and Messages routes as conversations: a `ConversationReader`.

    ``calls`` are those among which ``previous_response_id`` is looked up. A call that is not part of a conversation (text
    completions, an unreadable body, a beginning that is not among ``calls``) gives None. Callable from any thread.
    """

    def __init__(self, calls: Iterable[CapturedCall]) -> None:
        self._by_id = {call.response_id: call for call in calls if call.choice == 0}

    def __call__(self, call: CapturedCall) -> Conversation | None:
        """The conversation of ``call``, or None."""
        if call.route == "chat":
            return chat_conversation(call)
        readers = {"responses": self._of_responses, "messages": _of_messages}
        try:
            return readers[call.route](call) if call.route in readers else None
        except EndpointError:
            return None

    def _of_responses(self, call: CapturedCall) -> Conversation | None:
        bodies = self._bodies(call)
        reply = _one(chat_messages(_list(call.response, "output")))
        if bodies is None or reply is None:
            return None
        before: list[Message] = []
        for body, output in bodies[:-1]:
            own = {name: value for name, value in body.items() if name != "instructions"}  # those are of one call only
            before += [*read_responses_request(own).messages, *chat_messages(output)]
        asked = read_responses_request(bodies[-1][0], before)
        return Conversation(tuple(asked.messages), reply, tuple(asked.tools))

    def _bodies(self, call: CapturedCall) -> list[tuple[Mapping[str, Any], Sequence[Any]]] | None:
        """What was asked and answered in the call and in those that it goes on from, the first one first."""
        found: list[tuple[Mapping[str, Any], Sequence[Any]]] = []
        seen: set[str] = set()
        following: CapturedCall | None = call
        while following is not None:
            if following.response_id in seen:
                return None
            seen.add(following.response_id)
            found.append((following.request, _list(following.response, "output")))
            previous = following.request.get("previous_response_id")
            if not isinstance(previous, str):
                return found[::-1]
            following = self._by_id.get(previous)
        return None


def _of_messages(call: CapturedCall) -> Conversation | None:
    asked = read_messages_request(call.request)
    # The reply is read as the client sends it back: in the middle of a conversation.
    reply: dict[str, Any] = {"role": "assistant", "content": _list(call.response, "content")}
    said = [{"role": "user", "content": "?"}, reply, {"role": "user", "content": "?"}]
    _, answer, *_ = read_messages_request({"model": call.model, "messages": said}, counting=True).messages
    return Conversation(tuple(asked.messages), answer, tuple(asked.tools))


def _list(body: Mapping[str, Any], name: str) -> list[Any]:
    value = body.get(name)
    if not isinstance(value, list):
        raise EndpointError(f"the recorded reply has no list {name!r}")
    return value


def _one(messages: Sequence[Message]) -> Message | None:
    """The one message of the model; None where it wrote none, or several that no chat message can hold."""
    return messages[0] if len(messages) == 1 and messages[0].get("role") == "assistant" else None
