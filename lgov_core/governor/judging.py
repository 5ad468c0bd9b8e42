"""How an action is judged, from top to bottom: the rules in order, each rule's answer, and one decision out of them.

A governor has one ordered list of rules: its policies, then the decision hooks of plug-ins, those that are ``deferred`` last.
A rule that is a set of rules is walked in its place. `Judges.judge` asks the list until the transforms have settled;
`judge_set` is the same walk over one set, with the set's default at its end. A trace of a walk is what `explain` shows.

Fails closed. A rule that raises, answers late, or answers what is not a decision has denied; the others are still asked. What
promises bounded cost is called in place; everything else runs in a thread with a time limit, each rule for itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import pluggy

from lgov_core.flow import Flow, Step, either, finished, wait
from lgov_core.governor.conditions import ConditionError
from lgov_core.governor.options import SHADOW
from lgov_core.governor.rules import OrderedRules, Rule, hook_rule, own_rule
from lgov_core.hookspecs import DECISION_HOOKS
from lgov_core.plugins import PolicyPlugin
from lgov_core.types import ALLOW, Action, Decision, Effect, Point, Policy, Severity

_LOG = logging.getLogger("lgov.policies")
#: A transformed action is judged again; one that still changes after this many rounds is denied.
MAX_TRANSFORM_ROUNDS = 4
#: Judgements that may wait at the same time, for a person among others.
_THREADS = 128
_HOOK_OF_POINT = {point: f"lgov_{point.value}" for point in Point}
assert set(_HOOK_OF_POINT.values()) == set(DECISION_HOOKS)

Answers: TypeAlias = "list[tuple[Rule, Decision]]"


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """The answer of one rule. ``covers`` is false when the rule does not cover the action; then ``decision`` is None.

    A rule that covers the action and has no ``decision`` had no opinion, or was ``skipped``: it is deferred, and a rule
    before it denies. ``arguments`` and ``text`` are what it was asked about, as the transforms before it left them.
    """

    rule: str
    covers: bool
    decision: Decision | None
    arguments: Mapping[str, Any]
    text: str | None
    skipped: bool = False


# ---------------------------------------------------------------------- the whole list


class Judges:
    """The rules of one governor: its ``policies`` in their order, then the decision hooks of ``manager``.

    ``timeout_s`` limits each rule that does not promise bounded cost. All methods may be called from any thread and task.
    """

    def __init__(self, policies: Sequence[Policy], manager: pluggy.PluginManager, timeout_s: float) -> None:
        self._policies = policies
        self._manager = manager
        self._of_point: dict[Point, tuple[Rule, ...]] = {}
        self._threads = Threads(timeout_s)
        self.close = self._threads.close

    def rules(self, point: Point) -> tuple[Rule, ...]:
        """The rules that are asked at ``point``, in order."""
        rules = self._of_point.get(point)
        if rules is None:
            listed = [own_rule(policy, policy.name) for policy in self._policies]
            hooks = getattr(self._manager.hook, _HOOK_OF_POINT[point]).get_hookimpls()
            # pluggy lists them in the order in which they were registered; the last registered is called first.
            for impl in reversed(hooks):
                policy = impl.plugin.policy if isinstance(impl.plugin, PolicyPlugin) else None
                listed.append(hook_rule(impl) if policy is None else own_rule(policy, impl.plugin_name))
            rules = self._of_point[point] = tuple(sorted(listed, key=lambda rule: rule.deferred))
        return rules

    def covers(self, point: Point) -> bool:
        """Returns whether a rule can answer at ``point``: a hook, a policy of its own, or a set's rule that names the point."""
        return any(_covers_point(rule, point) for rule in self.rules(point))

    def reads_replies(self) -> bool:
        """Returns whether a rule reads the texts of models, now: a set may be replaced."""
        rules = {rule for point in (Point.POST_MODEL_CALL, Point.OUTPUT) for rule in self.rules(point)}
        return any(getattr(rule.policy, "reads_replies", True) for rule in rules)

    def plugins_changed(self) -> None:
        """Looks the plug-ins up again at the next decision."""
        self._of_point.clear()

    def judge(self, action: Action) -> Flow[Decision]:
        """The decision on ``action``; an act that nothing answers is denied.

        Each rule gets the action as the rules before it left it. While transforms change it, all are asked again about
        what would then be done, so that the last round has judged exactly that.
        """
        began = time.perf_counter()
        rounds: list[Answers] = []
        current = action
        while True:
            before = current
            answers, current = yield from _walk(self.rules(action.point), current, self._threads)
            rounds.append(answers)
            settled = before is current or (before.arguments == current.arguments and before.text == current.text)
            if settled or len(rounds) == MAX_TRANSFORM_ROUNDS:
                break
        decisions = _counting(rounds)
        if not settled:
            reason = f"The transforms of this action did not settle in {len(rounds)} rounds."
            decisions.append(fault("lgov", "transform-unsettled", reason))
        if not decisions and action.point is Point.PRE_TOOL_CALL:
            decisions = [Decision(Effect.DENY, "lgov", "no-policy", "No policy covers this act.", Severity.CRITICAL)]
        if len(rounds) == len(answers) == 1 and answers[0][0].members is not None:
            (decision,) = decisions  # of one set, which has combined it
        else:
            decision = combine(decisions, original=action, folded=current)
        decision.latency_us = (time.perf_counter() - began) * 1e6
        return decision


