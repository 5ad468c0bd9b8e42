"""The recipe for a model with tools of its own makes an update, here with a few thousand random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason='needs the extra "train"')
pytest.importorskip("openai")

from lgov_core.models import load_model
from tests.bench import native_tools
from tests.bench.gpu import SMALL


def test_one_update_from_a_folder_with_its_own_template_and_tags(capsys: pytest.CaptureFixture[str]) -> None:
    assert native_tools.main(["--small"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["updates"], result["last"]["rollouts"]) == (1, 8)
    assert result["last"]["grad_norm"] > 0
    assert result["last"]["logprob_drift"] < 1e-3
    assert 0 < result["peak_gib"] < 8


def test_its_tags_are_tokens_and_its_template_writes_what_lgov_renders(tmp_path: Path) -> None:
    native_tools.make_model(tmp_path, SMALL)
    model = load_model(tmp_path)
    assert set(model.text.tags) >= {"<tool_call>", "</tool_call>"}
    tools = [{"type": "function", "function": {"name": "multiply", "parameters": {"type": "object", "properties": {}}}}]
    messages = [{"role": "user", "content": "17 times 23?"}]
    assert '"name": "multiply"' in model.decode(model.render(messages, tools))
    assert "<tools>" in model.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)


def test_a_training_that_fails_is_named_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert native_tools.main(["--model", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in json.loads(capsys.readouterr().out)["error"]
