"""The documented RL-governance API with test doubles, as the unit tests of programs written for it use them;
and programs with the documented imports, run as they are.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from lgov_core.emitter import FlightRecorderEmitter
from lgov_core.environment import EnvironmentConfig, EnvironmentState, GovernedEnvironment, create_governed_env
from lgov_core.errors import PolicyViolationError
from lgov_core.reward import CompositeReward, PolicyReward, RewardConfig, create_policy_reward, policy_penalty
from lgov_core.runner import GovernedRollout, GovernedRunner, PolicyViolation, PolicyViolationType
from lgov_core.types import Outcome


def found(severity: str = "high", *, blocked: bool = True) -> PolicyViolation:
    kind = PolicyViolationType.BLOCKED if blocked else PolicyViolationType.WARNED
    return PolicyViolation(kind, "P", "what", severity, action_blocked=blocked)


class Polled:
    def __init__(self, *answer: Any) -> None:
        self.answer = list(answer)

    def execute(self, action: Any) -> Any:
        return action

    def get_recent_violations(self) -> Any:
        return self.answer


def stepped(kernel: Any, **options: Any) -> tuple[float, bool, dict[str, Any]]:
    env = create_governed_env(kernel, **options)
    env.reset()
    _, reward, terminated, _, info = env.step("act")
    return reward, terminated, info


# ------------------------------------------------------------------ runner


def test_the_four_arguments_of_a_runner_are_attributes() -> None:
    kernel, callback = MagicMock(), MagicMock()
    runner = GovernedRunner(kernel, violation_callback=callback)
    assert (runner.kernel, runner.fail_on_violation, runner.log_violations) == (kernel, False, True)
    assert runner.violation_callback is callback


def test_init_registers_on_both_hooks_of_a_double() -> None:
    kernel = MagicMock()
    GovernedRunner(kernel).init(MagicMock())
    kernel.on_policy_violation.assert_called_once()
    kernel.on_signal.assert_called_once()


async def test_a_step_prefers_execute_async_then_execute_then_the_agent() -> None:
    both = MagicMock(execute_async=AsyncMock(return_value="async"), execute=Mock(return_value="plain"))
    only = Mock(spec=["execute"], execute=Mock(return_value="plain"))
    for kernel, answer in ((both, "async"), (only, "plain"), (Mock(spec=["on_signal"]), "agent")):
        runner = GovernedRunner(kernel)
        runner.init(lambda _: "agent")
        rollout = await runner.step("x", resources=None, mode=None, event=None)
        assert (rollout.success, rollout.task_output, rollout.mode) == (True, answer, "train")
    both.execute_async.assert_awaited_once()
    both.execute.assert_not_called()


def test_the_options_of_a_step_are_keywords() -> None:
    parameters = inspect.signature(GovernedRunner.step).parameters
    options = {name: parameters[name] for name in ("resources", "mode", "event")}
    assert all(one.kind is one.KEYWORD_ONLY and one.default is None for one in options.values())


async def test_whatever_a_kernel_raises_is_a_rollout_without_success() -> None:
    for error in (RuntimeError("boom"), ValueError("bad"), TypeError("what")):
        rollout = await GovernedRunner(MagicMock(execute_async=AsyncMock(side_effect=error))).step("x")
        assert (rollout.success, rollout.task_output) == (False, None)


async def test_a_blocked_act_raises_where_asked_for() -> None:
    kernel = MagicMock(execute_async=AsyncMock(side_effect=PolicyViolationError(found())))
    with pytest.raises(PolicyViolationError, match=r"^Policy violation: what$") as caught:
        await GovernedRunner(kernel, fail_on_violation=True).step("x")
    assert caught.value.violation.description == "what"


async def test_a_violation_by_hook_without_action_blocked_is_still_blocked() -> None:
    class Kernel:
        def on_policy_violation(self, callback: Any) -> None:
            self.callback = callback

        def execute(self, given: Any) -> Any:
            self.callback(PolicyViolation(PolicyViolationType.BLOCKED, "P", "what", "high"))
            return given

    rollout = await GovernedRunner(Kernel()).step("x")
    assert (rollout.success, len(rollout.violations), rollout.governed) == (False, 1, True)
    with pytest.raises(PolicyViolationError):
        await GovernedRunner(Kernel(), fail_on_violation=True).step("x")


async def test_a_kernel_without_hook_and_execute_warns_once_and_marks_its_rollouts() -> None:
    with pytest.warns(UserWarning, match="nothing is governed") as warned:
        runner = GovernedRunner(object())
    runner.init(lambda given: given)
    rollouts = [await runner.step("x"), await runner.step("y")]
    assert len(warned) == 1
    assert [(one.governed, one.task_output) for one in rollouts] == [(False, "x"), (False, "y")]


async def test_iter_ends_without_tasks_although_its_event_is_not_set() -> None:
    store = MagicMock(get_task=AsyncMock(side_effect=["a", "b", None]), submit_rollout=AsyncMock())
    runner = GovernedRunner(MagicMock(execute_async=AsyncMock(return_value=1)))
    runner.init_worker(3, store)
    assert (runner.worker_id, runner.store) == (3, store)
    await asyncio.wait_for(runner.iter(event=asyncio.Event()), 10)
    assert store.submit_rollout.await_count == 2
    assert runner.get_stats() == {"total_rollouts": 2, "total_violations": 0, "violation_rate": 0.0}
    runner.teardown_worker(3)
    assert (runner.worker_id, runner.store) == (3, store)


def test_any_object_is_a_store() -> None:
    for store in (object(), MagicMock(), AsyncMock(), None):
        runner = GovernedRunner(MagicMock())
        runner.init_worker(0, store)
        assert runner.get_violation_rate() == 0.0
        runner.teardown_worker(0)
        runner.teardown_worker(0)
        runner.teardown()


def test_teardown_logs_the_totals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    GovernedRunner(MagicMock()).teardown()
    assert "0 rollouts, 0 policy violations" in caplog.text


# ------------------------------------------------------------------ violations and rollouts


def test_penalties_by_severity_and_medium_for_an_unknown_one() -> None:
    costs = {one: found(one).penalty for one in ("critical", "high", "medium", "low", "awful")}
    assert costs == {"critical": 100.0, "high": 50.0, "medium": 10.0, "low": 1.0, "awful": 10.0}
    given = PolicyViolation(PolicyViolationType.WARNED, "P", "what", "high", penalty=7.5)
    assert (given.penalty, given.action_blocked, given.timestamp.tzinfo is not None) == (7.5, False, True)


def test_the_four_types_of_a_violation() -> None:
    assert {one.name: one.value for one in PolicyViolationType} == {
        name: name.lower() for name in ("BLOCKED", "MODIFIED", "WARNED", "SIGNAL_SENT")
    }


def test_the_total_penalty_of_a_rollout_is_recomputed() -> None:
    assert GovernedRollout("i", "o", True, [found("low")], total_penalty=99.0).total_penalty == 1.0
    blocked = GovernedRollout("i", None, False, [found("high"), found("low")], total_penalty=-7.0)
    assert (blocked.total_penalty, blocked.outcome) == (51.0, Outcome.BLOCKED)


# ------------------------------------------------------------------ rewards


def test_a_rollout_may_be_a_double() -> None:
    clean = MagicMock(success=True, violations=[])
    assert PolicyReward(MagicMock())(clean, emit=False) == 6.0
    assert PolicyReward(MagicMock())(MagicMock(success=True, violations=[found("high")]), emit=True) == -49.0


def test_without_violations_on_the_rollout_the_recent_ones_of_the_kernel_count() -> None:
    for recent in ({"severity": "high"}, SimpleNamespace(severity="high"), found("high")):
        kernel = MagicMock()
        kernel.get_recent_violations.return_value = [recent]
        assert PolicyReward(kernel)(SimpleNamespace(success=True)) == -49.0
        assert PolicyReward(kernel)(object()) == -50.0
    with pytest.warns(UserWarning, match="no bonus"):
        assert PolicyReward()(SimpleNamespace(success=True)) == 1.0


def test_a_reward_is_emitted_where_agentlightning_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    emitter = MagicMock()
    monkeypatch.setitem(__import__("sys").modules, "agentlightning", emitter)
    reward, bad = PolicyReward(None), SimpleNamespace(success=True, violations=[found("low")])
    reward(bad)
    reward(bad, emit=False)
    emitter.emit_reward.assert_called_once_with(
        {"final": 0.0, "base": 1.0, "policy_penalty": -1.0},
        primary_key="final",
        attributes={"agent_os.violations": 1, "agent_os.policy_compliant": False},
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unknown_severities_weights_and_the_documented_floor() -> None:
    assert policy_penalty([SimpleNamespace(severity="awful"), {"severity": "low"}]) == -11.0
    bad = SimpleNamespace(success=False, violations=[found("critical")])
    assert RewardConfig(critical_penalty=-200.0).min_reward == -100.0
    assert create_policy_reward(None, severity_penalties={"critical": -200.0, "awful": -1.0})(bad) == -100.0
    assert CompositeReward([(lambda _: 2.0, -0.5)])(bad) == -1.0
    assert CompositeReward([])(bad) == 0.0


# ------------------------------------------------------------------ environment


def test_the_state_of_the_current_episode() -> None:
    assert EnvironmentState() == EnvironmentState(0, 0.0, [], False, False, {})
    env: GovernedEnvironment[Any, Any] = GovernedEnvironment[Any, Any](Polled(), config=EnvironmentConfig(max_steps=1))
    env.reset()
    _, reward, _, truncated, info = env.step("act")
    assert env.state == EnvironmentState(1, reward, [], False, True, info)
    assert (env.terminated, truncated) == (True, True)


def test_violations_are_mappings_wherever_they_came_from() -> None:
    mapping = {"policy": "A", "description": "d", "severity": "critical", "blocked": True}
    _, terminated, info = stepped(Polled(mapping))
    full = {"type": "blocked", "policy": "A", "description": "d", "severity": "critical", "blocked": True}
    assert info["violations"] == [{**full, "penalty": 100.0}]
    assert (terminated, info["success"]) == (True, False)
    _, terminated, info = stepped(Polled(SimpleNamespace(policy_name="B", action_blocked=False), {}))
    assert [(one["policy"], one["severity"], one["blocked"]) for one in info["violations"]] == [
        ("B", "low", False),
        ("unknown", "low", False),
    ]

    class Reporting:
        def on_policy_violation(self, callback: Any) -> None:
            self.callback = callback

        def execute(self, action: Any) -> Any:
            self.callback(found("low", blocked=False))

    (violation,) = stepped(Reporting())[2]["violations"]
    assert [violation[name] for name in ("policy", "description", "severity")] == ["P", "what", "low"]


def test_without_a_task_generator_the_state_is_none() -> None:
    env = GovernedEnvironment(Polled())
    assert env.reset()[0] is None
    assert env.step("act")[0] is None
    assert env.observation_space.contains(None)
    assert not GovernedEnvironment(Polled(), lambda: "task").observation_space.contains(None)


def test_a_poll_that_raises_is_logged_and_counts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    kernel = Mock(spec=["execute", "get_recent_violations"])
    kernel.get_recent_violations.side_effect = RuntimeError("boom")
    assert stepped(kernel)[2]["violations"] == []
    assert "get_recent_violations" in caplog.text


@pytest.mark.parametrize("kernel", [MagicMock(), Mock(), AsyncMock(), Polled()], ids=lambda one: type(one).__name__)
def test_an_environment_takes_any_kernel(kernel: Any) -> None:
    reward, terminated, _ = stepped(kernel)
    assert (reward, terminated) == (pytest.approx(10.9), False)


def test_a_task_may_be_anything() -> None:
    env = GovernedEnvironment(MagicMock(), lambda: {"id": 1})
    assert env.reset()[0] == {"id": 1}


def test_nothing_is_run_where_there_is_no_execute() -> None:
    with pytest.warns(UserWarning, match="nothing is governed"):
        _, _, info = stepped(object())
    assert (info["success"], info["governed"]) == (False, False)


# ------------------------------------------------------------------ emitter

ENTRY = {"entry_type": "policy_check", "agent_id": "a", "policy_name": "P", "metadata": {"run": 7}}


@pytest.mark.parametrize("source", ["get_log", "query_logs", "get_entries", "entries"])
@pytest.mark.parametrize("double", [True, False])
def test_entries_are_found_wherever_the_recorder_has_them(source: str, double: bool) -> None:
    entries = [ENTRY, SimpleNamespace(entry_type="signal", agent_id="a")]
    held: Any = entries if source == "entries" else lambda: entries
    recorder: Any = MagicMock(**{source: held}) if double else SimpleNamespace(**{source: held})
    emitter = FlightRecorderEmitter(recorder, include_signals=True)
    assert [span.name for span in emitter.get_new_spans()] == ["agent_os.policy_check", "agent_os.signal"]
    assert emitter.get_new_spans() == []
    assert emitter.get_spans()[0].attributes["agent_os.run"] == 7
    assert FlightRecorderEmitter(recorder, include_signals=False).get_violation_summary()["total_entries"] == 2


def test_an_entry_may_be_an_object_whose_class_has_the_fields() -> None:
    class Entry:
        entry_type, agent_id, tool_name = "tool_call", "a", "search"

    (span,) = FlightRecorderEmitter(SimpleNamespace(entries=[Entry()])).get_spans()
    assert (span.name, span.attributes["agent_os.tool_name"]) == ("agent_os.tool_call", "search")


TYPED = (
    {"type": "policy_check", "policy": "A", "violated": True},
    {"type": "policy_check", "policy": "B", "violated": False, "policy_verdict": "blocked"},
    {"type": "policy_check", "policy": "C", "policy_verdict": "blocked"},
    {"type": "signal", "signal": "SIGTERM"},
    {"type": "tool_call", "policy_name": "D"},
)


@pytest.mark.parametrize("form", [dict, lambda entry: SimpleNamespace(**entry), lambda entry: MagicMock(**entry)])
def test_entries_say_themselves_of_which_type_they_are_and_whether_they_violate(form: Any) -> None:
    recorder = SimpleNamespace(entries=[form(entry) for entry in TYPED])
    emitter = FlightRecorderEmitter(recorder)
    names = [span.name.removeprefix("agent_os.") for span in emitter.get_spans()]
    assert names == [entry["type"] for entry in TYPED]
    summary = emitter.get_violation_summary()
    assert (summary["total_violations"], summary["policies_violated"]) == (1, {"A": 1})
    for switch, left_out in (("policy_checks", "policy_check"), ("signals", "signal"), ("tool_calls", "tool_call")):
        spans = FlightRecorderEmitter(recorder, **{f"include_{switch}": False}).get_spans()
        assert [span.name for span in spans] == [f"agent_os.{name}" for name in names if name != left_out]


def test_the_arguments_of_an_emitter_are_attributes() -> None:
    emitter = FlightRecorderEmitter(MagicMock(), include_policy_checks=False, trace_id_prefix="t")
    switches = (emitter.include_policy_checks, emitter.include_signals, emitter.include_tool_calls)
    assert (*switches, emitter.trace_id_prefix) == (False, True, True, "t")


@pytest.mark.parametrize("method", ["emit_span", "add_span"])
def test_a_store_gets_mappings_and_one_that_fails_does_not_stop_the_next(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    emitter = FlightRecorderEmitter(SimpleNamespace(entries=[ENTRY, ENTRY, ENTRY]))
    store = Mock(spec=[method])
    getattr(store, method).side_effect = [None, RuntimeError("boom"), None]
    assert emitter.emit_to_store(store) == 2
    assert all(call.args[0]["name"] == "agent_os.policy_check" for call in getattr(store, method).call_args_list)
    assert "1 of 3 spans were not stored" in caplog.text
    assert emitter.get_stats() == {"emitted_count": 2, "last_position": 0}


PROGRAM = """
import sys
from lgov_core import compat
{before}
print(",".join(compat.install()))
assert compat.install() == ()
import asyncio
from agent_os import FlightRecorder, KernelSpace
from agent_os.policies import CostControlPolicy, SQLPolicy
from agent_lightning_gov import FlightRecorderEmitter, GovernedEnvironment, GovernedRunner, PolicyReward, policy_penalty
from agent_lightning_gov.emitter import LightningSpan, create_emitter
from agent_lightning_gov.environment import EnvironmentConfig, create_governed_env
from agent_lightning_gov.reward import CompositeReward, RewardConfig, create_policy_reward
from agent_lightning_gov.runner import PolicyViolation, PolicyViolationType
from agent_os.integrations.agent_lightning import GovernedRunner as Old
from agentlightning import Trainer, emit_reward
from agentlightning.contrib.agent_os import AgentOSRunner, FlightRecorderAdapter, PolicyReward as Contributed
import agent_lightning_gov.reward
assert agent_lightning_gov.reward.RewardConfig is RewardConfig and Old is AgentOSRunner is GovernedRunner
kernel = KernelSpace(policy=[SQLPolicy(deny=["DROP", "DELETE"]), CostControlPolicy(max_cost_usd=100)])
runner, reward_fn = GovernedRunner(kernel), PolicyReward(kernel)
for text in ("SELECT name FROM users WHERE id = 42", "DROP TABLE users"):
    rollout = asyncio.run(runner.step(text))
    print(rollout.success, len(rollout.violations), reward_fn(rollout))
