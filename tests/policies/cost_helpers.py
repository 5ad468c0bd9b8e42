"""What the tests of CostControlPolicy share: calls, a governor, and where budgets are kept."""

from __future__ import annotations

import functools
import json
from typing import Any

from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.types import Action, Decision, Effect, Point


@functools.cache
def _database() -> str:
    from tests.postgres_server import shared_server

    return shared_server().new_database()


def server_address() -> str:
    """The address of a database without budgets on a PostgreSQL server."""
    from tests.postgres_server import shared_server

    shared_server().execute("DROP SCHEMA IF EXISTS lgov_budgets CASCADE", database=_database())
    return shared_server().url(_database())


PRICES = {"gpt-x": {"input": 1.0, "output": 10.0}}
MESSAGES = [{"role": "user", "content": "How many people work here?"}]


def before(
    operation: str | None = "op_1", model: str = "gpt-x", rollout: str | None = "ro_1", **arguments: Any
) -> Action:
    arguments = {"messages": MESSAGES, "max_tokens": 100, **arguments}
    return Action(Point.PRE_MODEL_CALL, model, "model", arguments=arguments, rollout_id=rollout, operation_id=operation)


def after(operation: str | None = "op_1", model: str = "gpt-x", rollout: str | None = "ro_1", **usage: Any) -> Action:
    arguments = {"usage": usage} if usage else {}
    return Action(
        Point.POST_MODEL_CALL, model, "model", arguments=arguments, rollout_id=rollout, operation_id=operation
    )


def tool(operation: str | None = None, name: str = "search", rollout: str | None = "ro_1", **fields: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, name, operation_id=operation, rollout_id=rollout, **fields)


def refused(decision: Decision | None) -> str:
    assert decision is not None
    assert decision.effect is Effect.DENY
    return decision.rule


def governor(*policies: Any, **options: Any) -> Governor:
    return Governor(policies, manager=make_plugin_manager(builtin=(), third_party=False), **options)


BOUND = len(json.dumps({"messages": MESSAGES, "max_tokens": 100}, ensure_ascii=False)) + 100
