"""A policy as a plugin: it allows payments up to a limit for each call and a total for each rollout."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from lgov_core import Action, Decision, hookimpl
from lgov_core.errors import PolicyError
from lgov_core.policies import BoundedPolicy


class PaymentLimit(BoundedPolicy):
    """Denies a payment above ``per_call``, and one that would take its rollout above ``per_rollout``.

    ``argument`` names the argument that holds the amount. An amount that is not a number is denied.
    """

    permits = True  # a payment within the limits is allowed; without this it would only restrict

    def __init__(self, *, per_call: float, per_rollout: float, argument: str = "amount", name: str = "payment_limit"):
        for option, value in (("per_call", per_call), ("per_rollout", per_rollout)):
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise PolicyError(f"{name}: {option} is {value!r}", hint=f"write a number above 0, as in {option}: 100")
        self.name = name
        self.per_call, self.per_rollout, self.argument = per_call, per_rollout, argument
        self._paid: defaultdict[str | None, float] = defaultdict(float)
        self._counted: set[str] = set()
        self._lock = threading.Lock()  # several threads call a policy at once

    def judge(self, action: Action) -> Decision | None:
        """Judges a payment. Called before each act that a rule with ``use: payment_limit`` covers."""
        amount = action.arguments.get(self.argument)
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount < float("inf"):
            return self.deny("no-amount", f"{self.argument} is {amount!r}, which is not an amount.")
        if amount > self.per_call:
            return self.deny("too-much", f"{amount:g} is above {self.per_call:g}, the limit of one payment.")
        with self._lock:
            # If another rule changes the call, lgov judges it again: it must not count twice.
            first = action.operation_id is None or action.operation_id not in self._counted
            total = self._paid[action.rollout_id] + (amount if first else 0)
            if total > self.per_rollout:
                return self.deny("spent", f"With this payment {total:g} would be spent, of {self.per_rollout:g}.")
            self._paid[action.rollout_id] = total
            if action.operation_id is not None:
                self._counted.add(action.operation_id)
        return self.allow("within")


@hookimpl
def lgov_policies() -> dict[str, Any]:
    """What policy files may ``use``."""
    return {"payment_limit": PaymentLimit}
