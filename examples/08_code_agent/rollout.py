"""Runs what the agent writes in a sandbox, and rewards it: 0.3 for a program that ends well, 0.7 for the right answer.

python rollout.py                                                   # a scripted model, no network
OPENAI_BASE_URL=http://127.0.0.1:8321/v1 python rollout.py          # your own model
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for processes that load this file from elsewhere

from main import write_program

from lgov_core import sandbox
from lgov_core.testing import ScriptedModelServer

TASKS = Path(__file__).parent / "tasks.jsonl"
#: What the scripted model replies, by the question.
SCRIPT = json.loads((Path(__file__).parent / "scripted_replies.json").read_text())


def code_agent(resource: Any, task: Any) -> float:
    """The agent that is trained: one program for one task."""
    done = run_in_sandbox(write_program(resource.model_api, task.question))
    return reward(done, task.ground_truth)


def run_in_sandbox(program: str) -> sandbox.Execution:
    box = sandbox.create()
    try:
        return box.process.code_run(program, timeout=10)
    finally:
        box.delete()


def reward(done: sandbox.Execution, ground_truth: str) -> float:
    ran = 0.3 if done.exit_code == 0 else 0.0
    right = 0.7 if done.result == ground_truth else 0.0
    return ran + right


def main() -> None:
    tasks = [SimpleNamespace(**json.loads(line)) for line in TASKS.read_text().splitlines()]
    own = os.environ.get("OPENAI_BASE_URL")
    with ScriptedModelServer(scripted) as model:
        for task in tasks:
            done = run_in_sandbox(write_program(own or model.base_url, task.question))
            said = done.result.splitlines()[-1] if done.result else ""
            print(f"{reward(done, task.ground_truth):.1f}  {task.question}\n     exit code {done.exit_code}: {said}")


def scripted(body: Mapping[str, Any]) -> str:
    return SCRIPT[body["messages"][-1]["content"]]


if __name__ == "__main__":
    main()
