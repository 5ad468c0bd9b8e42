"""``lgov serve --engine vllm`` in a process of its own, against a server that follows vLLM's protocol."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from lgov_core.commands.group import Exit
from lgov_core.store import open_store
from tests.commands.cli_runner import lgov
from tests.commands.test_serve_command import Serving
from tests.gateway.taught import tiny
from tests.train.fake_vllm import environment_of


def test_serve_samples_with_vllm_and_ends_it(folder: Path) -> None:
    tiny().save(folder / "model")
    python = environment_of(folder)
    arguments = ("--engine", "vllm", "--set", f"vllm.python={python}", "--model", "model", "--store", "calls.sqlite")
    with Serving(*arguments) as serving:
        assert serving.about["models"] == ["tiny"]
        serving.ask(x_lgov_rollout_id="rol_1", x_lgov_attempt="1", model="tiny")
        assert serving.end(signal.SIGTERM) == 0
    store = open_store(folder / "calls.sqlite")
    (call,) = store.calls()
    store.close()
    assert (call.engine, call.weights_version, call.response_ids) == ("vllm", 0, (10,) * 4)
    given = json.loads((folder / "arguments").read_text())
    assert given[0] == "model"
    assert given[given.index("--logprobs-mode") + 1] == "processed_logprobs"


def test_serve_says_what_vllm_needs(folder: Path) -> None:
    refused = lgov("serve", "--engine", "vllm")
    assert (refused.exit_code, "--engine vllm serves one model" in refused.output) == (Exit.USAGE, True)
    assert lgov("serve", "--engine", "vlllm", "--model", "tiny").exit_code == Exit.USAGE
    refused = lgov("serve", "--model", "tiny", "--set", "vllm.pyton=x")
    assert (refused.exit_code, "--set vllm.pyton: there is no setting vllm.pyton" in refused.output) == (
        Exit.USAGE,
        True,
    )
    refused = lgov("serve", "--engine", "http://127.0.0.1:1", "--upstream", "http://127.0.0.1:1")
    assert (refused.exit_code, "--engine vllm serves one model" in refused.output) == (Exit.USAGE, True)
    tiny().save(folder / "model")
    refused = lgov("serve", "--engine", "vllm", "--model", "model")
    assert refused.exit_code == Exit.USAGE
    assert "there is no Python with vLLM at .venv-vllm/bin/python" in refused.output
