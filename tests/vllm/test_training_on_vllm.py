"""`lgov train --engine vllm`: reward rises, and a vLLM that is killed in mid-update costs calls but not the run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from tests.vllm.conftest import MODEL, PYTHON, ROOT

TASKS = ("Is the sky blue?", "Do cats have wings?", "Is seven a prime number?", "Is Lyon in France?")
CONFIG = """\
model: {name: MODEL, max_new_tokens: 4, lora_rank: 8, dtype: float32}
training: {batch_size: 4, group_size: 8, steps: STEPS, epochs: 20, learning_rate: 5.0e-4, kl_coef: 0.0, max_staleness: STALE}
runtime: {nworkers: 16, workers: threads}
vllm: {context_tokens: 512, arguments: [--max-num-seqs, "32"]}
"""


def train(folder: Path, steps: int, stale: int, meanwhile: Any = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a training says at its end, and its lines."""
    config, tasks = folder / "config.yaml", folder / "tasks.jsonl"
    config.write_text(CONFIG.replace("MODEL", str(MODEL)).replace("STEPS", str(steps)).replace("STALE", str(stale)))
    tasks.write_text("".join(json.dumps({"question": one}) + "\n" for one in TASKS))
    command = [
        sys.executable, "-m", "lgov_core.cli", "train", str(config), "--engine", "vllm", "--vllm-python", str(PYTHON),
        "--agent", f"{Path(__file__).with_name('yes_agent.py')}:says_yes", "--tasks", str(tasks),
        "--folder", str(folder / "run"), "--json",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as training:
        if meanwhile is not None:
            threading.Thread(target=meanwhile, args=(training.pid,), daemon=True).start()
        assert training.stdout is not None
        said = training.stdout.read()
    assert training.returncode == 0
    return json.loads(said), lines(folder)


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "run" / "metrics.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in found if line["phase"] == "train"]


def vllm_of(pid: int) -> psutil.Process:
    """The server that a training started."""
    return next(one for one in psutil.Process(pid).children() if "vllm_child.py" in " ".join(one.cmdline()))


def test_reward_rises_in_three_updates(tmp_path: Path) -> None:
    report, updates = train(tmp_path, 4, 0)
    assert report["updates"] == 4
    assert report["reward"][3] > report["reward"][0] + 0.3, report["reward"]
    assert [line["weights_version"] for line in updates] == [1, 2, 3, 4]
    assert all(line["logprob_drift"] < 1e-4 for line in updates), "recorded log-probabilities are those of the trainer"
    assert updates[-1]["vllm_restarts"] == updates[-1]["vllm_calls_lost"] == 0


def test_a_training_whose_vllm_is_killed_finishes_and_counts_what_was_lost(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(pid: int) -> None:
        while not (tmp_path / "run" / "open" / "step-000002.jsonl").exists():
            time.sleep(0.05)
        time.sleep(2.0)
        vllm_of(pid).kill()  # an update is being made, and the rollouts of the next are under way
        killed.append(len(lines(tmp_path)))

    report, updates = train(tmp_path, 3, 1, kill)
    assert killed == [0], "in mid-update"
    assert report["updates"] == 3
    assert [line["step"] for line in updates] == [1, 2, 3]
    assert [line["weights_version"] for line in updates] == [1, 2, 3]
    assert all(line["staleness_max"] <= 1 for line in updates)
    assert updates[-1]["vllm_restarts"] == 1
    assert updates[-1]["vllm_calls_lost"] > 0
