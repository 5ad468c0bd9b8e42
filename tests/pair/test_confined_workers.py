"""`Client.train(..., workers="confined")`: each worker process in a box of its own, its record outside."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Client
from lgov_core.audit import AuditLog, verify
from lgov_core.client.tasks import load_agent
from lgov_core.errors import SettingsError, TrainError
from lgov_core.server.recipe import client_options
from lgov_core.server.training import TrainingServer
from lgov_core.trace import semconv
from lgov_core.train.settings import load_train_settings
from tests.confine.conftest import why_not

pytest.importorskip("langchain", reason="needs the extra langchain")
Serve = Callable[..., TrainingServer]
POLICY = "version: 1\nrules: [{name: tools, use: tool, with: {allow: [look]}}]\nconfine: "
AGENT = """
import os, urllib.request, json
from pathlib import Path

def agent(resource, task):
    from langchain_core.tools import tool

    @tool
    def look(path: str) -> str:
        "Looks at a file."
        return str(os.path.exists(path))

    @tool
    def forbidden(path: str) -> str:
        "Not allowed."
        return Path(path).read_text()

    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": task.question}]}).encode()
    request = urllib.request.Request(f"{resource.model_api}/chat/completions", body, {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=60).close()
    assert look.invoke({"path": "/.lgov-box/folder"}) == "True"
    assert look.invoke({"path": task.outside}) == "False"
    assert "DENIED" in forbidden.invoke({"path": "policy.yaml"})
    try:
        os.listdir(".lgov")
    except PermissionError:
        return 1.0
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a policy and an agent."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace}}\n")
    (folder / "mine.py").write_text(AGENT)
    monkeypatch.chdir(folder)
    return folder


def train(server: TrainingServer, work: Path, **options: Any) -> Any:
    client = Client(server.url, quiet=True)
    client.upload_data([{"question": "digits please", "outside": str(work.parent / "outside")}])
    agent = load_agent(f"{work / 'mine.py'}:agent")
    options = {"workers": "confined", "policy": "policy.yaml", **options}
    return client.train(agent, 1, **options)


def test_workers_are_confined_and_their_record_is_outside(
    serve: Serve, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    server = serve(steps=1, batch_size=1, group_size=2)
    result = train(server, work)
    assert result.counts["succeeded"] == 2
    spans = [one for one in server.store.spans() if one.attributes.get(semconv.SERVER_ADDRESS) == "127.0.0.1"]
    assert {one.rollout_id for one in spans} == {one.rollout_id for one in server.store.calls()}
    record = work / ".lgov" / "audit.db"
    with AuditLog(record) as log:
        entries = log.entries()
    assert [entry.kind for entry in entries[:2]] == ["policy", "confinement"]
    tools = [(one.name, one.effect) for one in entries if one.point == "pre_tool_call" and one.kind == "decision"]
    assert tools.count(("forbidden", "deny")) == 2
    assert tools.count(("look", "allow")) == 4
    assert verify(record).ok
    assert list(temporary.glob("lgov-*")) == []


def test_workers_that_cannot_be_confined_are_not_run(serve: Serve, work: Path) -> None:
    (work / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, files: 100000000}}\n")
    (work / "mine.py").write_text("def agent(resource, task): open('ran', 'w'); return 1.0")
    with pytest.raises(TrainError, match="no worker process became ready: ended with status 78"):
        train(serve(steps=1), work)
    assert not (work / "ran").exists()


def test_threads_cannot_be_confined(work: Path) -> None:
    flags = {("runtime", "confine"): True}
    assert client_options(load_train_settings(flags=flags, environ={}), work)["workers"] == "confined"
    threads = load_train_settings(flags={**flags, ("runtime", "workers"): "threads"}, environ={})
    with pytest.raises(SettingsError, match="worker processes"):
        client_options(threads, work)
