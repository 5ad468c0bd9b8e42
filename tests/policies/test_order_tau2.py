"""The order rules of tau2's retail and airline policies, replayed over the ground truth of its tasks.

The data comes with the package inspect-evals (``pip install --no-deps inspect-evals==0.28.0``), which is looked for and not
imported; without it the tests are skipped. Each rule is replayed alone. What it must deny is worked out beside it, by
functions that walk the list of calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from lgov_core.authoring.replay import from_store, replay_file
from lgov_core.governor import Governor
from lgov_core.policies import load_policies
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.store import TraceStore, open_store
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Action, Point, ToolOutcome, ToolStatus
from tests.policies.tau2_tasks import DATA, Call, ground_truth

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    DATA is None or not DATA.is_dir(), reason="tau2's tasks are not here: pip install --no-deps inspect-evals==0.28.0"
)


@pytest.fixture(scope="module")
def recorded() -> dict[str, tuple[list[Call], TraceStore]]:
    """By domain the calls, and a trace store in which each task is a rollout."""
    stores: dict[str, tuple[list[Call], TraceStore]] = {}
    for domain in ("retail", "airline"):
        calls, store = ground_truth(domain), open_store("memory://")
        governor = Governor(load_policies({"version": 1, "rules": [{"use": "allow"}]}), plugins=[StoreSink(store)])
        for call in calls:
            with enter_scope(RolloutScope(call.task, 1)):
                ids = {"call_id": f"{call.task}-{call.number}", "operation_id": f"{call.task}-{call.number}"}
                action = Action(Point.PRE_TOOL_CALL, call.tool, arguments=call.arguments, **ids)
                status: ToolStatus = "error" if call.result is None else "ok"
                governor.record(ToolOutcome(action, status, call.result, decision=governor.decide(action)))
        store.flush()
        stores[domain] = calls, store
    return stores


# ---------------------------------------------------------------------- what must be denied

#: Says of the calls that were made and a further one whether it may be made.
Check = Callable[[Sequence[Call], Call], bool]


def after(tools: str, *, same: str | None = None, status: str | None = None, last: int | None = None) -> Check:
    def check(made: Sequence[Call], call: Call) -> bool:
        recent = made if last is None else made[-last:]
        reads = [
            earlier
            for earlier in recent
            if earlier.tool.startswith(tools) and (same is None or earlier.arguments[same] == call.arguments[same])
        ]
        if status is None:
            return any(read.result is not None for read in reads)
        return bool(reads) and json.loads(reads[-1].result or "{}").get("status") == status

    return check


def never(tool: str, same: str | None = None) -> Check:
    def check(made: Sequence[Call], call: Call) -> bool:
        return not any(
            earlier.tool == tool and (same is None or earlier.arguments[same] == call.arguments[same])
            for earlier in made
        )

    return check


def once(per: str) -> Check:
    def check(made: Sequence[Call], call: Call) -> bool:
        return all((other.tool, other.arguments.get(per)) != (call.tool, call.arguments[per]) for other in made)

    return check


ORDER, BOOKING, USER = {"same": "order_id"}, {"same": "reservation_id"}, {"same": "user_id"}
PENDING_ORDER = ("modify_pending_order_items", "modify_pending_order_address", "modify_pending_order_payment")
CHANGING = ("cancel_", "modify_", "return_", "exchange_")
#: By domain and rule: the beginnings of its tools, the check, and the number of violations in the ground truth.
EXPECTED: dict[str, dict[str, tuple[tuple[str, ...], Check, int]]] = {
    "retail": {
        "authenticate before reading": (("get_user_", "get_order_"), after("find_user_id_by_"), 0),
        "authenticate before changing": (CHANGING, after("find_user_id_by_"), 86),
        "read before cancelling": (("cancel_",), after("get_order_details", **ORDER), 12),
        "read before modifying": (PENDING_ORDER, after("get_order_details", **ORDER), 39),
        "read before returning": (("return_",), after("get_order_details", **ORDER), 16),
        "read before exchanging": (("exchange_",), after("get_order_details", **ORDER), 19),
        "cancel what is pending": (("cancel_",), after("get_order_details", **ORDER, status="pending"), 12),
        "modify what is pending": (PENDING_ORDER, after("get_order_details", **ORDER, status="pending"), 39),
        "return what is delivered": (("return_",), after("get_order_details", **ORDER, status="delivered"), 16),
        "exchange what is delivered": (("exchange_",), after("get_order_details", **ORDER, status="delivered"), 20),
        "modify items once": (("modify_pending_order_items",), once("order_id"), 0),
        "exchange once": (("exchange_",), once("order_id"), 0),
        "nothing after items were modified": (
            ("cancel_", "modify_pending_order_address", "modify_pending_order_payment"),
            never("modify_pending_order_items", "order_id"),
            0,
        ),
        "read the user before a change of address": (("modify_user_",), after("get_user_details", **USER), 6),
        "nothing after a transfer": (("",), never("transfer_to_human_agents"), 0),
    },
    "airline": {
        "read before cancelling": (("cancel_",), after("get_reservation_details", **BOOKING), 5),
        "read before changing flights": (
            ("update_reservation_flights",),
            after("get_reservation_details", **BOOKING),
            11,
        ),
        "read before changing bags or passengers": (
            ("update_reservation_baggages", "update_reservation_passengers"),
            after("get_reservation_details", **BOOKING),
            5,
        ),
        "read the user before booking": (("book_",), after("get_user_details", **USER), 8),
        "read the user before compensating": (("send_",), after("get_user_details", **USER), 0),
        "facts before compensating": (("send_",), after("get_reservation_details", last=3), 1),
        "no change of what is cancelled": (("update_",), never("cancel_reservation", "reservation_id"), 0),
        "cancel once": (("cancel_",), once("reservation_id"), 0),
        "nothing after a transfer": (("",), never("transfer_to_human_agents"), 0),
    },
}


def violations(calls: Sequence[Call], tools: tuple[str, ...], check: Check) -> list[tuple[str, int]]:
    """The task and the index of each call that breaks a rule; a call that breaks it is not made."""
    made: dict[str, list[Call]] = {}
    broken: list[tuple[str, int]] = []
    for call in calls:
        before = made.setdefault(call.task, [])
        if call.tool.startswith(tools) and not check(before, call):
            broken.append((call.task, call.number))
        else:
            before.append(call)
    return broken


@pytest.mark.parametrize(("domain", "rule"), [(domain, rule) for domain, rules in EXPECTED.items() for rule in rules])
def test_a_replay_finds_the_violations_and_no_others(domain: str, rule: str, recorded: Any, tmp_path: Path) -> None:
    calls, store = recorded[domain]
    document = yaml.safe_load((HERE / f"tau2_{domain}.yaml").read_text())
    document["rules"] = [document["rules"][0], *(each for each in document["rules"] if each.get("name") == rule)]
    assert len(document["rules"]) == 2
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(document))
    replayed = replay_file(path, from_store(store))
    assert (replayed.judged, replayed.incomplete, replayed.blocked_then) == (len(calls), 0, 0)
    found = [str(change.recorded.action.call_id) for change in replayed.changes]
    tools, check, count = EXPECTED[domain][rule]
    assert found == [f"{task}-{index}" for task, index in violations(calls, tools, check)]
    assert len(found) == count, found


def test_the_rules_are_those_of_the_files() -> None:
    for domain, rules in EXPECTED.items():
        document = yaml.safe_load((HERE / f"tau2_{domain}.yaml").read_text())
        assert [each["name"] for each in document["rules"][1:]] == list(rules)
