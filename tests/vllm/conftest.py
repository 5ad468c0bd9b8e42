"""`make test-vllm`: a real vLLM (built for CPUs) with SmolLM2. VLLM_PYTHON names the interpreter that has vLLM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lgov_core.models import load_model, smollm2_folder
from lgov_core.train.engines.vllm_engine import open_vllm
from lgov_core.train.engines.vllm_server import VllmOptions
from tests.vllm.asked import Asked

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("VLLM_PYTHON", "nowhere")).absolute()
MODEL = smollm2_folder()

# What a small machine that does other things needs.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = "vLLM (make test-vllm)" if not PYTHON.exists() else "smollm2" if not MODEL.exists() else ""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1800))
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"needs {missing}"))


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    model = load_model(MODEL)
    options = VllmOptions(PYTHON, context_tokens=1024, rank=8, cpu=True, arguments=("--max-num-seqs", "32"))
    with open_vllm(model, str(MODEL), tmp_path_factory.mktemp("vllm"), options) as engine:
        asked = Asked(model, engine)
        yield asked
        asked.close()
