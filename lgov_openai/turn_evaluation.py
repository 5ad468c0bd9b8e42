"""Evaluates the tool calls of one turn of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Flow
from lgov_core.instrumentation.tool_call import ToolCall
from lgov_core.scope import current_scope
from lgov_core.types import Decision, Effect, Point, ToolOutcome, ToolStatus
from lgov_core.wire.content import JSON, read_arguments
from lgov_core.wire.turns import Proposal, Turn
from lgov_openai.actions import tool_action
from lgov_openai.memory import PendingCall
from lgov_openai.request_evaluation import RequestEvaluation


@dataclass(frozen=True, slots=True)
class EvaluatedTurn:
    """A turn as the program may get it.

    ``denials`` are the texts for the calls that were removed, ``results`` the entries by which the model reads them (None
    where the API has none). ``replaced``: the turn is a denial, in the model's place.
    """

    turn: Turn
    denials: Sequence[str] = ()
    results: Sequence[JSON | None] = ()
    replaced: bool = False


def evaluate_turn(request: RequestEvaluation, turn: Turn, given: Turn, run_id: str) -> Flow[EvaluatedTurn]:
    """Evaluates the calls of ``turn``, the model's reply in the run ``run_id``. Raises `PolicyDenied` for an abort.

    ``given`` is the turn as the program may get it so far.
    """
    protocol, memory = request.protocol, request.memory
    denied: list[Proposal] = []
    denials: list[str] = []
    allowed: list[tuple[Proposal, ToolCall, Decision]] = []
    for proposal in turn.proposals:
        call, decision = yield from _evaluate_call(request, proposal, run_id)
        if decision.blocks:
            denied.append(proposal)
            denials.append(decision.denial_message())
        else:
            allowed.append((proposal, call, decision))
    for proposal, call, decision in allowed:
        is_unknown = request.offered is not None and proposal.name not in request.offered
        if is_unknown:
            error = f"no tool {proposal.name} was offered"
            yield from _recorded(request, call, decision, "unknown_tool", "UnknownTool", error)
        here = next(one for one in given.proposals if one.position == proposal.position)
        if decision.arguments is not None:
            given = protocol.with_arguments(given, here, decision.arguments)
            here = next(one for one in given.proposals if one.position == proposal.position)
        memory.calls.add(PendingCall(call, decision, here.identity, request.digest, current_scope(), is_unknown))
    results = [protocol.denied_result(turn, one, text) for one, text in zip(denied, denials, strict=True)]
    gone = {one.position for one in denied}
    given = protocol.without(given, [one for one in given.proposals if one.position in gone]) if gone else given
    return EvaluatedTurn(given, denials, results)


def _evaluate_call(request: RequestEvaluation, proposal: Proposal, run_id: str) -> Flow[tuple[ToolCall, Decision]]:
    governor = request.governor
    action = tool_action(Point.PRE_TOOL_CALL, proposal.name, proposal.call_id, proposal).changed(run_id=run_id)
    unreadable = proposal.arguments is None
    if unreadable:
        action = action.changed(arguments=read_arguments(proposal.raw, unique_keys=False) or {}, text=proposal.raw)
    call = ToolCall(governor, action)
    if unreadable and governor.evaluates(Point.PRE_TOOL_CALL):
        reason = f"the arguments of {proposal.name} are not one JSON object with each key once; write them anew"
        decision = Decision(Effect.DENY, "lgov", "unreadable-arguments", reason)
        yield from _recorded(request, call, decision, "invalid_args", "InvalidToolCall", reason)
        return call, decision
    decision = yield from call.judge_flow()
    if decision.blocks and decision.abort:
        raise PolicyDenied(decision)
    return call, decision


def _recorded(
    request: RequestEvaluation, call: ToolCall, decision: Decision, status: ToolStatus, error_type: str, error: str
) -> Flow[None]:
    """Records the outcome of a call that no tool can answer. The result that the program sends is not that of a tool."""
    started_at = call.started_at
    outcome = ToolOutcome(
        call.action, status, error_type=error_type, error=error, decision=decision, started_at=started_at
    )
    if call.finish(outcome):
        yield from request.governor.record_flow(outcome)
