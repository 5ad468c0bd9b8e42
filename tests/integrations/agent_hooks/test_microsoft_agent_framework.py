"""A real agent of Microsoft Agent Framework under lgov's policies, over real HTTP, in an environment of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit.verify import verify
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from tests.docs.page_runner import page_text
from tests.peers import PeerUnavailable, peer_python, run_there
from tests.slow import slow

pytestmark = slow  # installs packages into an environment of its own

REQUIREMENTS = ("agent-framework-core==1.23.0", "agent-framework-openai==1.17.0", "agent-hooks-sdk==0.1.0b3")
POLICY = """
version: 1
default: allow
rules:
  - {name: no-erasing, use: deny, tools: [erase_file], with: {reason: files stay}}
  - name: no-swearing
    use: deny
    on: [input]
    when: {field: text, contains: damn}
"""

Run = Callable[..., tuple[dict[str, Any], list[Mapping[str, Any]]]]


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return peer_python(*REQUIREMENTS)
    except PeerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Run:
    """Runs the program; what it printed, and the bodies of its requests to the model."""

    def go(*replies: ScriptedReply | str, task: str = "do it", mode: str = "async") -> Any:
        (tmp_path / "policy.yaml").write_text(POLICY)
        (tmp_path / "precious.txt").write_text("precious")
        with ScriptedModelServer(list(replies)) as server:
            module = "tests.integrations.agent_hooks.maf_program"
            done = run_there(python, "-m", module, server.base_url, str(tmp_path), task, mode)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout.splitlines()[-1]), [one.body for one in server.requests]

    return go


def asks(*calls: tuple[str, str, dict[str, Any]]) -> ScriptedReply:
    return ScriptedReply(tool_calls=[ScriptedCall(name, arguments, call_id) for call_id, name, arguments in calls])


@pytest.mark.parametrize("mode", ["async", "streaming"])
def test_a_denied_tool_does_not_run_and_the_model_is_told(run: Run, tmp_path: Path, mode: str) -> None:
    file = tmp_path / "precious.txt"
    erase, note = ("c-1", "erase_file", {"path": str(file)}), ("c-2", "note", {"text": "hello"})
    found, bodies = run(asks(erase, note), "I could not erase it.", mode=mode)
    assert file.read_text() == "precious"
    assert found["answer"] == "I could not erase it."
    assert "DENIED by policy no-erasing/deny: files stay" in json.dumps(bodies[-1]["messages"])
    # Every part of the run was judged, and is in the record.
    assert found["points"][0] == "agent_startup"
    assert found["points"][-2:] == ["output", "agent_shutdown"]
    assert {"input", "pre_model_call", "post_model_call"} <= set(found["points"])
    assert found["committed"]
    assert verify(tmp_path / "audit.db").ok
    assert found["agents"] == ["agent-framework/clerk"]
    assert found["user_text"] == ["do it"]
    # The call beside it ran, with the arguments as a policy rewrote them.
    assert (tmp_path / "note.txt").read_text() == "HELLO"
    effects = {(name, call_id, effect) for name, call_id, effect, _ in found["calls"]}
    assert effects == {
        ("erase_file", "c-1", "deny"),
        ("note", "c-2", "transform"),
        ("note", "c-2", "allow"),
    }
    operations = {name: {operation for n, _, _, operation in found["calls"] if n == name} for name in ("note",)}
    assert len(operations["note"]) == 1
    assert None not in operations["note"]
    assert sorted(one[:2] for one in found["outcomes"]) == [["erase_file", "denied"], ["note", "ok"]]


def test_a_denied_input_ends_the_run_before_any_model_is_asked(run: Run) -> None:
    found, bodies = run("unreached", task="damn it")
    assert found["blocked"] == "lgov:no-swearing/deny"
    assert bodies == []
    assert found["points"] == ["agent_startup", "input", "agent_shutdown"]


def test_a_policy_that_raises_denies(run: Run, tmp_path: Path) -> None:
    found, bodies = run(asks(("c-1", "explode", {})), "It is broken.")
    assert not (tmp_path / "exploded").exists()
    assert found["answer"] == "It is broken."
    told = json.dumps(bodies[-1]["messages"])
    assert "policy-error" in told
    assert "the policy is broken" not in told


def test_tokens_reach_the_policies(run: Run) -> None:
    found, _ = run("Fine.")
    (usage,) = found["usage"]
    assert set(usage) == {"input_tokens", "output_tokens"}
    assert all(isinstance(count, int) for count in usage.values())


def test_the_line_in_the_document_governs(python: Path, tmp_path: Path) -> None:
    text = page_text(f"{Path(__file__).parents[3]}/docs/how-to/other-frameworks.md#AGENT-HOOKS")
    (program,) = re.findall(r"^```py\n(.*?)^```", text, re.M | re.S)
    (policy,) = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "policy.yaml").write_text(policy)
    file = tmp_path / "precious.txt"
    file.write_text("precious")
    with ScriptedModelServer([asks(("c-1", "erase_file", {"path": str(file)})), "I could not."]) as server:
        around = f"""
import asyncio, os, pathlib
from agent_framework import tool
from agent_framework_openai import OpenAIChatCompletionClient

os.chdir({str(tmp_path)!r})

@tool(approval_mode="never_require")
def erase_file(path: str) -> str:
    pathlib.Path(path).unlink()
    return "erased"

tools = [erase_file]
client = OpenAIChatCompletionClient(model="scripted", base_url={server.base_url!r}, api_key="none")
{program}
print(asyncio.run(agent.run("erase it")).text)
"""
        done = run_there(python, "-c", around)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "I could not."
    assert file.read_text() == "precious"