"""

INSTALLED = """
import types
sys.modules["agentlightning"] = types.ModuleType("agentlightning")
assert "agentlightning" not in ",".join(compat.install())
sys.modules.pop("agentlightning")
"""


def ran(before: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_program_with_the_documented_imports_runs_unchanged(tmp_path: Path) -> None:
    lines = ran("", tmp_path)
    assert lines[0].split(",")[0] == "agent_os"
    assert lines[1:] == ["True 0 6.0", "False 1 -100.0"]


def test_what_is_loaded_or_installed_is_never_replaced(tmp_path: Path) -> None:
    assert ran(INSTALLED, tmp_path)[0].startswith("agentlightning,")
    for name in ("agent_os", "agent_lightning_gov", "agentlightning"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("REAL = True\n")
    code = (
        "from lgov_core import compat; added = compat.install(); import agent_os, agentlightning;"
        "print(added, agent_os.REAL, agentlightning.REAL)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "() True True\n", done.stderr


def test_what_lgov_does_not_take_over_is_not_lost_in_silence(tmp_path: Path) -> None:
    code = (
        "from lgov_core import compat; compat.install(); import agentlightning as agl\n"
        "from agent_lightning_gov import PolicyReward\n"
        "from types import SimpleNamespace\n"
        "PolicyReward(None)(SimpleNamespace(success=True, violations=[]))\n"
        "agl.emit_reward(0.1)\n"
        "agl.rollout"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stderr.splitlines() if "emit_reward" in line or line.startswith("AttributeError")]
    assert lines == [
        "emit_reward(0.1) is not used: with lgov the agent returns its reward, or several by name",
        "AttributeError: lgov has no agentlightning.rollout; docs/reference/rl-governance.md lists what replaces it",
    ]
