"""One attempt as a client runs it: what machines, policies and records did wrong is not held against the agent."""

from __future__ import annotations

from typing import Any

import pytest

from lgov_core.client.attempts import AgentRunner
from lgov_core.client.wire import Assignment, Report
from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.reward import AirRules, RuleSet
from lgov_core.types import Action, Decision, Effect, Outcome, Point, ToolOutcome

GIVEN = Assignment("ro_1", 1, "t", "train", {"a": 1}, "http://127.0.0.1:9/v1", "m", 600.0)


class Judge:
    """Denies the tool `forbidden`, and cannot judge the tool `odd`."""

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Decision:
        if action.name == "odd":
            raise RuntimeError("the judge is broken")
        return Decision(Effect.DENY if action.name == "forbidden" else Effect.ALLOW, "judge", "r", "so it is")


def attempt(tool: str, ending: Any) -> Report:
    """An agent that asks for one tool, sees what came of it, and ends so."""
    governor = Governor(plugins=[Judge()])

    def agent(resource: Any, task: Any) -> float:
        action = Action(Point.PRE_TOOL_CALL, tool, arguments={}, call_id="call_1")
        decision = governor.decide(action)
        governor.record(ToolOutcome(action, "denied" if decision.blocks else "ok", decision=decision))
        if isinstance(ending, Exception):
            raise ending
        return ending

    runner = AgentRunner(
        agent, endpoint="http://127.0.0.1:9", rules=RuleSet(base=AirRules()), instrument=False, governor=governor
    )
    try:
        return runner.run(GIVEN)
    finally:
        runner.close()


@pytest.mark.parametrize(("tool", "wanted"), [("fine", 1), ("forbidden", -1)])
def test_what_tools_earned_comes_with_what_the_agent_returned(tool: str, wanted: int) -> None:
    report = attempt(tool, 1.0)
    assert report.outcome is Outcome.SUCCEEDED
    task, (earned, *_) = (
        [one.value for one in report.rewards if (one.dimension == "task") is of_task] for of_task in (True, False)
    )
    assert task == [1.0]
    assert earned * wanted > 0
    assert report.counts.get("denied", 0) == (tool == "forbidden")


def test_an_attempt_in_which_a_policy_failed_says_nothing_about_the_agent() -> None:
    report = attempt("odd", 1.0)
    assert (report.outcome, report.rewards) == (Outcome.INFRASTRUCTURE, ())
    assert "acts were denied that the policy may allow" in str(report.error)
    assert "faults" not in report.counts


def test_an_attempt_that_the_machines_ended_earned_nothing() -> None:
    report = attempt("fine", ConnectionError("the endpoint is gone"))
    assert (report.outcome, report.rewards) == (Outcome.INFRASTRUCTURE, ())
    assert "the endpoint is gone" in str(report.error)
    assert attempt("fine", ValueError("cannot count")).rewards, "the agent's own fault is paid for"
