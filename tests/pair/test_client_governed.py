"""A client under a policy file: what is denied is not run, costs the agent something on that very call, and is on record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Client
from lgov_core.audit import verify
from lgov_core.errors import PolicyFileError
from lgov_core.governance import Governance
from lgov_core.server.training import TrainingServer
from tests.gateway.taught import SYSTEM
from tests.pair import pair_agents as agents
from tests.pair.test_train_commands import ENVIRONMENT, until

pytest.importorskip("langchain", reason="needs the extra langchain")

Serve = Callable[..., TrainingServer]
POLICY = """\
version: 1
name: desk
default: deny
rules:
  - {name: tools, use: tool, with: {allow: [nothing]}}
"""


def test_a_denied_tool_does_not_run_and_its_penalty_reaches_the_server(
    serve: Serve, taught_folder: Path, tmp_path: Path
) -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    ran: list[str] = []

    @tool
    def run_sql(query: str) -> str:
        """Run SQL on the company database."""
        ran.append(query)
        return "12"

    def clerk(resource: Any, task: Any) -> float:
        model = ChatOpenAI(model="any", base_url=resource.model_api, api_key="not-used", max_retries=0, timeout=60)
        agent: Any = create_agent(model, [run_sql], system_prompt=SYSTEM["content"], name="clerk")
        said = agent.invoke({"messages": [("user", task.question)]}, {"recursion_limit": 6})["messages"][-1].text
        return float("12" in said)

    (tmp_path / "policy.yaml").write_text(POLICY)
    server = serve(taught_folder, steps=1, batch_size=1, group_size=6, max_new_tokens=24)
    client = Client(server.url, quiet=True)
    client.upload_data([{"question": "How much?"}])
    result = client.train(clerk, nworkers=3, policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db")
    assert ran == []
    assert result.counts["denied"] >= 1
    calls = {call: one for one in server.store.calls() for call in one.tool_call_ids}
    penalties = [reward for reward in server.store.rewards() if reward.dimension == "compliance"]
    assert len(penalties) == result.counts["denied"]
    for reward in penalties:
        assert reward.value < 0
        assert calls[str(reward.tool_call_id)].rollout_id == reward.rollout_id
    # Which agent made a call is known too: its frameworks tell the endpoint.
    assert {call.agent for call in server.store.calls()} == {"clerk"}
    # What happened in the client's process is a claim at the server; the proof is the client's own record.
    assert all(span.claimed for span in server.store.spans() if span.name == "lgov.decision")
    assert verify(tmp_path / "audit.db").ok


def test_a_policy_that_does_not_load_runs_nothing(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # its record is there
    (tmp_path / "policy.yaml").write_text(POLICY.replace("use: tool", "use: tol"))
    server = serve(steps=1)
    client = Client(server.url, quiet=True)
    client.upload_data([{"question": "digits"}])
    with pytest.raises(PolicyFileError, match="tol"):
        client.train(agents.digits, policy=tmp_path / "policy.yaml")
    assert list(server.store.calls()) == []


def test_a_worker_process_that_hangs_ends_with_its_client(tmp_path: Path) -> None:
    options = {
        "agent": f"{__file__}:hangs", "endpoint": "http://127.0.0.1:9", "governance": Governance().as_json(),
        "rules": False, "threads": 1, "instrument": False,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "lgov_core.client.worker_process"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(options).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"ready": True}
        given = {
            "rollout_id": "ro_1", "attempt": 1, "task_id": "t", "mode": "train", "timeout_s": 600.0, "model": "m",
            "task": {"begun": str(tmp_path / "begun")}, "model_api": "http://127.0.0.1:9/v1",
        }  # fmt: skip
        process.stdin.write(json.dumps(given).encode() + b"\n")
        process.stdin.flush()
        until((tmp_path / "begun").exists, "the agent runs")
        process.stdin.close()  # as it happens when the client is killed
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def hangs(resource: Any, task: Any) -> float:
    assert os.environ["OPENAI_BASE_URL"] == resource.model_api
    Path(task.begun).touch()
    threading.Event().wait()
    return 0.0
