"""A training whose engine and update compute in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lgov_core import Client
from lgov_core.evaluation.model import load_trained
from lgov_core.server.training import TrainingServer
from lgov_core.train.loop.checkpoint import latest_checkpoint
from lgov_core.train.loop.run_files import read_metrics, train_lines
from tests.pair.pair_agents import digits

Serve = Callable[..., TrainingServer]
TASKS = [{"question": "digits please"}, {"question": "a b c"}]


@pytest.mark.parametrize("rank", [0, 4], ids=["all weights", "adapters"])
def test_weights_stay_float32_and_passes_are_bfloat16(serve: Serve, tmp_path: Path, rank: int) -> None:
    server = serve(dtype="bfloat16", lora_rank=rank, checkpoint_every=1)
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)
    client.train(digits)
    found = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert {tensor.dtype for tensor in found.weights.values()} == {torch.float32}
    lines = train_lines(read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert len({line["weights_sha256"] for line in lines}) == 2, "steps are not rounded away"
    assert all(line["logprob_drift"] < 0.02 for line in lines)
    assert lines[-1]["logprob_drift"] > 1e-5, "float32 comes closer"
    trained = load_trained(tmp_path / "run")
    assert next(trained.model.module.parameters()).dtype is torch.bfloat16


def test_auto_is_recorded_as_what_it_was(serve: Serve, tmp_path: Path) -> None:
    server = serve(steps=1)
    assert server.settings.model.dtype == "float32", "the model is small"
