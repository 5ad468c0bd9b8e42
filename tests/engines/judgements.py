"""Run inside an environment that has an agent-os engine: judges, and prints what came out as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lgov_core import Action, Governor, Point
from lgov_core.errors import PolicyError
from lgov_core.integrations.agent_os import AgentOSPolicy
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import load_policies


def rule(name: str, field: str, operator: str, value: Any, action: str = "deny", priority: int = 0) -> dict[str, Any]:
    condition = {"field": field, "operator": operator, "value": value}
    return {"name": name, "condition": condition, "action": action, "priority": priority, "message": f"said {name}"}


def document(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": "1.0", "name": "doc", "rules": list(rules), **more}


def act(tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, tool, arguments=arguments or {}, **more)


def answer(policy: Any, action: Action) -> list[str] | None:
    decision = policy.judge(action)
    return None if decision is None else [decision.effect.label, decision.rule, decision.reason]


def refusal(**options: Any) -> str:
    try:
        AgentOSPolicy(**options)
    except PolicyError as error:
        return str(error)
    return "no refusal"


COORDINATOR_HOST = document(
    rule("no-shell", "tool_name", "eq", "shell"),
    rule("no-drop", "args.query", "matches", r"(?i)\bdrop\b", "block", 5),
    rule("big", "args.payment.amount", "gt", 100),
    rule("sales-only", "agent_id", "ne", "sales", "deny", -5),
    rule("logged", "tool_name", "eq", "export", "audit", 9),
    rule("lookup", "tool_name", "in", ["lookup"], "allow", 9),
)


def judged() -> dict[str, Any]:
    desk = AgentOSPolicy(documents=COORDINATOR_HOST, severity="critical")
    narrow = AgentOSPolicy(documents=document(rule("no-shell", "tool_name", "eq", "shell")))
    allowing = document(rule("no-shell", "tool_name", "eq", "shell"), defaults={"action": "allow"})
    found = {
        "shell": answer(desk, act("shell", agent="sales")),
        "drop": answer(desk, act("sql", {"query": "drop table a"}, agent="sales")),
        "nested": answer(desk, act("pay", {"payment": {"amount": 101}}, agent="sales")),
        "audit": answer(desk, act("export", agent="sales")),
        "allow": answer(desk, act("lookup", agent="sales")),
        "not the agent": answer(desk, act("other", agent="support")),
        "no agent under ne": answer(desk, act("lookup")),
        "wrong type": answer(desk, act("pay", {"payment": {"amount": "101"}}, agent="sales")),
        "no rule matches": answer(narrow, act("other")),
        "no rule matches, documents allow": answer(AgentOSPolicy(documents=allowing), act("other")),
        "an argument named like a field": answer(narrow, act("shell", {"tool_name": "other"})),
        "an argument with a dot": answer(desk, act("lookup", {"payment.amount": 1}, agent="sales")),
        "too deep": answer(desk, act("lookup", deep(100), agent="sales")),
    }
    return found


def deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"a": found}
    return found


def in_a_set() -> dict[str, Any]:
    rules = [{"name": "engine", "use": "agent_os", "with": {"documents": COORDINATOR_HOST, "severity": "critical"}}]
    found: dict[str, Any] = {}
    for default in ("deny", "allow"):
        policies = load_policies({"version": 1, "default": default, "rules": rules})
        governor = Governor(policies, manager=make_plugin_manager(builtin=(), third_party=False))
        for tool in ("shell", "lookup", "unheard_of"):
            decision = governor.decide(act(tool, agent="sales"))
            found[f"{default}: {tool}"] = [decision.effect.label, decision.policy, decision.severity.value]
        governor.close()
    return found


def refused() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / "broken.yaml"
        broken.write_text("rules: [")
        return {
            "no rules": refusal(documents=document()),
            "no documents": refusal(documents=[]),
            "misspelt key": refusal(documents={**document(rule("a", "tool_name", "eq", "b")), "ruls": []}),
            "misspelt rule key": refusal(documents=document({**rule("a", "tool_name", "eq", "b"), "actoin": "deny"})),
            "operator": refusal(documents=document(rule("a", "tool_name", "equals", "b"))),
            "tool_allowlist": refusal(documents=document(rule("a", "tool_name", "eq", "b"), tool_allowlist=["c"])),
            "budget": refusal(documents=document(rule("a", "tool_name", "eq", "b"), defaults={"max_tool_calls": 3})),
            "severity": refusal(documents=COORDINATOR_HOST, severity="grave"),
            "absent file": refusal(documents=str(Path(folder) / "absent.yaml")),
            "broken file": refusal(documents=str(broken)),
        }


def from_a_file() -> list[str] | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "desk.json"
        path.write_text(json.dumps(COORDINATOR_HOST))
        return answer(AgentOSPolicy(documents=str(path)), act("shell", agent="sales"))


def engine_version() -> str:
    for name in ("agent-governance-toolkit-core", "agent-os-kernel"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "none"


if __name__ == "__main__":
    json.dump(
        {
            "engine": engine_version(),
            "judged": judged(),
            "in a set": in_a_set(),
            "refused": refused(),
            "from a file": from_a_file(),
        },
        sys.stdout,
    )
