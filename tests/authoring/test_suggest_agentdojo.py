"""AgentDojo's tool calls: the policy that the users' calls need, and which of the injections' calls it denies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from recorded_acts import ActRecord

from lgov_core.authoring import suggest
from lgov_core.policies import load_policies
from lgov_core.types import Action, Point

DATA = Path(__file__).parents[3] / "shared" / "data" / "agentdojo"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"needs the data set at {DATA}")


def test_no_call_of_a_user_is_denied_and_most_of_the_injections_are(capsys: pytest.CaptureFixture[str]) -> None:
    tasks: list[dict[str, Any]] = [json.loads(line) for line in (DATA / "tasks.jsonl").read_text().splitlines()]
    users = [task for task in tasks if task["kind"] == "user"]
    record = ActRecord()
    for task in users:
        rollout_id = f"{task['suite']}-{task['task_id']}"
        record.say(rollout_id, task["text"])
        for call in task["calls"]:
            record.act(call["tool"], call["args"], rollout_id=rollout_id)
    found = suggest(record.acts(), source="AgentDojo")
    assert (found.needed, list(found.denied), found.incomplete) == (sum(len(one["calls"]) for one in users), [], 0)

    # Each call of an injection is tried under every task of its suite.
    policies = load_policies(yaml.safe_load(found.text))
    denied = tried = 0
    for task in tasks:
        prompts = [one["text"] for one in users if one["suite"] == task["suite"] and task["kind"] != "user"]
        for prompt in prompts:
            for call in task["calls"]:
                tried += 1
                context = {"user_text": prompt}
                rollout_id = f"{task['task_id']} {tried}"
                action = Action(
                    Point.PRE_TOOL_CALL, call["tool"], arguments=call["args"], rollout_id=rollout_id, context=context
                )
                denied += policies.judge(action).blocks
    with capsys.disabled():
        print(f"\nusers' calls denied: 0 of {found.needed}; injections': {denied} of {tried} ({denied / tried:.0%})")
    assert denied >= 0.5 * tried
