"""The agent_os back end on both engines, each in an environment of its own: they ship the same modules."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from lgov_core.errors import PolicyError
from lgov_core.integrations.agent_os import AgentOSPolicy
from tests.peers import PeerUnavailable, peer_python, run_there
from tests.slow import slow

pytestmark = slow  # installs packages into an environment of its own

ENGINES = ("agent-os-kernel==3.7.0", "agent-governance-toolkit-core==5.0.0")
SCRIPT = Path(__file__).with_name("judgements.py")


@pytest.fixture(scope="module", params=ENGINES)
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    try:
        python = peer_python(request.param)
    except PeerUnavailable as error:
        pytest.skip(str(error))
    done = run_there(python, "-m", "tests.engines.judgements")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["engine"] == request.param.replace("==", " ")
    return answers


def test_rules_are_asked_by_priority(found: dict[str, Any]) -> None:
    judged = found["judged"]
    assert judged["shell"] == ["deny", "no-shell", "said no-shell"]
    assert judged["drop"] == ["deny", "no-drop", "said no-drop"]
    assert judged["nested"][:2] == ["deny", "big"]
    assert judged["audit"][:2] == ["warn", "logged"]
    assert judged["allow"][:2] == ["allow", "lookup"]
    assert judged["not the agent"][:2] == ["deny", "sales-only"]
    assert found["from a file"] == judged["shell"]


def test_no_matching_rule_is_no_opinion_whatever_the_documents_default_is(found: dict[str, Any]) -> None:
    assert found["judged"]["no rule matches"] is None
    assert found["judged"]["no rule matches, documents allow"] is None
    assert found["in a set"]["deny: unheard_of"] == ["deny", "policies", "medium"]
    assert found["in a set"]["allow: unheard_of"][0] == "allow"


def test_denials_carry_the_rules_severity(found: dict[str, Any]) -> None:
    for default in ("deny", "allow"):
        assert found["in a set"][f"{default}: shell"] == ["deny", "engine", "critical"]
        assert found["in a set"][f"{default}: lookup"][0] == "allow"


def test_what_cannot_be_judged_is_denied(found: dict[str, Any]) -> None:
    judged = found["judged"]
    assert judged["wrong type"][:2] == ["deny", "agent-os-error"]
    assert judged["no agent under ne"][:2] == ["deny", "sales-only"]
    assert judged["an argument named like a field"][:2] == ["deny", "no-shell"]
    assert judged["an argument with a dot"][:2] == ["deny", "agent-os-arguments"]
    assert judged["too deep"][:2] == ["deny", "agent-os-arguments"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no rules", "hold no rules"),
        ("no documents", "hold no rules"),
        ("misspelt key", "did you mean rules?"),
        ("misspelt rule key", "did you mean action?"),
        ("operator", "is not a policy document"),
        ("tool_allowlist", "does not enforce tool_allowlist"),
        ("budget", "does not enforce defaults.max_tool_calls"),
        ("severity", "severity is 'grave'"),
        ("absent file", "cannot be read"),
        ("broken file", "cannot be read"),
    ],
)
def test_documents_that_would_not_hold_are_refused(found: dict[str, Any], what: str, said: str) -> None:
    assert said in found["refused"][what]


@pytest.mark.skipif(importlib.util.find_spec("agent_os") is not None, reason="an engine is installed here")
def test_without_an_engine_the_policy_cannot_be_made() -> None:
    with pytest.raises(PolicyError, match=r"lgov\[agent-os\]"):
        AgentOSPolicy(documents={"rules": [{}]})
