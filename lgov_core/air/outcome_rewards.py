"""AirPlugin: pays AIR on the calls that earned it, so that it cannot be farmed; and the rule set in use.

The rule set in use (a context variable) is the one that `scope` or `use` set, else one that is made when it is first needed.
The decorators here add rules to it. A `RuleSet` has the same decorators and needs no context.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from lgov_core._util.json_text import NotCanonical, fingerprint
from lgov_core.air.rules import AirRule, AirRules, Event, RuleSet
from lgov_core.errors import RewardError
from lgov_core.hookspecs import hookimpl
from lgov_core.scope import RolloutScope
from lgov_core.trace import semconv
from lgov_core.types import Effect, Reward, Span, ToolOutcome

#: Statuses of a call that was itself wrong.
_ERRORS: Final = frozenset({"error", "invalid_args", "unknown_tool"})
#: Errors of a tool that the program or its user stopped.
_STOPPED = frozenset({"CancelledError", "KeyboardInterrupt", "SystemExit", "GeneratorExit"})
#: Attempts that have earned something and not ended. Beyond it nothing more is paid, and that is an error.
MOST_OPEN_ATTEMPTS: Final = 65_536


#: The target of a reward: a model call by its response's id, or a tool call.
_Place: TypeAlias = tuple[str | None, str | None]


@dataclass(slots=True)
class _Account:
    """The account of an attempt in ``air``: Φ, by agent too, the plain payments, and what was paid for.

    ``last`` is the last model call of each agent, where an adapter shows them; ``paid_at`` the target of what each was
    paid last.
    """

    potential: float = 0.0
    plain: float = 0.0
    paid_for: set[Hashable] = field(default_factory=set[Hashable])
    of_agent: dict[str | None, float] = field(default_factory=dict[str | None, float])
    last: dict[str | None, str] = field(default_factory=dict[str | None, str])
    paid_at: dict[str | None, _Place] = field(default_factory=dict[str | None, _Place])
    of_operation: dict[str, list[tuple[_Claim, float]]] = field(default_factory=dict[str, list[tuple["_Claim", float]]])


@dataclass(frozen=True, slots=True)
class _Claim:
    """A payment that a rule wants. ``fact`` None: not tied to anything that could be repeated."""

    source: str
    value: float
    shaped: bool
    fact: Hashable


class AirPlugin:
    """Rewards calls by the rules of a `RuleSet`, or by the values of `AirRules`; in the dimension ``air``.

    Shaped rules (the default) pay differences of a potential Φ: potential-based shaping after Ng, Harada and Russell 1999,
    F = γ Φ(s') - Φ(s) with γ = 1, Φ = 0 at the beginning and at the end. Φ is the sum of what the facts reached so far are
    worth, held within the set's ``cap``: each new (rule, milestone) adds to it, each failure takes from it. A milestone
    reached again earns nothing. When the attempt ends, what remains of Φ is taken back: by a reward on
    the attempt, which falls to its last call, or with several agents on the last call of each agent that was paid. So the
    ``air`` of a whole attempt sums to 0 whatever was called: no policy is better or worse for it, and which policies are
    best does not change. What AIR adds is *when* something was gained: see docs/how-to/rewards.md for which credit
    schemes make use of that.

    A call that the framework executes again (after an error, or with its node) is one: it earns what its last result is worth.
    Rules that are not shaped pay each call anew, up to ``cap`` in absolute sum over the attempt. Denials are in the
    dimension ``compliance``, at full price each time. Outside a rollout nothing is kept and each call is paid for itself.

    Accounts are kept by attempt, in this process, until the attempt ends. Safe in any thread. A rule that raises, or pays
    a number that is not finite, is an error that the governor counts and shows; then the call earns nothing of any rule and
    nothing is booked. A call in a rollout that has no id was not proposed by a known model call (the
    program may have made it): it earns nothing, for the reward would fall to another call, and is counted in ``unplaced``.
    """

    def __init__(self, rules: AirRules | RuleSet | None = None) -> None:
        self.rules = rules if isinstance(rules, RuleSet) else RuleSet(base=rules if rules is not None else AirRules())
        self.unplaced = 0
        self._accounts: dict[tuple[str, int | None], _Account] = {}
        self._lock = threading.Lock()

    @property
    def charges_denials(self) -> bool:
        """True where a denial costs something here. Only one plugin of a governor may."""
        base = self.rules.base
        return (base is not None and base.denied != 0) or any(rule.event == "denied" for rule in self.rules.rules)

    @hookimpl
    def lgov_reward(self, outcome: ToolOutcome) -> Sequence[Reward]:
        """Rewards of a success, a failure or a denial: none for a timeout, a fault, a call cancelled or not yet approved."""
        event = _event_of(outcome)
        if event is None:
            return []
        action, base = outcome.action, self.rules.base
        claims: list[_Claim] = []
        if covering := self.rules.covering(event, action.name, action.agent):
            facts = _facts_of(outcome)
            claims = [_claim(rule, facts) for rule in covering]
        elif base is not None:
            value = {"tool_success": base.tool_success, "tool_failure": base.tool_error, "denied": base.denied}[event]
            call = _call_of({"tool_name": action.name, "arguments": action.arguments})
            claims = [_Claim(f"air:{outcome.status}", value, base.shaped, call)]
        claims = [claim for claim in claims if claim.value != 0.0]
        if action.rollout_id is not None and action.call_id is None:
            with self._lock:
                self.unplaced += bool(claims)
            return []
        if event == "denied":
            return [Reward(claim.value, "compliance", source=claim.source) for claim in claims]
        target = (None, action.call_id)
        paid = self._booked(action.rollout_id, action.attempt, action.agent, claims, target, action.operation_id)
        return [Reward(value, "air", source=claim.source) for claim, value in paid if value]

    @hookimpl
    def lgov_span_reward(self, span: Span) -> Sequence[Reward]:
        """The rewards of a model call, on its response id."""
        attributes = span.attributes
        if attributes.get(semconv.OPERATION) != semconv.CHAT or span.ended_at is None:
            return []
        response_id = attributes.get(semconv.RESPONSE_ID)
        agent: Any = attributes.get(semconv.AGENT_NAME)
        if isinstance(response_id, str) and span.rollout_id is not None:
            key = (span.rollout_id, span.attempt)
            with self._lock:
                if key in self._accounts or len(self._accounts) < MOST_OPEN_ATTEMPTS:
                    self._accounts.setdefault(key, _Account()).last[agent] = response_id
        model = str(attributes.get(semconv.REQUEST_MODEL) or attributes.get(semconv.RESPONSE_MODEL) or "")
        covering = self.rules.covering("model_call", model, agent)
        if not covering or semconv.ERROR_TYPE in attributes:
            return []
        reasons: Any = attributes.get(semconv.FINISH_REASONS)
        facts = {
            "model": model,
            "agent": agent,
            "response_id": response_id,
            "finish_reason": reasons[0] if isinstance(reasons, list | tuple) and reasons else None,
            "input_tokens": attributes.get(semconv.INPUT_TOKENS),
            "output_tokens": attributes.get(semconv.OUTPUT_TOKENS),
            "span": span,
        }
        claims = [claim for rule in covering if (claim := _claim(rule, facts)).value != 0.0]
        if not claims:
            return []
        if not isinstance(response_id, str):
            with self._lock:
                self.unplaced += 1
            return []
        paid = self._booked(span.rollout_id, span.attempt, agent, claims, (response_id, None))
        return [Reward(value, "air", response_id=response_id, source=claim.source) for claim, value in paid if value]

    @hookimpl
    def lgov_rollout_reward(self, rollout: RolloutScope) -> Sequence[Reward]:
        """Takes back what is left of the attempt's potential: Φ is 0 at the end."""
        with self._lock:
            account = self._accounts.pop((rollout.rollout_id, rollout.attempt), None)
        if account is None or not any(account.of_agent.values()):
            return []
        if len(account.last) < 2 and len({*account.of_agent} - {None}) < 2:
            return [Reward(-account.potential, "air", source="air:end")]
        # Each takes its own back: where only one agent is trained, it must not pay for what another was paid, nor keep
        # what another lost. Without spans of its calls the last is unknown; then it is the last that was paid.
        rewards: list[Reward] = []
        for agent, paid in account.of_agent.items():
            if paid:
                last = account.last.get(agent)
                response_id, tool_call_id = account.paid_at[agent] if last is None else (last, None)
                rewards.append(Reward(-paid, "air", None, None, response_id, tool_call_id, "air:end"))
        return rewards

    def _booked(
        self,
        rollout_id: str | None,
        attempt: int | None,
        agent: str | None,
        claims: Sequence[_Claim],
        target: _Place,
        operation: str | None = None,
    ) -> list[tuple[_Claim, float]]:
        """The sum paid of each claim; ``target`` is that of the reward. First comes what an earlier result of the same
        ``operation`` was paid, taken back: the framework has repeated it, and it earns what its last result is worth.
        """
        with self._lock:
            account = _Account()
            if rollout_id is not None:
                key = (rollout_id, attempt)
                if key not in self._accounts and not claims:
                    return []
                if key not in self._accounts and len(self._accounts) >= MOST_OPEN_ATTEMPTS:
                    raise RewardError(
                        f"{MOST_OPEN_ATTEMPTS} attempts have earned AIR and not ended",
                        hint="end rollouts (Governor.rollout), so that their accounts can be closed",
                    )
                account = self._accounts.setdefault(key, account)
            before = [] if operation is None else account.of_operation.pop(operation, [])
            for claim, value in before:
                _take_back(account, agent, claim, value)
            paid = [(claim, _pay(account, agent, claim, self.rules.cap)) for claim in claims]
            if any(value for _, value in paid):
                account.paid_at[agent] = target
            if operation is not None and paid:
                account.of_operation[operation] = paid
            return [] if paid == before else [*((claim, -value) for claim, value in before), *paid]


def _pay(account: _Account, agent: str | None, claim: _Claim, cap: float | None) -> float:
    """Books one claim and returns what is paid of it. Of a shaped one the difference that it makes to Φ."""
    if not claim.shaped:
        room = abs(claim.value) if cap is None else max(min(abs(claim.value), cap - account.plain), 0.0)
        account.plain += room
        return room if claim.value > 0 else -room
    if claim.value > 0:
        key = (claim.source, claim.fact)
        if key in account.paid_for:
            return 0.0
        account.paid_for.add(key)
    paid = claim.value
    if cap is not None and abs(account.potential + paid) > cap:
        paid = (cap if paid > 0 else -cap) - account.potential
    account.potential += paid
    account.of_agent[agent] = account.of_agent.get(agent, 0.0) + paid
    return paid


def _take_back(account: _Account, agent: str | None, claim: _Claim, value: float) -> None:
    if not claim.shaped:
        account.plain -= abs(value)
    elif value:
        account.paid_for.discard((claim.source, claim.fact))
        account.potential -= value
        account.of_agent[agent] -= value


def _claim(rule: AirRule, facts: Mapping[str, Any]) -> _Claim:
    value = rule.value(facts)
    reached: Hashable = None
    if value > 0 and rule.shaped:
        if callable(rule.milestone):
            reached = rule.reached(facts)
            value = 0.0 if reached is None else value
        elif rule.event == "model_call":
            reached = facts["response_id"]
        else:
            reached = facts["tool_name"] if rule.milestone == "tool" else _call_of(facts)
    return _Claim(f"air:{rule.name}", value, rule.shaped, reached)


def _call_of(facts: Mapping[str, Any]) -> tuple[str, str]:
    """A tool and its arguments. Arguments that have no unmistakable form count as one and the same."""
    try:
        return facts["tool_name"], fingerprint(facts["arguments"])
    except NotCanonical:
        return facts["tool_name"], ""


def _event_of(outcome: ToolOutcome) -> Event | None:
    if outcome.status == "ok":
        return "tool_success"
    if outcome.status in _ERRORS:
        return None if outcome.error_type in _STOPPED else "tool_failure"
    if outcome.status == "denied":
        decision = outcome.decision
        waits = decision is not None and decision.effect is Effect.ESCALATE  # it is not decided yet
        return None if decision is not None and (decision.fault or waits) else "denied"
    return None


def _facts_of(outcome: ToolOutcome) -> dict[str, Any]:
    action, decision = outcome.action, outcome.decision
    return {
        "tool_name": action.name,
        "arguments": action.arguments,
        "agent": action.agent,
        "call_id": action.call_id,
        "outcome": outcome,
        "output": outcome.result,
        "error": outcome.error,
        "error_type": outcome.error_type,
        "status": outcome.status,
        "decision": decision,
        **{name: getattr(decision, name, None) for name in ("reason", "policy", "rule", "severity")},
    }


_CURRENT: contextvars.ContextVar[RuleSet | None] = contextvars.ContextVar("lgov_air", default=None)


def current() -> RuleSet:
    """The rule set in use in this context; an empty one is made if there is none."""
    rules = _CURRENT.get()
    return use(RuleSet()) if rules is None else rules


def use(rules: RuleSet) -> RuleSet:
    """Makes ``rules`` the set in use from here on in this context, and returns it. See `scope` to undo it."""
    _CURRENT.set(rules)
    return rules


@contextmanager
def scope(rules: RuleSet | None = None) -> Generator[RuleSet]:
    """A rule set (a new one, unless given) that is in use inside the block, in this task or thread only."""
    chosen = RuleSet() if rules is None else rules
    token = _CURRENT.set(chosen)
    try:
        yield chosen
    finally:
        _CURRENT.reset(token)


def plugin() -> AirPlugin:
    """The plugin of the rule set in use; rules that are added later count too.

    Raises `RewardError` when the set has no rule: most likely they were registered in another thread or context.
    """
    rules = current()
    if not rules.rules and rules.base is None:
        raise RewardError(
            "no AIR rule is registered in this context",
            hint="register rules before air.plugin(), in the same thread, or pass a RuleSet to AirPlugin",
        )
    return AirPlugin(rules)


def on_tool_success(*tools: Any, **options: Any) -> Any:
    """`RuleSet.on_tool_success` of the set in use."""
    return current().on_tool_success(*tools, **options)


def on_tool_failure(*tools: Any, **options: Any) -> Any:
    """`RuleSet.on_tool_failure` of the set in use."""
    return current().on_tool_failure(*tools, **options)


def on_denied(*tools: Any, **options: Any) -> Any:
    """`RuleSet.on_denied` of the set in use."""
    return current().on_denied(*tools, **options)


def on_model_call(*tools: Any, **options: Any) -> Any:
    """`RuleSet.on_model_call` of the set in use."""
    return current().on_model_call(*tools, **options)
