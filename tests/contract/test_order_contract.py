"""`use: order` in every framework and at the endpoint: what the agent did before decides, and one turn is too early."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog
from lgov_core.authoring.replay import from_audit, from_store, replay_file
from lgov_core.gateway import GateReply, GateRequest, PolicyGate
from lgov_core.governor import Governor
from lgov_core.policies import load_policies
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.store import open_store
from lgov_core.testing import ScriptedModelServer
from lgov_core.trace.sink import StoreSink
from lgov_core.wire.exchange import ToolCall
from tests.cells import Seen, asks, says
from tests.contract import agents_sdk_driver, autogen_driver, langchain_driver, openai_driver
from tests.contract.adapter_driver import Driver, Program

pytestmark = pytest.mark.filterwarnings("ignore")

SETUPS = [setup for of in (langchain_driver, autogen_driver, openai_driver, agents_sdk_driver) for setup in of.SETUPS]
#: Erases a file only after a look at it, and only once.
ORDER = {
    "version": 1,
    "rules": [
        {"use": "tool", "with": {"allow": ["look", "erase_file"]}},
        {
            "name": "look first",
            "tools": ["erase_file"],
            "use": "order",
            "with": {
                "after": {"tool": "look", "same": "path", "within": 5, "result": {"field": "text", "contains": "old"}},
                "at_most": 1,
                "per": "path",
            },
        },
    ],
}
TURNS = [
    asks(("c1", "erase_file", {"path": "a"})),
    asks(("c2", "look", {"path": "a"}), ("c3", "erase_file", {"path": "a"})),
    asks(("c4", "erase_file", {"path": "a"}), ("c5", "look", {"path": "b"})),
    asks(("c6", "erase_file", {"path": "a"}), ("c7", "erase_file", {"path": "b"}), ("c8", "erase_file", {"path": "c"})),
    says("done"),
]


@pytest.mark.parametrize(
    ("driver", "way", "mode", "in_rollout"),
    [
        pytest.param(driver, way, mode, in_rollout, id=f"{driver.name}-{way}-{mode}-{in_rollout}")
        for driver, way in SETUPS
        for mode in driver.modes
        for in_rollout in (True, False)
        # Without either nothing says which calls belong together.
        if in_rollout or (driver.agents and driver.has_agent_span(Program("", Governor(), way, mode)))
    ],
)
def test_a_file_is_erased_once_and_after_a_look(driver: Driver, way: str, mode: str, in_rollout: bool) -> None:
    erased: list[str] = []

    def look(path: str) -> str:
        """Looks at a file."""
        return f"{path} is old"

    def erase_file(path: str) -> str:
        """Erases a file."""
        erased.append(path)
        return f"erased {path}"

    seen = Seen()
    governor = Governor([load_policies(ORDER)], plugins=[seen], capture_content=True)
    scope = enter_scope(RolloutScope("r", 1)) if in_rollout else nullcontext()
    with ScriptedModelServer(list(TURNS)) as server, driver.governed(way, governor), scope:
        driver.run(Program(server.base_url, governor, way, mode, [look, erase_file]))
    governor.close()
    denied = {event.action.call_id: event.decision for event in seen.decisions() if event.decision.blocks}
    assert {call_id: decision.rule for call_id, decision in denied.items()} == {
        "c1": "order-after", "c3": "order-after", "c6": "order-limit", "c8": "order-after",
    }  # fmt: skip
    assert erased == ["a", "b"]
    assert denied["c1"].reason == "Call look with the same path first, and erase_file once you have read the result."


@pytest.mark.parametrize("source", ["store", "audit"])
@pytest.mark.parametrize(("driver", "way"), SETUPS, ids=lambda part: getattr(part, "name", part))
def test_a_replay_denies_what_the_rule_would_have(driver: Driver, way: str, source: str, tmp_path: Path) -> None:
    def look(path: str) -> str:
        """Looks at a file."""
        return f"{path} is old"

    def erase_file(path: str) -> str:
        """Erases a file."""
        return f"erased {path}"

    everything = load_policies({"version": 1, "rules": [{"use": "allow"}]})
    with open_store(tmp_path / "store.sqlite") as store, AuditLog(tmp_path / "audit.sqlite") as audit:
        governor = Governor([everything], plugins=[StoreSink(store)], audit=audit, capture_content=True)
        scope = enter_scope(RolloutScope("r", 1))
        with ScriptedModelServer(list(TURNS)) as server, driver.governed(way, governor), scope:
            driver.run(Program(server.base_url, governor, way, driver.modes[0], [look, erase_file]))
        governor.close()
        store.flush()
        path = tmp_path / "policy.yaml"
        path.write_text(json.dumps(ORDER))
        replayed = replay_file(path, from_store(store) if source == "store" else from_audit(audit.entries()))
    assert {change.recorded.action.call_id: change.decision.rule for change in replayed.changes} == {
        "c1": "order-after", "c3": "order-after", "c6": "order-limit", "c8": "order-after",
    }  # fmt: skip


async def test_at_the_endpoint_a_result_counts_if_its_call_was_released_in_the_attempt() -> None:
    gate = PolicyGate(Governor([load_policies(ORDER)]))
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Tidy up."}]

    async def turn(*calls: tuple[str, str, str], attempt: int = 1) -> list[str]:
        """Sends the conversation; the model proposes ``calls``. Returns the ids of those that the agent gets."""
        request = GateRequest("m", list(messages), rollout_id="r", attempt=attempt)
        await gate.admit(request)
        proposed = tuple(ToolCall(call_id, name, json.dumps({"path": path})) for call_id, name, path in calls)
        (reply,) = await gate.release(request, [GateReply("id", "", proposed, "tool_calls")])
        return [call.call_id for call in reply.tool_calls]

    def returns(call_id: str, name: str, path: str, text: str) -> None:
        call = {"id": call_id, "name": name, "args": {"path": path}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": text, "tool_call_id": call_id})

    assert await turn(("c1", "look", "a"), ("c2", "erase_file", "a")) == ["c1"]
    returns("c0", "look", "b", "b is old")
    returns("c1", "look", "a", "a is old")
    assert await turn(("c3", "erase_file", "b"), ("c4", "erase_file", "a")) == ["c4"], "nobody asked to look at b"
    assert await turn(("c5", "erase_file", "a"), attempt=2) == []
    gate.close()
