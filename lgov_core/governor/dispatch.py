"""Who is asked about an action, and how: bounded voices directly, others watched, in their order and with a deadline."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any

import pluggy

from lgov_core.hookspecs import DECISION_HOOKS
from lgov_core.policies.base import Policy
from lgov_core.policies.combine import BadAnswer, checked, complete, fault, private_copy
from lgov_core.types import Action, Decision, Effect, Point

_HOOK_OF_POINT = {point: f"lgov_{point.value}" for point in Point}
assert set(_HOOK_OF_POINT.values()) == set(DECISION_HOOKS)


@dataclass(frozen=True, slots=True, eq=False)
class Evaluator:
    """One voice in a decision: an implementation of a hook, or a policy given to the governor directly."""

    name: str
    ask: Callable[[Action], Any]
    bounded: bool
    is_async: bool
    timeout_s: float
    deferred: bool = False


class Dispatcher:
    """The voices of one governor: its ``policies`` first, in their order, then the decision hooks of ``manager``.

    ``timeout_s`` bounds each voice that does not promise bounded cost. Fails closed: a voice that raises, is late or
    answers what is no decision has denied. All methods may be called from any thread and task.
    """

    def __init__(self, policies: Sequence[Policy], manager: pluggy.PluginManager, timeout_s: float) -> None:
        self._policies = policies
        self._manager = manager
        self._timeout_s = timeout_s
        self._of_point: dict[Point, tuple[Evaluator, ...]] = {}
        self._lock = threading.Lock()
        self._watched: ThreadPoolExecutor | None = None

    def of(self, point: Point) -> tuple[Evaluator, ...]:
        """Those that are asked at ``point``, in the order in which they are asked."""
        judges = self._of_point.get(point)
        if judges is None:
            found = [self._judge(policy.name, policy.judge, policy, is_async=False) for policy in self._policies]
            caller = getattr(self._manager.hook, _HOOK_OF_POINT[point])
            # get_hookimpls lists them in the order in which pluggy registered them; the last registered is called first.
            for impl in reversed(caller.get_hookimpls()):
                takes = set(impl.argnames)
                found.append(
                    self._judge(
                        impl.plugin_name,
                        impl.function if "action" in takes else _without_arguments(impl.function),
                        impl.plugin,
                        is_async=inspect.iscoroutinefunction(impl.function),
                    )
                )
            judges = self._of_point[point] = tuple(sorted(found, key=lambda judge: judge.deferred))
        return judges

    def _judge(self, name: str, ask: Callable[[Action], Any], owner: object, *, is_async: bool) -> Evaluator:
        own = getattr(owner, "timeout_s", None)
        timeout_s = max(self._timeout_s, own) if isinstance(own, int | float) else self._timeout_s
        bounded = bool(getattr(owner, "bounded", False))
        deferred = bool(getattr(owner, "deferred", False))
        return Evaluator(name, ask, bounded, is_async, timeout_s, deferred)

    def changed(self) -> None:
        """Has the plugins looked up again at the next decision."""
        self._of_point.clear()

    def ask(self, judge: Evaluator, action: Action) -> Decision | None:
        """The decision of ``judge``, for a synchronous caller; None when it has no opinion."""
        try:
            if judge.bounded and not judge.is_async:
                answer = judge.ask(action)
            else:
                answer = self._pool().submit(_carried(judge.ask), _own(judge, action)).result(judge.timeout_s)
            if type(answer) is not Decision and inspect.isawaitable(answer):
                answer = self._pool().submit(_carried(_run_to_end), answer, judge.timeout_s).result(judge.timeout_s)
            return _checked(answer, judge)
        except Exception as error:  # noqa: BLE001 - whatever a policy raises is a deny in its slot
            return _failed(judge, error)

    async def aask(self, judge: Evaluator, action: Action) -> Decision | None:
        """As `ask`, for an asynchronous caller; the event loop is not held up by slow policies."""
        try:
            if judge.is_async or judge.bounded:
                answer = judge.ask(_own(judge, action))
            else:
                future = asyncio.wrap_future(self._pool().submit(_carried(judge.ask), _own(judge, action)))
                answer = await asyncio.wait_for(future, judge.timeout_s)
        except Exception as error:  # noqa: BLE001 - whatever a policy raises is a deny in its slot
            return _failed(judge, error)
        return await self.awaited(judge, answer)

    @staticmethod
    async def awaited(judge: Evaluator, answer: Any) -> Decision | None:
        """The decision that ``answer`` is, or that it is an awaitable of."""
        try:
            if type(answer) is not Decision and inspect.isawaitable(answer):
                answer = await asyncio.wait_for(answer, judge.timeout_s)
            return _checked(answer, judge)
        except Exception as error:  # noqa: BLE001 - as above
            return _failed(judge, error)

    @staticmethod
    def told(judge: Evaluator, action: Action) -> Any:
        """What a judge says at once, checked; an awaitable is given back as it is. Raises no `Exception`."""
        try:
            answer = judge.ask(action)
            return answer if type(answer) is not Decision and inspect.isawaitable(answer) else _checked(answer, judge)
        except Exception as error:  # noqa: BLE001 - as above
            return _failed(judge, error)

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._watched is None:
                self._watched = ThreadPoolExecutor(max_workers=32, thread_name_prefix="lgov-policy")
            return self._watched

    def close(self) -> None:
        """Gives the watched threads back; a policy that hangs keeps its own. They may still be asked."""
        with self._lock:
            pool, self._watched = self._watched, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def denied(taken: Mapping[Evaluator, Decision]) -> bool:
    """Whether one of the decisions of a round is a denial."""
    return any(decision.effect is Effect.DENY for decision in taken.values())


def verdicts(rounds: Sequence[Mapping[Evaluator, Decision]], settled: bool) -> list[Decision]:
    """What counts of all rounds: the first, and of the later ones, which judge what the transforms made, what blocks.

    An escalation asks for approval of one form of the action. Where transforms went on to change it, only the form that
    would run needs approval: what the same judge says about that one takes the place of the escalation.
    """
    if len(rounds) == 1:
        return list(rounds[0].values())
    final = rounds[-1]
    found: list[Decision] = []
    for number, taken in enumerate(rounds):
        for judge, decision in taken.items():
            counts = decision
            if decision.effect is Effect.ESCALATE and taken is not final and settled:
                counts = final.get(judge)
            if counts is not None and (number == 0 or counts.blocks) and not any(counts is one for one in found):
                found.append(counts)
    return found


def _own(judge: Evaluator, action: Action) -> Action:
    """The action with arguments that are the judge's own to change, unless it is one of the built-in, bounded kind."""
    if judge.bounded:
        return action
    return action.changed(arguments=private_copy(action.arguments), context=private_copy(action.context))


