"""Small models in folders, and training servers over real HTTP."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lgov_core.models import build_tiny
from lgov_core.server.local import serving
from lgov_core.server.training import TrainingServer
from lgov_core.train.settings import TrainSettings, load_train_settings
from tests.pair.warm_process import Warm

ROOT = Path(__file__).parents[2]
#: What commands in processes of their own are given.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

SMALL = {"hidden": 32, "layers": 2, "heads": 2, "intermediate": 64, "max_positions": 256, "vocab_size": 300}


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models") / "small"
    build_tiny(["digits please 0 1 2 3 4 5 6 7 8 9", "a b c d e f"] * 3, seed=0, **SMALL).save(folder)
    return folder


@pytest.fixture(scope="session")
def taught_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `tests.gateway.taught`: asked "How much?" it calls ``run_sql``, told 12 it answers "Answer: 12"."""
    from tests.gateway.taught import taught_model

    folder = tmp_path_factory.mktemp("models") / "taught"
    taught_model().save(folder)
    return folder


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Starts commands as processes that begin at once."""
    found = Warm(ENVIRONMENT, ROOT)
    yield found
    found.close()


def settings(model: Path, **values: Any) -> TrainSettings:
    """Settings of a short training; keys are those of any section."""
    flags: dict[tuple[str, str], Any] = {
        ("model", "name"): str(model), ("model", "max_new_tokens"): 4,
        ("training", "batch_size"): 2, ("training", "group_size"): 4, ("training", "steps"): 2,
        ("training", "epochs"): 20, ("training", "learning_rate"): 5e-3, ("training", "kl_coef"): 0.0,
    }  # fmt: skip
    sections = dict.fromkeys(("max_new_tokens", "served_as", "lora_rank", "engine", "dtype"), "model")
    sections |= {"timeout_s": "runtime", "max_attempts": "runtime"}
    flags |= {(sections.get(name, "training"), name): value for name, value in values.items()}
    return load_train_settings(flags=flags, environ={})


@pytest.fixture
def serve(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., TrainingServer]]:
    """Starts servers that end with the test: ``serve(model=None, folder="run", resume=False, **settings)``."""
    with contextlib.ExitStack() as running:

        def start(
            model: Path | None = None, folder: str = "run", *, resume: bool = False, **values: Any
        ) -> TrainingServer:
            chosen = settings(model or model_folder, **values)
            return running.enter_context(serving(chosen, tmp_path / folder, resume=resume))

        yield start
