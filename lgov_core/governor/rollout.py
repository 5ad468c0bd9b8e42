"""The rollout an action belongs to, and the context manager around one attempt at a rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from typing import Any

from lgov_core.errors import PolicyDenied
from lgov_core.flow import Flow, arun_flow, run_flow
from lgov_core.scope import RolloutScope, current_scope, enter_scope
from lgov_core.types import Action, Decision, Point, new_id

_AFTER_A_CALL = frozenset({Point.POST_MODEL_CALL, Point.POST_TOOL_CALL})


def in_scope(action: Action, *, identify: bool = False) -> Action:
    """The action with the ids of the current rollout where it has none.

    ``identify`` also gives it an operation id where the adapter gave none, so that stateful policies recognise it when a
    transform has it judged again. Not after a call: which call that was is unknown there.
    """
    changes: dict[str, Any] = {}
    if identify and action.operation_id is None and action.point not in _AFTER_A_CALL:
        changes["operation_id"] = new_id("op")
    scope = current_scope() if action.rollout_id is None else None
    if scope is not None:
        changes |= {"rollout_id": scope.rollout_id, "attempt": scope.attempt}
        changes["session_id"] = action.session_id or scope.session_id
    return replace(action, **changes) if changes else action


class RolloutContext(AbstractContextManager[RolloutScope, None], AbstractAsyncContextManager[RolloutScope, None]):
    """See `Governor.rollout`."""

    def __init__(self, decide: Callable[[Action], Flow[Decision]], scope: RolloutScope) -> None:
        self._decide = decide
        self._scope = scope
        self._entered = enter_scope(scope)

    def __enter__(self) -> RolloutScope:
        return run_flow(self._begin())

    def __exit__(self, _type: Any, error: BaseException | None, _traceback: Any) -> None:
        run_flow(self._end(error))

    async def __aenter__(self) -> RolloutScope:
        return await arun_flow(self._begin())

    async def __aexit__(self, _type: Any, error: BaseException | None, _traceback: Any) -> None:
        await arun_flow(self._end(error))

    def _begin(self) -> Flow[RolloutScope]:
        with enter_scope(self._scope):
            decision = yield from self._decide(self._action(Point.AGENT_STARTUP))
            if decision.blocks:
                yield from self._decide(self._action(Point.AGENT_SHUTDOWN, reason="error"))
                raise PolicyDenied(decision)
        self._entered.__enter__()
        return self._scope

    def _end(self, error: BaseException | None) -> Flow[None]:
        cancelled = isinstance(error, asyncio.CancelledError)
        reason = "completed" if error is None else "cancelled" if cancelled else "error"
        try:
            yield from self._decide(self._action(Point.AGENT_SHUTDOWN, reason=reason))
        finally:
            self._entered.__exit__(None, None, None)

    def _action(self, point: Point, **arguments: Any) -> Action:
        return Action(point, name=self._scope.task_id or self._scope.rollout_id, kind="agent", arguments=arguments)
