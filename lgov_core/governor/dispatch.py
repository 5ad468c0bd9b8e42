"""Runs the policies and decision hooks for one action: bounded ones inline, everything else in a thread with a timeout."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pluggy

from lgov_core.flow import Flow, Step, either, finished, wait
from lgov_core.governor.caller import set_caller_gone
from lgov_core.governor.combine import BadAnswer, checked, complete, fault, fold, private_copy
from lgov_core.hookspecs import DECISION_HOOKS
from lgov_core.types import Action, Decision, Effect, Point, Policy

#: A transformed action is judged again; one that still changes after this many rounds is denied.
MAX_TRANSFORM_ROUNDS = 4
#: Judgements that may wait at the same time, for a person among others.
_THREADS = 128

_HOOK_OF_POINT = {point: f"lgov_{point.value}" for point in Point}
assert set(_HOOK_OF_POINT.values()) == set(DECISION_HOOKS)


@dataclass(frozen=True, slots=True, eq=False)
class Evaluator:
    """An implementation of a decision hook, or a policy given to the governor directly."""

    name: str
    judge: Callable[[Action], Any]
    bounded: bool
    is_async: bool
    timeout_s: float
    deferred: bool
    owner: object


class Dispatcher:
    """The evaluators of one governor: its ``policies`` first, in their order, then the decision hooks of ``manager``.

    ``timeout_s`` bounds each evaluator that does not promise bounded cost. Fails closed: an evaluator that raises, times
    out or returns something that is not a `Decision` has denied. All methods may be called from any thread and task.
    """

    def __init__(self, policies: Sequence[Policy], manager: pluggy.PluginManager, timeout_s: float) -> None:
        self._policies = policies
        self._manager = manager
        self._timeout_s = timeout_s
        self._of_point: dict[Point, tuple[Evaluator, ...]] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def evaluators(self, point: Point) -> tuple[Evaluator, ...]:
        """The evaluators of ``point``, in the order in which they run: deferred ones last."""
        evaluators = self._of_point.get(point)
        if evaluators is None:
            found = [self._evaluator(policy.name, policy.judge, policy, is_async=False) for policy in self._policies]
            caller = getattr(self._manager.hook, _HOOK_OF_POINT[point])
            # get_hookimpls lists them in the order in which pluggy registered them; the last registered is called first.
            for impl in reversed(caller.get_hookimpls()):
                judge = impl.function if "action" in impl.argnames else _without_arguments(impl.function)
                is_async = inspect.iscoroutinefunction(impl.function)
                found.append(self._evaluator(impl.plugin_name, judge, impl.plugin, is_async=is_async))
            evaluators = self._of_point[point] = tuple(sorted(found, key=lambda one: one.deferred))
        return evaluators

    def _evaluator(self, name: str, judge: Callable[[Action], Any], owner: object, *, is_async: bool) -> Evaluator:
        own = getattr(owner, "timeout_s", None)
        timeout_s = max(self._timeout_s, own) if isinstance(own, int | float) else self._timeout_s
        bounded, deferred = (bool(getattr(owner, flag, False)) for flag in ("bounded", "deferred"))
        return Evaluator(name, judge, bounded, is_async, timeout_s, deferred, owner)

    def reads_replies(self) -> bool:
        """Whether an evaluator reads the texts of models, now: a set of policies may be replaced."""
        points = (Point.POST_MODEL_CALL, Point.OUTPUT)
        return any(getattr(one.owner, "reads_replies", True) for point in points for one in self.evaluators(point))

    def plugins_changed(self) -> None:
        """Looks the plugins up again at the next decision."""
        self._of_point.clear()

    def evaluate(self, action: Action) -> Flow[tuple[list[Decision], Action]]:
        """The decisions on ``action`` that count, in order, and the action as their transforms left it.

        Each evaluator gets the action as the ones before it left it; while transforms change it, all are asked again.
        """
        rounds: list[dict[Evaluator, Decision]] = []
        current = action
        while True:
            before = current
            taken: dict[Evaluator, Decision] = {}
            for evaluator in self.evaluators(action.point):
                if evaluator.deferred and any(decision.effect is Effect.DENY for decision in taken.values()):
                    continue
                decision = yield from self._ask(evaluator, current)
                if decision is not None:
                    taken[evaluator] = decision
                    current = fold(current, decision)
            rounds.append(taken)
            if _same(before, current):
                return _counting(rounds, settled=True), current
            if len(rounds) == MAX_TRANSFORM_ROUNDS:
                reason = f"the transforms of this action did not settle in {len(rounds)} rounds"
                unsettled = fault("lgov", "transform-unsettled", reason)
                return [*_counting(rounds, settled=False), unsettled], current

    def _ask(self, evaluator: Evaluator, action: Action) -> Flow[Decision | None]:
        """The decision of one evaluator; None when it has no opinion."""
        gone = threading.Event()
        try:
            if not evaluator.bounded:  # its own copy, so that it cannot change what the others judge
                arguments, context = private_copy(action.arguments), private_copy(action.context)
                action = action.changed(arguments=arguments, context=context)
            if evaluator.bounded or evaluator.is_async:
                answer = evaluator.judge(action)
            else:
                answer = yield from wait(
                    finished(self._in_thread(evaluator.judge, action, gone=gone), evaluator.timeout_s)
                )
            if not isinstance(answer, Decision) and inspect.isawaitable(answer):
                answer = yield from wait(self._awaiting(answer, evaluator.timeout_s))
            return _checked(answer, evaluator)
        except Exception as error:  # noqa: BLE001 - whatever a policy raises is its denial
            return _failed(evaluator, error)
        finally:
            gone.set()

    def _awaiting(self, awaitable: Awaitable[Any], timeout_s: float) -> Step[Any]:
        """Awaits on the caller's event loop, or for a synchronous caller on a loop of its own in a thread."""
        return either(
            lambda: self._in_thread(_run_to_end, awaitable, timeout_s).result(timeout_s),
            lambda: asyncio.wait_for(awaitable, timeout_s),
        )

    def _in_thread(self, function: Callable[..., Any], *arguments: Any, gone: threading.Event | None = None) -> Any:
        context = contextvars.copy_context()
        if gone is not None:
            context.run(set_caller_gone, gone)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="lgov-policy")
            return self._pool.submit(context.run, function, *arguments)

    def close(self) -> None:
        """Shuts the threads down; a policy that hangs keeps its own. Decisions may still be asked for."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _same(before: Action, after: Action) -> bool:
    return before is after or (before.arguments == after.arguments and before.text == after.text)


def _counting(rounds: Sequence[Mapping[Evaluator, Decision]], *, settled: bool) -> list[Decision]:
    """The decisions that count: those of the first round, and of the later ones, on the transformed action, what blocks.

    An escalation asks for approval of one form of the action. Where transforms changed it further, only the form that
    would run needs approval: the same evaluator's decision on that form replaces the escalation.
    """
    final = rounds[-1]
    found: list[Decision] = []
    for number, taken in enumerate(rounds):
        for evaluator, decision in taken.items():
            counts = decision
            if decision.effect is Effect.ESCALATE and taken is not final and settled:
                counts = final.get(evaluator)
            if counts is not None and (number == 0 or counts.blocks) and not any(counts is one for one in found):
                found.append(counts)
    return found


def _failed(evaluator: Evaluator, error: Exception) -> Decision:
    """The denial for an evaluator that raised, timed out, or returned something that is not a decision."""
    name = evaluator.name
    if isinstance(error, TimeoutError):
        return fault(name, "policy-timeout", f"{name} did not answer within {evaluator.timeout_s:g} s")
    said = str(error) if isinstance(error, BadAnswer) else f"failed with {type(error).__name__}"
    return fault(name, "policy-error", f"{name} {said}")


def _checked(answer: Any, evaluator: Evaluator) -> Decision | None:
    decision = checked(answer)
    return None if decision is None else complete(decision, decision.policy or evaluator.name)


def _without_arguments(function: Callable[[], Any]) -> Callable[[Action], Any]:
    return lambda _action: function()


def _run_to_end(awaitable: Awaitable[Any], timeout_s: float) -> Any:
    async def wait() -> Any:
        return await asyncio.wait_for(awaitable, timeout_s)

    return asyncio.run(wait())