def _covers_point(rule: Rule, point: Point) -> bool:
    if point not in rule.on:
        return False
    return rule.members is None or any(_covers_point(inner, point) for inner in rule.members().rules)


def _counting(rounds: Sequence[Answers]) -> list[Decision]:
    """The decisions that count: those of the first round, and of the later ones, on the transformed action, what blocks.

    An escalation asks for approval of one form of the action. Where transforms changed it further, only the form that
    would run needs approval: the same rule's decision on that form replaces the escalation. So when a rule escalates
    ``rm -r /tmp/a`` and a later rule makes it ``ls /tmp/a``, which the first rule allows, the call is allowed.
    """
    final = {rule: decision for rule, decision in rounds[-1]}
    counting: list[Decision] = []
    for number, answers in enumerate(rounds):
        for rule, decision in answers:
            asked_before = decision.effect is Effect.ESCALATE and answers is not rounds[-1]
            counts = final.get(rule) if asked_before else decision
            if counts is not None and (number == 0 or counts.blocks) and not any(counts is other for other in counting):
                counting.append(counts)
    return counting


# ---------------------------------------------------------------------- a walk


def judge_set(
    policies: OrderedRules, action: Action, threads: Threads | None = None, trace: list[RuleVerdict] | None = None
) -> Flow[Decision]:
    """The combined decision of a set; never None, because a set has its default.

    Without ``threads`` every policy is called in place, for as long as it takes. ``trace`` gets the verdict of each rule.
    """
    answers: Answers = []
    if policies.shadow:
        action = action.changed(context={**action.context, SHADOW: True})
    current, unclear = action, type(action.name) is not str or not action.name.isprintable()
    if not unclear:  # globs of names mean one line
        rules = policies.rules if trace is not None else policies.named(action.point, action.name)
        answers, current = yield from _walk(rules, action, threads, trace)
    elif trace is not None:
        trace += [RuleVerdict(rule.name, False, None, action.arguments, action.text) for rule in policies.rules]
    # Of equal answers the first is shown and searched: that of a person, where one was asked.
    decisions = [decision for rule, decision in reversed(answers) if rule.deferred]
    decisions += [decision for rule, decision in answers if not rule.deferred]
    if unclear:
        reason = "The name of this action is not text on one line."
        decisions.append(Decision(Effect.DENY, policies.name, "action-unclear", reason, Severity.MEDIUM))
    denied = any(decision.effect is Effect.DENY for decision in decisions)
    if not denied and not any(rule.permits for rule, _ in answers):
        decisions += policies.by_default(action, covered=bool(decisions))
    return combine(decisions, original=action, folded=current, shadow_of=policies.name if policies.shadow else None)


