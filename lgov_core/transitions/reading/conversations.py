"""Captured calls as conversations: the messages that a model read, the one that it wrote, and which calls go together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from lgov_core.errors import EndpointError
from lgov_core.types import CapturedCall
from lgov_core.wire.messages import read_messages_request
from lgov_core.wire.responses import chat_messages, read_responses_request

Message: TypeAlias = Mapping[str, Any]

#: What the content of a chat message may be made of.
_CONTENT_PARTS: Final = frozenset({"text", "image_url", "input_audio", "file", "refusal"})


@dataclass(frozen=True, slots=True)
class Conversation:
    """One call in messages of OpenAI's chat form: ``messages`` and ``tools`` went in, ``reply`` came out."""

    messages: tuple[Message, ...]
    reply: Message
    tools: tuple[Mapping[str, Any], ...] = ()


#: Reads a call as a conversation; None for one that cannot be read as messages.
ConversationReader: TypeAlias = Callable[[CapturedCall], Conversation | None]


def chat_conversation(call: CapturedCall) -> Conversation | None:
    """A call of the chat completions route as a conversation; None for calls of other routes and broken bodies.

    A `ConversationReader`. The reply is that of the call's own ``choice``. A call that only spans show has its reply as
    they say it: messages, one a choice.
    """
    if call.route != "chat":
        return None
    messages, choices = call.request.get("messages"), call.response.get("choices")
    reply = _chosen(choices, call.choice) if isinstance(choices, Sequence) else _reply_of_spans(call)
    if not isinstance(messages, Sequence) or not isinstance(reply, Mapping):
        return None
    if not isinstance(choices, Sequence) and not all(map(_is_chat_message, (*messages, reply))):
        return None
    return Conversation(tuple(messages), _said(reply), tuple(call.request.get("tools") or ()))


def _chosen(choices: Sequence[Any], index: int) -> Any:
    for position, choice in enumerate(choices):
        if isinstance(choice, Mapping) and choice.get("index", position) == index:
            return choice.get("message")
    return None


def _reply_of_spans(call: CapturedCall) -> Message | None:
    """The reply as spans show it: messages, one a choice."""
    messages = call.response.get("messages")
    if not isinstance(messages, Sequence) or not messages or not (len(messages) == 1 or call.choice < len(messages)):
        return None
    reply: Any = messages[0 if len(messages) == 1 else call.choice]
    if not isinstance(reply, Mapping) or reply.get("role") != "assistant":
        return None
    return {name: value for name, value in reply.items() if name != "finish_reason"}


def _is_chat_message(message: Any) -> bool:
    """True where it has the form of a chat message: spans are untrusted, and of any API."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    content, calls = message.get("content"), message.get("tool_calls") or ()
    if not {"content", "tool_calls"} & message.keys() or {"type", "parts"} & message.keys():
        return False
    if isinstance(content, list) and not all(
        isinstance(part, Mapping) and part.get("type") in _CONTENT_PARTS for part in content
    ):
        return False
    return (
        isinstance(content, str | list | None)
        and isinstance(calls, list | tuple)
        and all(isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) for call in calls)
    )


@dataclass(frozen=True, slots=True)
class Thread:
    """A conversation with all that was said in it. ``written`` are the positions of the messages that its calls wrote.

    ``calls`` are the calls in the order in which they extend one another; the last one's reply is the last message.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    written: tuple[int, ...]
    calls: tuple[CapturedCall, ...]


def threads_of(calls: Iterable[CapturedCall], read: ConversationReader = chat_conversation) -> list[Thread]:
    """The conversations that the ``calls`` of one attempt, in the order of their turns, amount to.

    A call goes on with an earlier one when its messages begin with all that was said up to and with the earlier one's
    reply. What an agent changes in between (a summary in place of what was said) begins another thread, and so does a
    second call that goes on from the same place; calls that cannot be read as messages are in none.
    """
    open_at: dict[bytes, int] = {}
    threads: list[Thread] = []
    for call in calls:
        conversation = read(call)
        if conversation is None:
            continue
        digests = _digests(conversation.messages)
        index = next((open_at.pop(digest) for digest in reversed(digests) if digest in open_at), len(threads))
        if index == len(threads):
            threads.append(Thread((), (), (), ()))
        before = threads[index]
        threads[index] = Thread(
            messages=(*conversation.messages, conversation.reply),
            tools=conversation.tools,
            written=(*before.written, len(conversation.messages)),
            calls=(*before.calls, call),
        )
        open_at[_digest(digests[-1] if digests else b"", conversation.reply)] = index
    return threads


