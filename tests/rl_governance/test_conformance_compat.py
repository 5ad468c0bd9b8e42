"""Programs written for the documented packages run unchanged after `lgov_core.compat.install`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
        "AttributeError: lgov has no agentlightning.rollout; docs/how-to/migrate.md lists what replaces it",
    ]
