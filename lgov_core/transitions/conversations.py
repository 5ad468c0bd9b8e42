"""Captured calls as conversations: the messages that a model read, the one that it wrote, and which calls go together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lgov_core.types import CapturedCall

Message: TypeAlias = Mapping[str, Any]


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
    messages, reply = call.request.get("messages"), _reply(call)
    if not isinstance(messages, Sequence) or reply is None or not all(map(_is_message, (*messages, reply))):
        return None
    return Conversation(tuple(messages), _said(reply), tuple(call.request.get("tools") or ()))


def _reply(call: CapturedCall) -> Message | None:
    choices, told = call.response.get("choices"), call.response.get("messages")
    reply: Any = None
    if isinstance(choices, Sequence):
        for position, choice in enumerate(choices):
            if isinstance(choice, Mapping) and choice.get("index", position) == call.choice:
                reply = choice.get("message")
                break
    elif isinstance(told, Sequence) and told:
        reply = told[0] if len(told) == 1 else told[call.choice] if call.choice < len(told) else None
    if not isinstance(reply, Mapping) or reply.get("role", "assistant") != "assistant":
        return None
    return {"role": "assistant", **{name: said for name, said in reply.items() if name != "finish_reason"}}


def _is_message(message: Any) -> bool:
    """Whether it has the form of a chat message. Those of spans are anybody's, and have parts where they did not fit."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "parts" in message:
        return False
    calls = message.get("tool_calls") or ()
    return isinstance(calls, Sequence) and all(
        isinstance(call, Mapping) and isinstance(call.get("function") or {}, Mapping) for call in calls
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
    found: list[Thread] = []
    for call in calls:
        conversation = read(call)
        if conversation is None:
            continue
        digests = _digests(conversation.messages)
        place = next((open_at.pop(digest) for digest in reversed(digests) if digest in open_at), len(found))
        if place == len(found):
            found.append(Thread((), (), (), ()))
        before = found[place]
        found[place] = Thread(
            messages=(*conversation.messages, conversation.reply),
            tools=conversation.tools,
            written=(*before.written, len(conversation.messages)),
            calls=(*before.calls, call),
        )
        open_at[_digest(digests[-1] if digests else b"", conversation.reply)] = place
    return found


def _said(reply: Message) -> dict[str, Any]:
    """A reply as a client sends it back: what is empty is left out, but for the content."""
    return {"role": "assistant", "content": None} | {
        name: value for name, value in reply.items() if value not in (None, [], {})
    }


def _digests(messages: Sequence[Message]) -> list[bytes]:
    """Of each message a digest of it and everything before it."""
    found: list[bytes] = []
    for message in messages:
        found.append(_digest(found[-1] if found else b"", message))
    return found


def _digest(before: bytes, message: Message) -> bytes:
    """Clients send a reply back with more or fewer empty fields: only what says something counts."""
    calls = [
        (call.get("id"), (call.get("function") or {}).get("name"), (call.get("function") or {}).get("arguments"))
        for call in message.get("tool_calls") or ()
    ]
    said = (message.get("role"), message.get("content") or "", calls, message.get("tool_call_id"))
    return hashlib.sha256(before + json.dumps(said, sort_keys=True, default=str).encode()).digest()
