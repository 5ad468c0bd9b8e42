"""Remembers the conversations of programs under one governor, and judges what a request adds to one.

A conversation has calls that wait for their results and turns that were changed. New results of tools and texts of users are
judged as actions of this adapter.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import BoundedDict, Flow, Governor, semconv
from lgov_core.instrumentation.conversation_memory import (
    MAX_PER_MARK,
    MAX_REMEMBERED,
    MessageDecisionCache,
    TurnMemory,
    UserText,
    prefix_digests,
)
from lgov_core.instrumentation.live_span import LiveSpan, started_span
from lgov_core.instrumentation.tool_call import GovernedToolCall, ToolReading
from lgov_core.scope import RolloutScope, current_scope
from lgov_core.types import Action, Decision, Point, new_id
from lgov_core.wire.turns import JSON, MessageProtocol, Proposal, read_arguments
from lgov_openai.http_messages import HeldCalls, Recording


@dataclass(frozen=True, slots=True)
class EntryReader:
    """Recognises the entries of a transcript in the form of ``protocol``."""

    protocol: MessageProtocol

    def from_model(self, entry: JSON) -> bool:
        """See `TranscriptReader.from_model`."""
        return self.protocol.from_model(entry)

    def marks(self, entry: JSON) -> Sequence[str]:
        """See `TranscriptReader.marks`."""
        return self.protocol.ids(entry)

    def has_calls(self, entry: JSON) -> bool:
        """See `TranscriptReader.has_calls`."""
        return bool(self.protocol.proposals(entry))

    def canonical(self, entry: JSON) -> str:
        """See `TranscriptReader.canonical`: an entry of the model is its calls, or its text."""
        if self.protocol.from_model(entry):
            calls = [call.identity for call in self.protocol.proposals(entry)]
            return json.dumps(["calls", calls] if calls else ["text", self.protocol.mapping(entry)["content"]])
        return json.dumps(entry, sort_keys=True)


class ReplyParents:
    """The replies that have another id for the program than for the server. Callable from any thread."""

    def __init__(self) -> None:
        self._parents: BoundedDict[str, tuple[str | None]] = BoundedDict(MAX_REMEMBERED)

    def continue_from(self, response_id: str, parent: str | None) -> None:
        """Remembers that what follows ``response_id`` for the program follows ``parent`` for the server."""
        self._parents.put(response_id, (parent,))

    def continuing(self, body: JSON) -> JSON:
        """``body`` continuing the reply that the server knows: see `continue_from`."""
        parent = self._parents.get(str(body.get("previous_response_id")))
        if parent is None:
            return body
        rest = {name: value for name, value in body.items() if name != "previous_response_id"}
        return rest if parent[0] is None else {**rest, "previous_response_id": parent[0]}


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call that the program may make. ``prefix`` is the digest of the transcript before its turn."""

    call: GovernedToolCall
    decision: Decision
    identity: tuple[str | None, str, str]
    prefix: str
    scope: RolloutScope | None
    recorded: bool = False


