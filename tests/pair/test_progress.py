"""What a training shows while it goes on: progress at the server, and warnings about replies."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Client
from lgov_core.server import command
from tests.pair import pair_agents as agents

TASKS = [{"question": "digits 1"}, {"question": "digits 2"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
Serve = Callable[..., Any]


def with_tools(resource: Any, task: Any) -> float:
    return sum(one.isdigit() for one in agents.ask(resource, task.question, tools=TOOLS)) / 4


def unhurried(resource: Any, task: Any) -> float:
    time.sleep(0.3)  # an update takes longer than a look at it
    return agents.digits(resource, task)


def test_the_server_shows_how_a_training_goes_on(
    serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_PAUSE_S", 0.01)
    server = serve()
    with command.shown_progress(server.coordinator):
        client = Client(server.url, quiet=True)
        client.upload_data(TASKS)
        client.train(unhurried)
        while not server.coordinator.run.ended:
            time.sleep(0.01)
    said = capsys.readouterr().err
    assert re.search(r"1 of 2 updates made; (rollouts|update) \d/\d", said)
    assert "2 of 2 updates made; " in said
    assert "done 2/2" not in said
    assert "training done: 2 updates, training reward" in said


def test_replies_without_any_call_are_a_warning(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve()
    client = Client(server.url)
    client.upload_data(TASKS)
    client.train(with_tools)
    said = capsys.readouterr().err
    assert said.count("WARNING: update 1: none of 8 replies holds a tool call that can be read") == 1
    assert "WARNING: update 2: none" not in said, "it was said"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all("no-tool-calls" in line["warnings"] for line in lines if line["phase"] == "train")


def test_replies_that_are_cut_off_are_a_warning(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(steps=1)  # a reply has four tokens at most
    client = Client(server.url)
    client.upload_data(TASKS)
    client.train(agents.digits)
    said = capsys.readouterr().err
    assert "replies were cut off at the limit of tokens" in said
    assert "holds a tool call" not in said, "no tool was offered"