def _walk(
    rules: Sequence[Rule], action: Action, threads: Threads | None, trace: list[RuleVerdict] | None = None
) -> Flow[tuple[Answers, Action]]:
    """Asks ``rules`` in order: their decisions, and the action as the transforms left it."""
    answers: Answers = []
    for rule in rules:
        skipped = rule.deferred and any(decision.effect is Effect.DENY for _, decision in answers)
        covered = rule.reaches(action) if skipped else _covered(rule, action)
        decision = None if isinstance(covered, bool) else covered
        if covered is True and not skipped:
            if rule.waits and (threads is not None or rule.members is not None):
                decision = yield from _ask_and_wait(rule, action, threads)
            else:
                decision = _ask(rule, action)
        if trace is not None:
            covers = covered is not False
            trace.append(RuleVerdict(rule.name, covers, decision, action.arguments, action.text, skipped and covers))
        if decision is not None:
            answers.append((rule, decision))
            action = fold(action, decision)
            if decision.sources and any(later.condition is not None for later in rules):
                action = action.changed(context={**action.context, "sources": decision.sources})
    return answers, action


def _covered(rule: Rule, action: Action) -> bool | Decision:
    """Returns whether the rule covers the action, or a denial where its condition cannot be determined."""
    if rule.standalone or action.point in rule.listens_at:
        return True
    if not rule.reaches(action):
        return False
    if rule.condition is None:
        return True
    try:
        return rule.condition.holds(action)
    except ConditionError as error:
        reason = f"The condition of rule {rule.name} cannot be checked: {error}."
        return Decision(Effect.DENY, rule.name, "condition-error", reason, Severity.MEDIUM, fault=error.not_the_agents)
    except Exception as error:  # noqa: BLE001 - as with policies
        return fault(rule.name, "condition-error", f"The condition of rule {rule.name} raised {type(error).__name__}.")


# ---------------------------------------------------------------------- one rule


def _ask(rule: Rule, action: Action) -> Decision | None:
    """The decision of a rule whose policy is called in place; None when it has no opinion. Never raises an `Exception`."""
    try:
        return _in_its_name(rule, checked(_judgement(rule.policy, _own_copy(rule, action))))
    except Exception as error:  # noqa: BLE001 - whatever a policy raises is its denial
        return _failed(rule, error)


def _ask_and_wait(rule: Rule, action: Action, threads: Threads | None) -> Flow[Decision | None]:
    """As `_ask`, of what is waited for: a set, a policy that does not promise bounded cost, a coroutine."""
    try:
        if rule.members is not None:
            return _in_its_name(rule, (yield from judge_set(rule.members(), action, threads)))
        assert threads is not None
        action = _own_copy(rule, action)
        in_place = rule.in_place or action.point in rule.listens_at
        answer: Any = _judgement(rule.policy, action) if in_place else (yield from threads.call(rule, action))
        if rule.standalone and not isinstance(answer, Decision) and inspect.isawaitable(answer):
            answer = yield from threads.result_of(rule, answer)
        return _in_its_name(rule, checked(answer))
    except Exception as error:  # noqa: BLE001 - whatever a policy raises is its denial
        return _failed(rule, error)


def _own_copy(rule: Rule, action: Action) -> Action:
    """The action for a policy that does not promise bounded cost: it cannot change what the others judge."""
    if rule.bounded or action.point in rule.listens_at:
        return action
    return action.changed(arguments=private_copy(action.arguments), context=private_copy(action.context))


def _in_its_name(rule: Rule, decision: Decision | None) -> Decision | None:
    """The decision in the name of the rule of a set, or, outside of sets, in the name that it has."""
    if decision is None or (rule.standalone and rule.members is not None):
        return decision
    if rule.standalone:
        return complete(decision, decision.policy or rule.name)
    severity = rule.severity if decision.effect >= Effect.ESCALATE else None
    return complete(decision, decision.policy if decision.parts else rule.name, severity)