class PendingCalls:
    """The tool calls that programs received, until they send the results."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_id: BoundedDict[str, list[PendingCall]] = BoundedDict(MAX_REMEMBERED)

    def __contains__(self, call_id: str | None) -> bool:
        return call_id in self._by_id

    def add(self, pending: PendingCall) -> None:
        """Remembers a call that the program received; shows the spans of calls that are dropped for it."""
        call_id = pending.identity[0]
        if call_id is None:  # no result can name it
            pending.call.span.abandon()
            return
        with self._lock:
            same_id = [*(self._by_id.get(call_id) or ()), pending]
            dropped = same_id[: -MAX_PER_MARK - 1]
            dropped += self._by_id.put(call_id, same_id[-MAX_PER_MARK - 1 :]) or []
        for call in dropped:
            call.call.span.abandon()

    def claim(
        self, call_id: str | None, proposal: Proposal | None, prefix: str | None
    ) -> tuple[PendingCall | None, bool]:
        """The call of a result, if it is certain, and whether its outcome must be recorded (once).

        ``proposal`` and ``prefix`` are the call in the program's transcript and the digest of what is before its turn;
        None where the request does not have it.
        """
        with self._lock:
            same_id = (self._by_id.get(call_id) if call_id is not None else None) or []
            candidates = [pending for pending in same_id if proposal is None or pending.identity == proposal.identity]
            if len(candidates) > 1:
                candidates = [pending for pending in candidates if pending.prefix == prefix] or candidates
            if len(candidates) > 1:
                candidates = [pending for pending in candidates if pending.scope == current_scope()]
            if len(candidates) != 1:
                return None, False
            first, candidates[0].recorded = not candidates[0].recorded, True
            return candidates[0], first

    def close(self) -> None:
        """Shows the spans of calls whose results were never sent."""
        for calls in self._by_id.values():
            for pending in calls:
                pending.call.span.abandon()


class Memory:
    """One a governed client, or one for all clients of an instrumented process. Callable from any thread or task."""

    def __init__(self) -> None:
        self.turns: TurnMemory[JSON] = TurnMemory()
        self.parents = ReplyParents()
        self.calls = PendingCalls()
        #: For each result that was evaluated, a tuple of the text in its place, or of None.
        self.results: BoundedDict[Hashable, tuple[str | None]] = BoundedDict(MAX_REMEMBERED)
        self.messages = MessageDecisionCache()
        #: Replies that the program has not read to their end.
        self.recordings: set[Recording | HeldCalls] = set()

    def end_recordings(self) -> None:
        """Ends all recordings, as if the program had stopped reading."""
        for recording in list(self.recordings):
            recording.end(GeneratorExit())

    def close(self) -> None:
        """Ends the spans that are still open: of replies that are not read to their end, and of calls without a result."""
        self.end_recordings()
        self.calls.close()


FRAMEWORK = "openai"


def tool_action(point: Point, name: str, call_id: str | None, proposal: Proposal | None) -> Action:
    """A tool call, or its result; ``proposal`` is what the model wrote, where it is known."""
    scope = current_scope()
    return Action(
        point,
        name=name,
        kind=proposal.kind if proposal is not None else "function",
        arguments=(proposal.arguments or {}) if proposal is not None else {},
        framework=FRAMEWORK,
        session_id=scope.session_id if scope else None,
        rollout_id=scope.rollout_id if scope else None,
        attempt=scope.attempt if scope else None,
        call_id=call_id,
    )


def offered_tools(body: JSON) -> frozenset[str] | None:
    """The names of the tools that a request offers; None where that is not known of all, or there are none."""
    tools = [*(body.get("tools") or ()), *(body.get("functions") or ())]
    names = {name for tool in tools if (name := _tool_name(tool)) is not None}
    return frozenset(names) if names and all(_tool_name(tool) for tool in tools) else None


def _tool_name(tool: JSON) -> str | None:
    """The name in a request of chat completions or of the Responses API. Hosted tools and MCP servers have none."""
    inner = tool.get(str(tool.get("type")))
    name = (inner if isinstance(inner, Mapping) else tool).get("name")
    return name if isinstance(name, str) else None


def current_tool() -> LiveSpan | None:
    """The span of the tool that the running code is in: what the program says there is not the user's."""
    span = started_span()
    return span if span is not None and span.operation == semconv.EXECUTE_TOOL else None


def user_action(text: str) -> Action:
    """A user message. Inside a tool it is the tool that speaks, so its span is the parent."""
    tool = current_tool()
    action = Action(Point.INPUT, name="agent", kind="text", text=text, framework=FRAMEWORK, source="user")
    return action if tool is None else action.changed(source="tool", parent_id=tool.span_id)


def result_reading(entry: JSON, text: str, proposal: Proposal | None) -> ToolReading:
    """A tool result in a transcript. It only says that the call failed where its arguments were unreadable for any tool."""
    if proposal is not None and read_arguments(proposal.raw, unique_keys=False) is None and proposal.arguments is None:
        return ToolReading(text, "invalid_args", "InvalidToolCall")
    return ToolReading(text, "error" if entry.get("status") == "incomplete" else "ok")