def gone_on_from(calls: Iterable[CapturedCall]) -> set[tuple[str, int]]:
    """Which of the ``calls`` of one attempt (response id and choice) a later one goes on from, by what the messages say.

    Of choices that say the same it is the first.
    """
    by_digest: dict[bytes, tuple[str, int]] = {}
    continued: set[tuple[str, int]] = set()
    for call in calls:
        conversation = chat_conversation(call)
        if conversation is None:
            continue
        digests = _digests(conversation.messages)
        continued |= {by_digest[digest] for digest in digests if digest in by_digest}
        whole = _digest(digests[-1] if digests else b"", conversation.reply)
        by_digest.setdefault(whole, (call.response_id, call.choice))
    return continued


def _said(reply: Message) -> dict[str, Any]:
    """A reply as a client sends it back: what is empty is left out, but for the content."""
    return {"role": "assistant", "content": None} | {
        name: value for name, value in reply.items() if value not in (None, [], {})
    }


def _digests(messages: Sequence[Message]) -> list[bytes]:
    """Of each message a digest of it and everything before it."""
    digests: list[bytes] = []
    for message in messages:
        digests.append(_digest(digests[-1] if digests else b"", message))
    return digests


def _digest(before: bytes, message: Any) -> bytes:
    """Clients send a reply back with more or fewer empty fields: empty fields are ignored."""
    compared: Any = message  # anything else is compared as it is
    if isinstance(message, Mapping):
        calls: Any = message.get("tool_calls") or ()
        if isinstance(calls, list | tuple):
            calls = [_called(call) for call in calls]
        compared = (message.get("role"), message.get("content") or "", calls, message.get("tool_call_id"))
    return hashlib.sha256(before + json.dumps(compared, sort_keys=True, default=str).encode()).digest()


def _called(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    return call.get("id"), function.get("name"), function.get("arguments")


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
        request = read_responses_request(bodies[-1][0], before)
        return Conversation(tuple(request.messages), reply, tuple(request.tools))

    def _bodies(self, call: CapturedCall) -> list[tuple[Mapping[str, Any], Sequence[Any]]] | None:
        """The requests and answers of the call and of those that it goes on from, the first one first."""
        bodies: list[tuple[Mapping[str, Any], Sequence[Any]]] = []
        seen: set[str] = set()
        following: CapturedCall | None = call
        while following is not None:
            if following.response_id in seen:
                return None
            seen.add(following.response_id)
            bodies.append((following.request, _list(following.response, "output")))
            previous = following.request.get("previous_response_id")
            if not isinstance(previous, str):
                return bodies[::-1]
            following = self._by_id.get(previous)
        return None


def _of_messages(call: CapturedCall) -> Conversation | None:
    request = read_messages_request(call.request)
    # The reply is read as the client sends it back: in the middle of a conversation.
    reply: dict[str, Any] = {"role": "assistant", "content": _list(call.response, "content")}
    messages = [{"role": "user", "content": "?"}, reply, {"role": "user", "content": "?"}]
    _, answer, *_ = read_messages_request({"model": call.model, "messages": messages}, counting=True).messages
    return Conversation(tuple(request.messages), answer, tuple(request.tools))


def _list(body: Mapping[str, Any], name: str) -> list[Any]:
    value = body.get(name)
    if not isinstance(value, list):
        raise EndpointError(f"the recorded reply has no list {name!r}")
    return value


def _one(messages: Sequence[Message]) -> Message | None:
    """The one message of the model; None where it wrote none, or several that no chat message can hold."""
    return messages[0] if len(messages) == 1 and messages[0].get("role") == "assistant" else None
