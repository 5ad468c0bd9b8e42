"""Evaluates what the program sends: tool results and user messages."""

from __future__ import annotations

import hashlib

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Flow, Governor
from lgov_core.scope import current_scope
from lgov_core.types import Decision, Point, new_id
from lgov_core.wire.content import JSON
from lgov_core.wire.turns import MessageProtocol, Proposal
from lgov_openai.actions import current_tool, offered_tools, result_reading, tool_action, user_action
from lgov_openai.memory import Memory
from lgov_openai.transcript import prefix_digests


class RequestEvaluation:
    """The transcript in one request of a program; reading it raises whatever a malformed one makes it raise.

    ``current`` is the transcript that the model may read, once `evaluate` has run.
    """

    def __init__(self, governor: Governor, memory: Memory, protocol: MessageProtocol, body: JSON) -> None:
        self.governor = governor
        self.memory = memory
        self.protocol = protocol
        #: The body as the server can continue it.
        self.body = memory.turns.continuing(body)
        self.renamed = self.body is not body
        self.offered = offered_tools(body)
        self.parent = protocol.parent(self.body)
        self.program = protocol.entries(body)
        self.current = list(self.program)
        #: The digest of the transcript before each entry, and of all of it.
        self.prefixes = prefix_digests(protocol, self.program, self.parent)
        self._from_model = [protocol.from_model(entry) for entry in self.program]
        self._results = [protocol.tool_result(entry) for entry in self.program]
        self._user_texts = [protocol.user_text(entry) for entry in self.program]
        #: The texts among the messages that are top-level input.
        self.said = [text for text in self._user_texts if text] if current_tool() is None else []

    @property
    def digest(self) -> str:
        """The digest of the whole transcript."""
        return self.prefixes[-1]

    def evaluate(self) -> Flow[Decision | None]:
        """Evaluates results, then user messages. Returns the denial of a message; raises `PolicyDenied` for an abort."""
        yield from self._evaluate_results()
        return (yield from self._evaluate_messages())

    def sent(self) -> list[JSON]:
        """The transcript to send: what the model may read, with what the program never received."""
        return self.memory.turns.restored(self.protocol, self.program, self.prefixes, self.current, self.parent)

    def _evaluate_results(self) -> Flow[None]:
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
            replacement = yield from self._evaluate_result(position, proposal, prefix)
            if replacement is not None:
                self.current[position] = self.protocol.with_text(self.program[position], replacement)

    def _evaluate_result(self, position: int, proposal: Proposal | None, prefix: str | None) -> Flow[str | None]:
        """The text in place of the result, None if the model may read it. ``prefix`` is the digest before its call's turn."""
        entry = self.program[position]
        call_id, text = self._results[position] or (None, "")
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        key = (call_id, proposal.identity if proposal is not None else None, prefix, digest)
        if (known := self.memory.results.get(key)) is not None:
            return known[0]
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

    def _evaluate_messages(self) -> Flow[Decision | None]:
        """Evaluates the messages since the model's last turn, and earlier ones that no policy here has evaluated."""
        messages, program = self.memory.messages, self.program
        new = len(program)
        while new > 0 and not self._from_model[new - 1] and self._results[new - 1] is None:
            new -= 1
        mappings = [self.protocol.mapping(entry) for entry in program]
        said = [(str(mapping["role"]), str(mapping["content"])) for mapping in mappings]
        for position, text in enumerate(self._user_texts):
            if not text or (place := self.prefixes[position + 1]) in self.memory.allowed_messages:
                continue
            answer = next((words for role, words in said[position + 1 :] if role == "assistant"), None)
            if position < new and messages.knows(text, answer):
                continue
            decision = yield from self.governor.decision_flow(user_action(text))
            if not decision.blocks:
                self.memory.allowed_messages.put(place, True)
                messages.let_through(text, decision.text)
            elif position >= new or decision.abort:
                messages.denied(text, decision.denial_message())
                return decision
            else:
                messages.withheld(text, decision.denial_message())
        for position, instead in messages.instead_of(lambda: said).items():
            self.current[position] = self.protocol.with_text(program[position], instead.text)
        return None