def _failed(judge: Evaluator, error: Exception) -> Decision:
    """The denial for a judge that raised, was late, or answered what is no decision."""
    if isinstance(error, TimeoutError | FutureTimeoutError):
        return fault(judge.name, "policy-timeout", f"{judge.name} did not answer within {judge.timeout_s:g} s")
    if isinstance(error, BadAnswer):
        return fault(judge.name, "policy-error", f"{judge.name} {error}")
    return fault(judge.name, "policy-error", f"{judge.name} failed with {type(error).__name__}")


def _checked(answer: Any, judge: Evaluator) -> Decision | None:
    decision = checked(answer)
    if decision is None:
        return None
    if decision.arguments is not None and not judge.bounded:
        decision = decision.changed(arguments=private_copy(decision.arguments))
    return complete(decision, decision.policy or judge.name)


def _without_arguments(function: Callable[[], Any]) -> Callable[[Action], Any]:
    return lambda _action: function()


def _carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with the caller's context variables, for a thread of the pool."""
    context = contextvars.copy_context()
    return lambda *args: context.run(function, *args)


def _run_to_end(awaitable: Awaitable[Any], timeout_s: float) -> Any:
    async def wait() -> Any:
        return await asyncio.wait_for(awaitable, timeout_s)

    return asyncio.run(wait())
