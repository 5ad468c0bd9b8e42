"""What the tests of ApprovalPolicy share: a clock, a call, a governor, and where requests are kept."""

from __future__ import annotations

from typing import Any

from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import (
    ApprovalPolicy,
    ApprovalRequest,
)
from lgov_core.types import Action, Point


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def pay(amount: Any = 10, **fields: Any) -> Action:
    given: dict[str, Any] = {"agent": "clerk", "rollout_id": "ro_1", "arguments": {"to": "Ann", "amount": amount}}
    return Action(Point.PRE_TOOL_CALL, **{"name": "pay", **given, **fields})


def governor(*policies: Any, plugins: Any = (), **options: Any) -> Governor:
    return Governor(policies, manager=make_plugin_manager(plugins, builtin=(), third_party=False), **options)


def only_pending(policy: ApprovalPolicy) -> ApprovalRequest:
    (request,) = policy.pending()
    return request