class RequestEvaluation:
    """The transcript in one request of a program; reading it raises whatever a malformed one makes it raise.

    ``current`` is the transcript that the model may read, once `judge_flow` has run.
    """

    def __init__(self, governor: Governor, memory: Memory, protocol: MessageProtocol, body: JSON) -> None:
        self.governor = governor
        self.memory = memory
        self.protocol = protocol
        #: The body as the server can continue it.
        self.body = memory.parents.continuing(body)
        self.renamed = self.body is not body
        self.offered = offered_tools(body)
        self.parent = protocol.parent(self.body)
        self.program = protocol.entries(body)
        self.current = list(self.program)
        #: The digest of the transcript before each entry, and of all of it.
        self.reader = EntryReader(protocol)
        self.prefixes = prefix_digests(self.reader, self.program, self.parent)
        self._from_model = [protocol.from_model(entry) for entry in self.program]
        self._results = [protocol.tool_result(entry) for entry in self.program]
        self._user_texts = [protocol.user_text(entry) for entry in self.program]
        #: The texts among the messages that are top-level input.
        self.said = [text for text in self._user_texts if text] if current_tool() is None else []

    @property
    def digest(self) -> str:
        """The digest of the whole transcript."""
        return self.prefixes[-1]

    def judge_flow(self) -> Flow[Decision | None]:
        """Judges results, then user messages. Returns the denial of a message; raises `PolicyDenied` for an abort."""
        yield from self._results_flow()
        return (yield from self._messages_flow())

    def sent(self) -> list[JSON]:
        """The transcript to send: what the model may read, with what the program never received."""
        turns = self.memory.turns
        restored = turns.restored(self.reader, self.program, self.prefixes, self.current)
        first = 1 if restored and restored[0].get("type") == "lgov.instructions" else 0
        return [*restored[:first], *turns.owed(self.parent), *restored[first:]]

    def _results_flow(self) -> Flow[None]:
        calls: dict[str | None, tuple[Proposal, str]] = {}
        results: list[tuple[int, Proposal | None, str | None]] = []
        turn_start = 0
        for position, entry in enumerate(self.program):
            if self._from_model[position]:
                if position == 0 or not self._from_model[position - 1]:
                    turn_start = position
                for call in self.protocol.proposals(entry):
                    calls[call.call_id] = call, self.prefixes[turn_start]
            if (result := self._results[position]) is not None:
                proposal, prefix = calls.get(result[0], (None, None))
                results.append((position, proposal, prefix))
        unknown = [result[0] for result in self._results if result and result[0] and result[0] not in self.memory.calls]
        for recording in list(self.memory.recordings):
            recording.catch_up((current_scope(), self.prefixes[turn_start]), unknown)
        for position, proposal, prefix in results:
            replacement = yield from self._result_flow(position, proposal, prefix)
            if replacement is not None:
                self.current[position] = self.protocol.with_text(self.program[position], replacement)

    def _result_flow(self, position: int, proposal: Proposal | None, prefix: str | None) -> Flow[str | None]:
        """The text in place of the result, None if the model may read it. ``prefix`` is the digest before its call's turn."""
        entry = self.program[position]
        call_id, text = self._results[position] or (None, "")
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        key = (call_id, proposal.identity if proposal is not None else None, prefix, digest)
        if (earlier := self.memory.results.get(key)) is not None:
            return earlier[0]
        pending, unrecorded = self.memory.calls.claim(call_id, proposal, prefix)
        if pending is None:
            name = proposal.name if proposal is not None else str(entry.get("name") or "unknown")
            action = tool_action(Point.POST_TOOL_CALL, name, call_id, proposal)
            action = action.changed(text=text, operation_id=new_id("op"), native=entry)
        else:
            reading = result_reading(entry, text, proposal)
            if unrecorded:
                outcome = pending.call.returned(pending.decision, reading)
                if pending.call.finish(outcome):
                    yield from self.governor.record_flow(outcome)
            action = pending.call.result_action(reading, entry)
        decision = yield from self.governor.decision_flow(action)
        if decision.blocks and decision.abort:
            raise PolicyDenied(decision)
        replacement = decision.denial_message(after=True) if decision.blocks else decision.text
        self.memory.results.put(key, (replacement,))
        return replacement

    def _messages_flow(self) -> Flow[Decision | None]:
        """Evaluates the messages since the model's last turn, and earlier ones that no policy here has evaluated."""
        program = self.program
        new = len(program)
        while new > 0 and not self._from_model[new - 1] and self._results[new - 1] is None:
            new -= 1
        mappings = [self.protocol.mapping(entry) for entry in program]
        texts_by_role = [(str(mapping["role"]), str(mapping["content"])) for mapping in mappings]
        texts = (
            UserText(
                text,
                new=position >= new,
                answer=next((words for role, words in texts_by_role[position + 1 :] if role == "assistant"), None),
                prefix=self.prefixes[position + 1],
            )
            for position, text in enumerate(self._user_texts)
            if text
        )
        denial = yield from self.memory.messages.judge_flow(self.governor, texts, lambda text: user_action(text.text))
        if denial is None:
            for position, instead in self.memory.messages.instead_of(lambda: texts_by_role).items():
                self.current[position] = self.protocol.with_text(program[position], instead.text)
        return denial
