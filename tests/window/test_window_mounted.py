"""``lgov view`` and ``lgov serve`` with the window, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from lgov_core.audit import AuditLog
from lgov_core.commands import traces as mounted_window
from lgov_core.gateway.access import KeyRing
from lgov_core.policies import ApprovalPolicy
from lgov_core.store import open_store
from lgov_core.testing import ScriptedModelServer
from lgov_core.train.algorithms import algorithms as registry
from lgov_core.train.settings import TrainingJob
from lgov_core.types import Action, Point
from tests.commands.cli_runner import LGOV, lgov
from tests.window.recorded_rollouts import record

SECRET = "a secret of sixteen bytes or more"
POLICY = "version: 1\nname: desk\nrules:\n  - {name: tools, use: tool, with: {allow: [search]}}\n"


@contextmanager
def running(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """A command of ``lgov`` in a process of its own, ended after the block."""
    with subprocess.Popen([*LGOV, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_with(process: subprocess.Popen[str], words: str) -> str:
    """The next line of output with these words."""
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if words in line:
            return line.strip()
    raise AssertionError("".join(said))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with the recorded rollouts."""
    path = tmp_path / "store.sqlite"
    with open_store(path) as store:
        record(store)
    return path


@pytest.mark.parametrize("looked_at", ["store.sqlite", ".lgov/audit.db"])
@pytest.mark.parametrize(
    ("asked_in", "has_policy"), [("asked.db", True), (".lgov/approvals.db", True), (".lgov/approvals.db", False)]
)
def test_without_settings_the_policy_there_names_the_approvals_or_they_are_in_the_usual_file(
    place: Path, looked_at: str, asked_in: str, has_policy: bool
) -> None:
    (place.parent / ".lgov").mkdir()
    AuditLog(place.parent / ".lgov/audit.db", signer=None).close()
    policy = f"version: 1\nrules:\n- {{name: ask, use: approval, tools: [pay], with: {{store: {asked_in}}}}}\n"
    (place.parent / "policy.yaml").write_text(policy if has_policy else "version: 1\nrules: []\n")
    ApprovalPolicy(store=place.parent / asked_in).judge(Action(Point.PRE_TOOL_CALL, "pay", arguments={"sum": 5}))
    with running("view", str(place.parent / looked_at), "--port", "0", "--no-open") as process:
        address = line_with(process, "the window is open at").split()[-1]
        with httpx.Client() as client:
            client.get(address, follow_redirects=False)
            (item,) = client.get(address.partition("?")[0] + "api/approvals").json()["items"]
    assert item["name"] == "pay"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_lgov_view_prints_an_address_and_ends_on_a_signal(place: Path, how: signal.Signals) -> None:
    with running("view", str(place), "--port", "0", "--no-open") as process:
        address = line_with(process, "the window is open at").split()[-1]
        with httpx.Client() as client:
            client.get(address, follow_redirects=False)
            assert len(client.get(address.partition("?")[0] + "api/rollouts").json()["items"]) == 7
        line_with(process, "for another browser: http://127.0.0.1:")
        process.send_signal(how)
        assert process.wait(30) == 0


def test_lgov_serve_shows_what_it_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)
    Path("secret").write_text(SECRET)
    Path("secret").chmod(0o600)
    keys = KeyRing(SECRET.encode())
    with ScriptedModelServer(["Hello."]) as model:
        flags = ("--store", "calls.sqlite", "--policy", "policy.yaml", "--key-secret-file", "secret")
        with running("serve", "--port", "0", "--upstream", model.base_url, *flags) as process:
            # It may stand in a log: it opens nothing by itself.
            window = line_with(process, "look at it with a key: ").split()[-1]
            base = window.removesuffix("/view/")
            assert httpx.get(f"{window}api/rollouts").status_code == 401
            agent = keys.issue("ro_1", 1)
            client = httpx.Client(headers={"authorization": f"Bearer {agent}"}, timeout=30)
            body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
            assert client.post(f"{base}/v1/chat/completions", json=body).status_code == 200
            assert client.get(f"{window}api/sources").status_code == 401  # the key of the agent opens nothing
            assert client.get(f"{window}api/rollouts?token={agent}").status_code == 401
            admin = httpx.Client(headers={"authorization": f"Bearer {keys.admin}"}, timeout=30)
            (row,) = admin.get(f"{window}api/rollouts").json()["items"]
            assert (row["rollout_id"], row["turns"], row["outcome"]) == ("ro_1", 1, "unknown")
            assert admin.get(f"{window}api/sources").json()["sources"][0]["has"]["audit"]
            replayable = admin.get(f"{window}api/governance/policies").json()["items"]
            assert [one["name"] for one in replayable] == ["policy.yaml"]


def test_a_demo_shows_itself_and_its_window_stays(tmp_path: Path) -> None:
    flags = ("--quick", "--iterations", "0", "--warm-steps", "1", "--folder", str(tmp_path / "demo"))
    with running("demo", "--view", *flags) as process, httpx.Client(timeout=30) as client:
        address = line_with(process, "look at it: ").split()[-1]
        window = address.partition("?")[0]
        client.get(address)
        assert client.get(f"{window}api/sources").json()["sources"] == []
        line_with(process, "stays open until Ctrl-C")
        (run,) = client.get(f"{window}api/runs").json()["items"]
        assert (run["name"], run["rollouts"], len(run["phases"])) == ("seed0-governed", 128, 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.parametrize("flags", [("--backend", "verl"), ("--algorithm", "sft")])
def test_a_training_without_an_endpoint_here_has_its_window_alone(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(mounted_window, "say_on_stderr", said.append)

    def training(job: TrainingJob) -> dict[str, int]:
        assert job.mounted is None
        address = said[0].removeprefix("look at it: ")
        return {"opened": httpx.get(address, follow_redirects=True).status_code}

    monkeypatch.setattr(registry, "find_run", lambda *_: training)  # verl has an environment of its own
    result = lgov("train", *flags, "--folder", str(tmp_path / "run"), "--json")
    assert json.loads(result.stdout) == {"opened": 200}


def test_a_path_without_a_store_says_what_to_name(tmp_path: Path) -> None:
    result = lgov("view", str(tmp_path), "--no-open", "--json")
    assert result.exit_code == 1
    wanted = "name a store (lgov run --store traces.sqlite makes one) or the folder of a training"
    assert json.loads(result.output)["error"]["hint"] == wanted
