"""The calls of each attempt: what they say, which of them go together, and which are selected.

There is one of each call, in an order that does not depend on how they arrived. As a conversation a call is the messages that
the model read and the one that it wrote. Choices of one reply are alternatives of each other, of which the attempt went on with
one. A selection takes the calls of some agents or models, or those whose spans say something.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, Final, TypeAlias

from lgov_core._util.containers import PrefixIndex
from lgov_core.errors import EndpointError
from lgov_core.transitions.records import Records
from lgov_core.transitions.transition_set import DataFinding, Diagnostic
from lgov_core.types import CapturedCall, JSONValue
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
    if isinstance(choices, Sequence):
        reply = next(
            (
                choice.get("message")
                for position, choice in enumerate(choices)
                if isinstance(choice, Mapping) and choice.get("index", position) == call.choice
            ),
            None,
        )
    else:
        reply = _reply_of_spans(call)
    if not isinstance(messages, Sequence) or not isinstance(reply, Mapping):
        return None
    if not isinstance(choices, Sequence) and not all(map(_is_chat_message, (*messages, reply))):
        return None
    # As a client sends it back: what is empty is left out, but for the content.
    reply = {"role": "assistant", "content": None} | {
        name: value for name, value in reply.items() if value not in (None, [], {})
    }
    return Conversation(tuple(messages), reply, tuple(call.request.get("tools") or ()))


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
            calls = [
                (call.get("id"), call["function"].get("name"), call["function"].get("arguments"))
                if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)
                else call
                for call in calls
            ]
        compared = (message.get("role"), message.get("content") or "", calls, message.get("tool_call_id"))
    return hashlib.sha256(before + json.dumps(compared, sort_keys=True, default=str).encode()).digest()


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
        replies = chat_messages(_list(call.response, "output"))
        # A call without a message of the model's, or with several, has no form as one chat message.
        if bodies is None or len(replies) != 1 or replies[0].get("role") != "assistant":
            return None
        before: list[Message] = []
        for body, output in bodies[:-1]:
            own = {name: value for name, value in body.items() if name != "instructions"}  # those are of one call only
            before += [*read_responses_request(own).messages, *chat_messages(output)]
        request = read_responses_request(bodies[-1][0], before)
        return Conversation(tuple(request.messages), replies[0], tuple(request.tools))

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


#: The order of the calls of an attempt.
_ORDER: Final = attrgetter("started_at", "response_id", "choice")


def calls_by_attempt(records: Records, diagnostics: list[Diagnostic]) -> dict[tuple[str, int], list[CapturedCall]]:
    """The different calls of each attempt, in their order: by when they began, then response id, then choice.

    One call recorded twice is one. Different calls of one id all stay, and are a finding.
    """
    rollout_ids = {rollout.rollout_id for rollout in records.rollouts}
    calls_of: dict[tuple[str, int], list[CapturedCall]] = {}
    for call in records.calls:
        rollout_id = call.rollout_id
        if rollout_id is None or rollout_id not in rollout_ids:
            detail = (
                "the call belongs to no rollout" if rollout_id is None else f"rollout {rollout_id} is not on record"
            )
            diagnostics.append(Diagnostic(DataFinding.NO_ROLLOUT_ID, call.response_id, detail))
            continue
        calls_of.setdefault((rollout_id, call.attempt or 1), []).append(call)
    for calls in calls_of.values():
        calls.sort(key=_ORDER)
        _drop_repeated(calls, diagnostics)
    _tell_shared(calls_of, diagnostics)
    return calls_of


def _tell_shared(calls_of: Mapping[tuple[str, int], Sequence[CapturedCall]], diagnostics: list[Diagnostic]) -> None:
    """Tells the response ids that calls of several attempts have."""
    owners_of: dict[str, set[tuple[str, int]]] = {}
    for key, calls in calls_of.items():
        for call in calls:
            owners_of.setdefault(call.response_id, set()).add(key)
    for response_id, owners in owners_of.items():
        if len(owners) > 1:
            where = ", ".join(f"{rollout_id} (attempt {attempt})" for rollout_id, attempt in sorted(owners))
            diagnostics.append(Diagnostic(DataFinding.DUPLICATE_CALL, response_id, f"in {where}"))


def _drop_repeated(calls: list[CapturedCall], diagnostics: list[Diagnostic]) -> None:
    """Leaves one of calls that are the same twice. Different ones of one id stay, in an order of their contents."""
    if len({(call.response_id, call.choice) for call in calls}) == len(calls):
        return
    seen: dict[tuple[str, int], list[CapturedCall]] = {}
    for call in calls:
        seen.setdefault((call.response_id, call.choice), []).append(call)
    kept: list[CapturedCall] = []
    for (response_id, _), same in seen.items():
        different: dict[tuple[object, ...], CapturedCall] = {}
        for call in same:
            different.setdefault((call.prompt_ids, call.response_ids, call.logprobs), call)
        if len(different) > 1:
            diagnostics.append(Diagnostic(DataFinding.DUPLICATE_CALL, response_id, f"{len(different)} different calls"))
        kept += [different[key] for key in sorted(different, key=repr)]
    calls[:] = sorted(kept, key=_ORDER)


#: A response id and a choice of it.
ChoiceKey: TypeAlias = tuple[str, int]


def set_aside(calls: Sequence[CapturedCall], used: Collection[str]) -> tuple[frozenset[ChoiceKey], list[str]]:
    """Which choices of the ``calls`` of one attempt (in order) it did not go on with; and the replies where this is unknown.

    It went on with a choice if the prompt of a later call begins with that choice's prompt and reply, in tokens or in
    messages, or if a tool call that only this choice proposed was ``used`` (it ran, or a reward names it). Where it went on
    with several, none of those is set aside. Where nothing tells, the first that was not cancelled is taken to be the one,
    and the reply's id is among the second value. Of choices that say the same the first counts.
    """
    several: dict[str, dict[int, CapturedCall]] = {}
    for call in calls:
        several.setdefault(call.response_id, {}).setdefault(call.choice, call)
    several = {response_id: choices for response_id, choices in several.items() if len(choices) > 1}
    if not several:
        return frozenset(), []
    continued = _by_tokens(calls) | _by_tool_calls(several, used)
    if unknown := several.keys() - {response_id for response_id, _ in continued}:
        # Only what follows can tell, which of an attempt's last reply is nothing: reading messages is dear.
        first = next(at for at, call in enumerate(calls) if call.response_id in unknown)
        continued |= gone_on_from(calls[first:])
    aside: set[ChoiceKey] = set()
    untold: list[str] = []
    for response_id, choices in several.items():
        taken = {choice for choice in choices if (response_id, choice) in continued}
        if not taken:
            untold.append(response_id)
            whole = [choice for choice, call in choices.items() if call.finish_reason != "cancelled"]
            taken = {min(whole or choices)}
        aside |= {(response_id, choice) for choice in choices if choice not in taken}
    return frozenset(aside), untold


def _by_tokens(calls: Sequence[CapturedCall]) -> set[ChoiceKey]:
    ends: PrefixIndex[tuple[int, ...]] = PrefixIndex()
    continued: set[ChoiceKey] = set()
    before = ""  # choices of one reply follow each other
    replies: set[tuple[int, ...]] = set()
    for number, call in enumerate(calls):
        if not call.prompt_ids:
            continue
        if call.response_id != before:
            before, replies = call.response_id, set()
            if (index := ends.take_longest(call.prompt_ids)) is not None:
                continued.add((calls[index].response_id, calls[index].choice))
        if call.response_ids and call.response_ids not in replies:
            replies.add(call.response_ids)
            ends.add(call.prompt_ids + call.response_ids, number)
    return continued


def _by_tool_calls(several: Mapping[str, Mapping[int, CapturedCall]], used: Collection[str]) -> set[ChoiceKey]:
    continued: set[ChoiceKey] = set()
    for response_id, choices in several.items():
        proposed = Counter(name for call in choices.values() for name in {*call.tool_call_ids})
        continued |= {
            (response_id, choice)
            for choice, call in choices.items()
            if any(name in used and proposed[name] == 1 for name in call.tool_call_ids)
        }
    return continued


@dataclass(frozen=True, slots=True)
class Selection:
    """Names or globs (``*``, ``?``, ``[...]``) that have to match as a whole and in case: ``write`` never takes ``rewrite``.

    ``agents`` and ``models``: one of them must match, unless there are none. ``attributes``: for each name, the value on
    the call's span, or on the nearest span above it that has one, must match (lists: any of their values; true and
    false in lower case). All three must hold. Nothing given selects every call of the rollouts to train on; ``held_out`` adds
    those of rollouts that measure the model (`Rollout.held_out`). A call is selected or not by itself: that
    an agent inside another is not selected changes nothing for the other's calls. Immutable.
    """

    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    held_out: bool = False

    @property
    def everything(self) -> bool:
        """True where it takes every call of a rollout."""
        return not (self.agents or self.models or self.attributes)


class Selecting:
    """A selection at work on ``records``, remembering what it has found. Not safe for use from several threads."""

    def __init__(self, selection: Selection, records: Records) -> None:
        self._selection = selection
        self._records = records
        self._agents: set[str] = set()
        self._models: set[str] = set()
        self._nameless: list[str] = []

    @property
    def held_out(self) -> bool:
        """True where rollouts that measure the model are selected."""
        return self._selection.held_out

    def takes(self, call: CapturedCall) -> bool:
        """Returns whether ``call`` is selected."""
        selection = self._selection
        if selection.agents:
            if call.agent is None:
                self._nameless.append(call.response_id)
                return False
            self._agents.add(call.agent)
            if not matches(call.agent, selection.agents):
                return False
        if selection.models:
            self._models.add(call.model)
            if not matches(call.model, selection.models):
                return False
        if not selection.attributes:
            return True
        origins, tree = self._records.origins.get(call.response_id, ()), self._records.tree
        spans = [span for span in origins if tree.place(span).rollout_id in (None, call.rollout_id)]
        return all(
            any(matches(text, (pattern,)) for span in spans for text in _texts(tree.nearest(span, name)))
            for name, pattern in selection.attributes.items()
        )

    def missed(self) -> list[Diagnostic]:
        """Diagnostics of what was selected and never came up, and of the calls without an agent's name."""
        diagnostics = [Diagnostic(DataFinding.AGENT_NOT_KNOWN, response_id) for response_id in self._nameless]
        for patterns, names, finding in (
            (self._selection.agents, self._agents, DataFinding.UNKNOWN_AGENT),
            (self._selection.models, self._models, DataFinding.UNKNOWN_MODEL),
        ):
            for pattern in patterns:
                if not any(matches(name, (pattern,)) for name in names):
                    on_record = ", ".join(sorted(names)[:10]) or "none"
                    diagnostics.append(Diagnostic(finding, pattern, f"those on record: {on_record}"))
        return diagnostics


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether ``name`` is one of ``patterns`` or matches one of them as a whole."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _texts(value: JSONValue) -> Sequence[str]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, bool):
        return ("true" if value else "false",)
    if isinstance(value, Sequence):
        items: Sequence[Any] = value
        return [text for item in items for text in _texts(item)]
    return (str(value),)