def _failed(rule: Rule, error: Exception) -> Decision:
    """The denial for a rule that raised, was late, or answered what is not a decision; the log has the cause."""
    _LOG.error("rule %s failed", rule.name, exc_info=error)
    if isinstance(error, _TooLate):
        return fault(rule.name, "policy-timeout", f"The policy {rule.name} {error}.")
    # The class of an error is named, its message is not: it may hold what the tool was called with.
    what = str(error) if isinstance(error, _BadAnswer) else f"raised {type(error).__name__}"
    return fault(rule.name, "policy-error", f"The policy {rule.name} {what}.")


# ---------------------------------------------------------------------- waiting

_GONE: ContextVar[threading.Event | None] = ContextVar("lgov_caller_gone", default=None)
_EXITS = SystemExit, GeneratorExit  # of a policy: its error, and no end of the program


def caller_gone() -> threading.Event:
    """The event that is set once nobody waits for the running judgement any more; a policy that waits stops then.

    The caller's task was cancelled, the caller was interrupted, or the time limit is over.
    """
    return _GONE.get() or threading.Event()


def _judgement(policy: Policy, action: Action, gone: threading.Event | None = None) -> Any:
    """The policy's answer; raises what it raises, but an `Exception` for what its caller would take for something else."""
    if gone is not None:
        _GONE.set(gone)
    try:
        return policy.judge(action)
    except (*_EXITS, TimeoutError) as error:
        raise _BadAnswer(f"raised {type(error).__name__}") from error


class _TooLate(Exception):
    """A policy did not answer in time. The message says so, in words that the model may read."""


