"""`lgov train --engine vllm`: reward rises; a vLLM, or a training, that is killed in mid-update costs calls but not the run."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from lgov_core.store import open_store
from lgov_core.types import CapturedCall
from tests.vllm.conftest import MODEL, PYTHON, ROOT

TASKS = ("Is the sky blue?", "Do cats have wings?", "Is seven a prime number?", "Is Lyon in France?")
CONFIG = """\
model: {name: MODEL, max_new_tokens: 4, lora_rank: 8, dtype: float32}
training: {batch_size: 4, group_size: 8, steps: STEPS, epochs: 20, learning_rate: 5.0e-4, kl_coef: 0.0, max_staleness: STALE
  POLICIES}
runtime: {nworkers: 16, workers: threads}
vllm: {context_tokens: 512, arguments: [--max-num-seqs, "32"]}
"""


def train(
    folder: Path,
    steps: int,
    stale: int,
    meanwhile: Any = None,
    *more: str,
    agent: str = "says_yes",
    policies: str = "",
    status: int = 0,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a training says at its end, and its lines; ``more`` are arguments of the command."""
    config, tasks = folder / "config.yaml", folder / "tasks.jsonl"
    values = {"MODEL": str(MODEL), "STEPS": str(steps), "STALE": str(stale), "POLICIES": policies}
    config.write_text(re.sub("|".join(values), lambda found: values[found[0]], CONFIG))
    tasks.write_text("".join(json.dumps({"question": one}) + "\n" for one in TASKS))
    command = [
        sys.executable, "-m", "lgov_core", "train", str(config), "--engine", "vllm", "--set", f"vllm.python={PYTHON}",
        "--agent", f"{Path(__file__).with_name('yes_agent.py')}:{agent}", "--tasks", str(tasks),
        "--folder", str(folder / "run"), "--json", *more,
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as training:
        if meanwhile is not None:
            threading.Thread(target=meanwhile, args=(training.pid,), daemon=True).start()
        assert training.stdout is not None
        said = training.stdout.read()
    assert training.returncode == status
    return json.loads(said or "{}"), lines(folder)


def lines(folder: Path, phase: str = "train") -> list[dict[str, Any]]:
    path = folder / "run" / "metrics.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in found if line["phase"] == phase]


def share_of(word: str, calls: Sequence[CapturedCall], model: str, version: int) -> float:
    """How many of the calls of a version of a policy begin with ``word``."""
    texts = [
        str(call.response["choices"][0]["message"]["content"])
        for call in calls
        if (call.model, call.weights_version) == (model, version)
    ]
    return sum(text.startswith(word) for text in texts) / len(texts)


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


def test_policies_learn_other_words_in_the_same_steps(tmp_path: Path) -> None:
    _, updates = train(
        tmp_path, 4, 0, agent="one_says_yes_one_no", policies=", policies: {writer: null, checker: null, judge: frozen}"
    )
    assert [line["weights_version"] for line in updates] == [1, 2, 3, 4]
    for line in updates:
        assert all(one["logprob_drift"] < 1e-4 for one in line["policies"].values()), "each by its own weights"
    with contextlib.closing(open_store(tmp_path / "run" / "store.sqlite")) as store:
        calls = list(store.calls())
    assert {(call.agent, call.model) for call in calls} == {("writer", "writer"), ("checker", "checker")}
    for model, word in (("writer", "Yes"), ("checker", "No")):
        before, after = (share_of(word, calls, model, version) for version in (0, 3))
        assert after > before + 0.15, f"{model} says {word}"


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


def test_a_training_that_is_killed_leaves_no_vllm_and_resumes_with_its_weights(tmp_path: Path) -> None:
    left: list[psutil.Process] = []

    def kill(pid: int) -> None:
        while not (tmp_path / "run" / "transitions" / "step-000002.json").exists():
            time.sleep(0.05)
        server = vllm_of(pid)
        group = [server, *server.children(recursive=True)]
        psutil.Process(pid).kill()  # the second update is being made, from a batch that is on disk
        left.extend(psutil.wait_procs(group, timeout=20)[1])

    train(tmp_path, 3, 0, kill, status=-signal.SIGKILL)
    assert len(lines(tmp_path)) == 1
    report, updates = train(tmp_path, 3, 0, None, "--resume")
    assert left == [], "vLLM ended with the training"
    (resumed,) = lines(tmp_path, "resume")
    assert (resumed["step"], resumed["replayed"], resumed["differing"]) == (2, 2, 0)
    assert report["updates"] == 3
    assert [line["step"] for line in updates] == [1, 2, 3]
    assert updates[2]["logprob_drift"] < 1e-4, "the calls after it are of the weights that were resumed"


def test_the_langchain_example_learns(tmp_path: Path) -> None:
    example = ROOT / "examples" / "09_langchain_on_vllm"
    command = [
        sys.executable, "-m", "lgov_core", "train", "config.yaml", "--engine", "vllm", "--set", f"vllm.python={PYTHON}",
        "--agent", "main.py:agent", "--steps", "4", "--folder", str(tmp_path / "run"), "--json",
    ]  # fmt: skip
    report = json.loads(subprocess.run(command, cwd=example, stdout=subprocess.PIPE, check=True).stdout)
    assert report["updates"] == 4
    assert report["reward"][3] > report["reward"][0] + 0.05, report["reward"]
