"""A rule that only restricts never permits: what no rule of a permitting kind allows gets the set's default."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lgov_core.policies import PolicySet, Rule, SecretsPolicy, load_policies
from lgov_core.types import Action, Effect, Point
from tests.slow import examples


def act(name: str = "run_sql", point: Point = Point.PRE_TOOL_CALL, **more: Any) -> Action:
    return Action(point, name, **more)


def test_a_rule_that_only_restricts_permits_nothing() -> None:
    alone = PolicySet([SecretsPolicy(action="redact")])
    for body in ("hello", "use AKIAQ7RNYV2MHXP3TUKD"):
        decision = alone.judge(act("send", arguments={"body": body}))
        assert (decision.effect, decision.rule) == (Effect.DENY, "default")
        assert decision.reason == "No policy allows send: the rules that cover it only restrict."
        assert not alone.judge(act(arguments={"body": body}, point=Point.POST_TOOL_CALL)).blocks
    assert not PolicySet([Rule(SecretsPolicy(), permits=True)]).judge(act("send")).blocks
    assert not PolicySet([SecretsPolicy()], default="allow").judge(act("send")).blocks


#: Rules of permitting kinds, each with a tool that it permits, and rules of restricting kinds.
PERMITTING = [
    {"use": "tool", "with": {"allow": ["search"]}, "tools": ["search"]},
    {"use": "allow", "tools": ["mail_*"]},
    {"use": "sql", "with": {"dialect": "sqlite"}, "tools": ["run_sql"]},
    {"use": "path", "with": {"roots": ["/srv"]}, "tools": ["read"]},
    {"use": "egress", "with": {"domains": ["example.org"]}, "tools": ["fetch"]},
    {"use": "shell", "with": {"argument": "command"}, "tools": ["bash"]},
    {"use": "deny", "tools": ["*_all"]},
]
RESTRICTING = [
    {"use": use, "with": with_}
    for use, with_ in [
        ("pii", {"action": "redact"}), ("pii", {}), ("secrets", {"action": "redact"}), ("secrets", {}),
        ("provenance", {}), ("pinned", {}), ("cost", {"max_calls": 100}),
        ("rate", {"max_calls": 9, "per_seconds": 1}), ("loop", {}),
    ]
]  # fmt: skip
ARGUMENTS = [
    {}, {"query": "SELECT 1"}, {"query": "DROP TABLE t"}, {"path": "/srv/a"}, {"path": "/etc/passwd"},
    {"url": "https://example.org/"}, {"command": "ls"}, {"body": "ann@firma.de"}, {"body": "AKIAQ7RNYV2MHXP3TUKD"},
]  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.sampled_from(PERMITTING), max_size=4),
    st.lists(st.sampled_from(RESTRICTING), min_size=1, max_size=3),
    st.data(),
)
def test_adding_a_restricting_rule_never_allows_more(
    permitting: list[Any], restricting: list[Any], data: st.DataObject
) -> None:
    def denied(rules: list[Any], name: str, arguments: dict[str, Any]) -> bool:
        named = [{**rule, "name": str(at)} for at, rule in enumerate(rules)]
        policies = load_policies({"version": 1, "rules": named}) if named else PolicySet()
        return policies.judge(act(name, arguments=arguments, rollout_id="r")).blocks

    name = data.draw(st.sampled_from(["search", "mail_ann", "mail_all", "run_sql", "read", "fetch", "bash", "other"]))
    arguments = data.draw(st.sampled_from(ARGUMENTS))
    more = list(permitting)
    for rule in restricting:
        more.insert(data.draw(st.integers(0, len(more))), rule)
    if denied(permitting, name, arguments):
        assert denied(more, name, arguments)
