"""Clients as their users start them do a small task through `lgov serve`: judged, attributed, token by token, in a box."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from tests.clients.programs_of_users import ASK, CLIENTS, COMMAND, Client, block
from tests.clients.served import LGOV, RULES, Served, started
from tests.confine.conftest import why_not

POLICY = f"""{RULES}
confine: {{preset: workspace, read: [%s], environment: [OPENAI_MODEL]}}
"""
EACH = [pytest.param(client, id=name) for name, client in CLIENTS.items()]


#: What a box keeps a command from writing beside the working folder.
BESIDE = "beside.txt"


def script(body: Mapping[str, Any]) -> ScriptedReply | str:
    """Calls the tool that the task names, once, then says that it is done."""
    items = body.get("messages") or body["input"]
    done = [item for item in items if item.get("role") == "tool" or item.get("type") == "function_call_output"]
    tools = {tool.get("name") or tool.get("function", {}).get("name") for tool in body.get("tools", ())}
    forbidden = "with another tool" in json.dumps(items)
    for client in CLIENTS.values() if not done else ():
        name, arguments = client.other if forbidden else client.shell
        if {client.other[0], client.shell[0]} <= tools:
            beside = "and beside it" in json.dumps(items)
            arguments = {key: f"{value}; echo x > ../{BESIDE}" if beside and value == COMMAND else value
                         for key, value in arguments.items()}  # fmt: skip
            return ScriptedReply(tool_calls=[ScriptedCall(name, arguments)])
    return "All done."


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with (
        ScriptedModelServer(script, token_ids=True) as model,
        started(tmp_path_factory.mktemp("served"), "--upstream", model.base_url) as served,
    ):
        yield served


def reply_text(call: Any) -> str:
    """The text that the recorded token ids of a call are: the scripted model's are bytes."""
    return bytes(token for token in call.response_ids if token < 256).decode()


@pytest.mark.client("attributed")
@pytest.mark.parametrize("client", EACH)
def test_it_does_a_small_task_and_every_call_is_recorded(served: Served, tmp_path: Path, client: Client) -> None:
    rollout = f"task-{client.slug}"
    done = client.run(tmp_path, served.base_url(rollout))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "All done." in done.stdout
    assert (tmp_path / "made.txt").read_text() == "hello\n"
    calls = served.calls(rollout)
    assert len(calls) >= 2
    assert all(call.attempt == 1 and call.prompt_ids for call in calls)
    assert all(len(call.logprobs) == len(call.response_ids) for call in calls)
    assert sum(client.shell[0] in reply_text(call) for call in calls) == 1
    assert reply_text(calls[-1]) == "All done."
    assert any(ASK in json.dumps(call.request) for call in calls)
    assert not served.denied(rollout)


@pytest.mark.client("governed")
@pytest.mark.parametrize("client", EACH)
def test_a_call_that_the_policy_denies_never_reaches_it(served: Served, tmp_path: Path, client: Client) -> None:
    rollout = f"denied-{client.slug}"
    done = client.run(tmp_path, served.base_url(rollout), ask=f"{ASK} with another tool")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "DENIED" in done.stdout
    assert not (tmp_path / "made.txt").exists()
    assert served.denied(rollout) == {client.other[0]}


@pytest.mark.parametrize(("npm", "route"), [("@ai-sdk/anthropic", "messages"), ("@ai-sdk/openai", "responses")])
def test_opencode_asks_other_apis_with_other_packages(served: Served, tmp_path: Path, npm: str, route: str) -> None:
    def configure(work: Path, url: str) -> None:
        (work / "opencode.json").write_text(block("opencode.json", url).replace("@ai-sdk/openai-compatible", npm))

    rollout = f"opencode-{route}"
    done = replace(CLIENTS["opencode"], configure=configure).run(tmp_path, served.base_url(rollout))
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "made.txt").read_text() == "hello\n"
    assert {call.route for call in served.calls(rollout)} == {route}


@pytest.mark.client("boxed")
@pytest.mark.skipif(why_not() is not None, reason=f"no box here: {why_not()}")
@pytest.mark.parametrize("client", EACH)
def test_it_does_the_task_in_a_box(served: Served, tmp_path: Path, client: Client) -> None:
    rollout = f"boxed-{client.slug}"
    url = served.base_url(rollout)
    before = (*LGOV, "run", "--confine", "--endpoint", url, "--rollout-id", rollout, "--")
    work = tmp_path / "work"
    work.mkdir()
    (work / "policy.yaml").write_text(POLICY % (client.program().parents[3] if client.from_npm else "."))
    done = client.run(work, url, ask=f"{ASK} and beside it", before=before)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "All done." in done.stdout
    assert "confined: " in done.stderr
    # What the client asked for and its model was not offered, as the endpoint has it on record.
    named = {what for call in served.calls(rollout) for what in (call.response.get("lgov") or {}).get("left_out", ())}
    lines = [line for line in done.stderr.splitlines() if "not offered to the model in " in line]
    assert {line.partition(": ")[2].partition(": ")[2] for line in lines} == named
    assert bool(named) == (client.name in ("Codex", "anthropic"))
    assert (work / "made.txt").read_text() == "hello\n"
    assert not (tmp_path / BESIDE).exists()
    assert len(served.calls(rollout)) >= 2


@pytest.mark.skipif(why_not() is not None, reason=f"no box here: {why_not()}")
def test_a_program_that_is_not_python_runs_in_a_box_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY % ".")
    (tmp_path / "home").mkdir()
    beside = tmp_path.parent / f"{tmp_path.name}-beside"
    shell = ("sh", "-c", f"echo hello > made.txt; echo x > {beside}; exit 7")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
        command = [*LGOV, "run", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)

    assert run("--", *shell).returncode == 78
    assert not (tmp_path / "made.txt").exists()
    boxed = run("--confine", "--", *shell)
    assert boxed.returncode == 7, boxed.stderr
    assert (tmp_path / "made.txt").read_text() == "hello\n"
    assert not beside.exists()
    missing = run("--confine", "--", "no-such-program")
    assert missing.returncode == 78
    assert "no-such-program" in missing.stderr
