"""Captured calls as conversations: the messages that a model read, the one that it wrote, and which calls go together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from lgov_core.types import CapturedCall

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
    shown = call.response.get("messages")
    if not isinstance(shown, Sequence) or not shown or not (len(shown) == 1 or call.choice < len(shown)):
        return None
    reply: Any = shown[0 if len(shown) == 1 else call.choice]
    if not isinstance(reply, Mapping) or reply.get("role") != "assistant":
        return None
    return {name: said for name, said in reply.items() if name != "finish_reason"}


def _is_chat_message(message: Any) -> bool:
    """Whether it has the form of a chat message: spans are untrusted, and of any API."""
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
        and all(isinstance(one, Mapping) and isinstance(one.get("function"), Mapping) for one in calls)
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


def gone_on_from(calls: Iterable[CapturedCall]) -> set[tuple[str, int]]:
    """Which of the ``calls`` of one attempt (response id and choice) a later one goes on from, by what the messages say.

    Of choices that say the same it is the first.
    """
    said: dict[bytes, tuple[str, int]] = {}
    found: set[tuple[str, int]] = set()
    for call in calls:
        conversation = chat_conversation(call)
        if conversation is None:
            continue
        digests = _digests(conversation.messages)
        found |= {said[digest] for digest in digests if digest in said}
        whole = _digest(digests[-1] if digests else b"", conversation.reply)
        said.setdefault(whole, (call.response_id, call.choice))
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


def _digest(before: bytes, message: Any) -> bytes:
    """Clients send a reply back with more or fewer empty fields: empty fields are ignored."""
    said: Any = message  # anything else is compared as it is
    if isinstance(message, Mapping):
        calls: Any = message.get("tool_calls") or ()
        if isinstance(calls, list | tuple):
            calls = [_called(call) for call in calls]
        said = (message.get("role"), message.get("content") or "", calls, message.get("tool_call_id"))
    return hashlib.sha256(before + json.dumps(said, sort_keys=True, default=str).encode()).digest()


def _called(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    return call.get("id"), function.get("name"), function.get("arguments")