class Threads:
    """The threads in which policies run that do not promise bounded cost, and the time limit for each of them."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def call(self, rule: Rule, action: Action) -> Flow[Any]:
        """Returns the policy's answer from a thread. Raises what it raises."""
        gone = threading.Event()
        future = self._submit(_judgement, rule.policy, action, gone)
        try:
            return (yield from wait(finished(future, self._limit(rule))))
        except TimeoutError as error:
            raise self._too_late(rule) from error
        finally:
            gone.set()

    def result_of(self, rule: Rule, awaitable: Awaitable[Any]) -> Flow[Any]:
        """Awaits on the caller's event loop, or for a synchronous caller on a loop of its own in a thread."""
        limit_s = self._limit(rule)

        async def to_the_end() -> Any:
            async with asyncio.timeout(limit_s):
                try:
                    return await awaitable
                except _EXITS as error:
                    raise _BadAnswer(f"raised {type(error).__name__}") from error

        step: Step[Any] = either(lambda: self._submit(asyncio.run, to_the_end()).result(limit_s), to_the_end)
        try:
            return (yield from wait(step))
        except TimeoutError as error:
            raise self._too_late(rule) from error

    def _limit(self, rule: Rule) -> float:
        return self.timeout_s if rule.timeout_s is None else max(self.timeout_s, rule.timeout_s)

    def _too_late(self, rule: Rule) -> _TooLate:
        return _TooLate(f"did not answer within {self._limit(rule):g} s")

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="lgov-policy")
            return self._pool.submit(contextvars.copy_context().run, function, *arguments)

    def close(self) -> None:
        """Shuts the threads down; a policy that hangs keeps its own. Decisions may still be asked for."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)


# ---------------------------------------------------------------------- decisions


class _BadAnswer(Exception):
    """A policy answered something that is not a decision. The message says what, in words that the model may read."""


def fold(action: Action, decision: Decision) -> Action:
    """The action as ``decision`` leaves it: a transform's arguments or text put in place of the action's own."""
    if decision.effect is not Effect.TRANSFORM:
        return action
    return action.changed(arguments=decision.arguments, text=decision.text)


def combine(
    decisions: Sequence[Decision], *, original: Action, folded: Action, shadow_of: str | None = None
) -> Decision:
    """One decision out of several.

    The most severe effect wins; of equals the first taken is the face (its policy, rule and reason). ``parts`` carries
    all of them, flattened. What the transforms left of the action is kept (``arguments``, ``text``) unless the result
    blocks. A result that blocks is a ``fault``, or ``premature``, when every part that blocks is. An empty sequence is an
    allow without parts. With ``shadow_of``, the name of a set in shadow mode, the result allows and every part is
    ``shadowed``; a plain allow keeps its policy, rule and reason.
    """
    if not decisions:
        return ALLOW.changed()
    face = max(decisions, key=lambda decision: decision.effect)  # max keeps the first of equals
    parts = [component for decision in decisions for component in (decision.parts or (decision,))]
    if shadow_of is not None:
        marked = tuple(component.changed(shadowed=True) for component in parts)
        if face.effect is Effect.ALLOW:
            return face.changed(parts=marked, shadowed=True)
        reason = "The policy set is in shadow mode; nothing is blocked."
        return Decision(Effect.ALLOW, shadow_of, "shadow", reason, parts=marked, shadowed=True)
    blocks = face.effect >= Effect.ESCALATE
    blocking = [each for each in parts if each.effect >= Effect.ESCALATE and not each.shadowed] if blocks else []
    return Decision(
        face.effect,
        face.policy,
        face.rule,
        face.reason,
        face.severity,
        abort=blocks and any([decision.abort for decision in decisions if decision.effect >= Effect.ESCALATE]),
        arguments=None if blocks or folded.arguments is original.arguments else folded.arguments,
        text=None if blocks or folded.text is original.text else folded.text,
        parts=tuple(parts),
        shadowed=any(component.shadowed for component in (face, *parts)),
        request=face.request,
        fault=blocks and all([decision.fault for decision in blocking]),
        premature=blocks and all([decision.premature for decision in blocking]),
    )


def checked(answer: object) -> Decision | None:
    """``answer`` when it is a decision that has a meaning, or None. Raises `_BadAnswer` for anything else.

    The arguments of a transform are copied: what the policy does with its own afterwards changes nothing.
    """
    if answer is None:
        return None
    if not isinstance(answer, Decision):
        if inspect.iscoroutine(answer):
            answer.close()
        raise _BadAnswer(f"answered {type(answer).__name__} instead of a Decision")
    if not isinstance(answer.effect, Effect):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _BadAnswer("answered an effect that does not exist")
    if not isinstance(answer.severity, Severity):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _BadAnswer("answered a severity that does not exist")
    for component in answer.parts:
        if not isinstance(component, Decision):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _BadAnswer("answered parts that are not decisions")
    if answer.effect is Effect.TRANSFORM:
        if answer.arguments is None and answer.text is None:
            raise _BadAnswer("answered a transform without saying into what")
        if not isinstance(answer.arguments, Mapping | None) or not isinstance(answer.text, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _BadAnswer("answered a transform into what is not an argument mapping or no text")
        try:
            return answer.changed(arguments=private_copy(answer.arguments))
        except RecursionError:
            raise _BadAnswer(
                "answered a transform into arguments that contain themselves, or are nested too deep"
            ) from None
    return answer


def complete(answer: Decision, policy: str, severity: Severity | None = None) -> Decision:
    """``answer`` in the name of ``policy``, with a slug and a reason if it had none, and with ``severity`` if one is given."""
    if answer.rule and answer.reason and answer.policy == policy and severity is None:
        return answer
    plain = answer.effect is Effect.ALLOW and not (answer.rule or answer.parts)
    reason = answer.reason or f"{policy} {'has nothing against it' if plain else f'answers {answer.effect.label}'}."
    return answer.changed(policy=policy, rule=answer.rule or answer.effect.label, reason=reason, severity=severity)


def fault(policy: str, rule: str, reason: str) -> Decision:
    """A deny because the judgement itself failed; it says nothing about the agent."""
    return Decision(Effect.DENY, policy, rule, reason, Severity.CRITICAL, fault=True)


def private_copy(value: Any) -> Any:
    """``value`` with containers of its own, so that changes to it do not reach the caller's arguments.

    Mappings become dicts, lists and tuples stay what they are; what is not a container is shared. Raises `RecursionError` for
    a value that contains itself.
    """
    if isinstance(value, Mapping):
        return {key: private_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [private_copy(item) for item in value]
    if isinstance(value, tuple):
        return tuple(private_copy(item) for item in value)
    return value.copy() if isinstance(value, (set, bytearray)) else value
