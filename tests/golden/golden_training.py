"""A short training of the pair, as values that do not depend on the run: figures, weights, rows and what the store holds.

``python -m tests.golden.golden_training`` writes ``training.json`` anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from pyarrow import parquet

from lgov_core import Client
from lgov_core.models import build_tiny
from lgov_core.server.local import serving
from lgov_core.store import open_store
from lgov_core.train.settings import load_train_settings
from tests.pair import pair_agents
from tests.pair.conftest import SMALL

RECORD = Path(__file__).parent / "training.json"
TASKS = [{"question": f"digits {number}"} for number in range(4)]
HELD_OUT = [{"question": "digits please"}] * 2
#: Columns of a batch that do not depend on ids or times.
COLUMNS = (
    "task_id",
    "attempt",
    "turn",
    "agent",
    "prompt_ids",
    "response_ids",
    "response_mask",
    "logprobs",
    "rewards",
    "return",
    "advantages",
    "loss_weight",
    "policy_version",
    "outcome",
    "finish_reason",
)
#: By algorithm: its settings.
RUNS = {"grpo": {}, "ppo": {}, "dapo": {"max_extra_groups": 2}}


def train(folder: Path, algorithm: str) -> dict[str, Any]:
    """Trains with one worker, so that the same seed gives the same replies, and returns what is to stay as it is."""
    torch.set_num_threads(1)
    model = folder / "model"
    build_tiny(["digits please 0 1 2 3 4 5 6 7 8 9", "a b c d e f"] * 3, seed=0, **SMALL).save(model)
    flags: dict[tuple[str, str], Any] = {
        ("model", "name"): str(model), ("model", "max_new_tokens"): 4, ("model", "dtype"): "float32",
        ("training", "algorithm"): algorithm, ("training", "batch_size"): 2, ("training", "group_size"): 4,
        ("training", "steps"): 3, ("training", "epochs"): 20, ("training", "learning_rate"): 5e-3,
        ("training", "kl_coef"): 0.01, **{("training", name): value for name, value in RUNS[algorithm].items()},
    }  # fmt: skip
    run = folder / "run"
    with serving(load_train_settings(flags=flags, environ={}), run) as server:
        client = Client(server.url, quiet=True)
        client.upload_data(TASKS, HELD_OUT)
        result = client.train(pair_agents.digits, nworkers=1)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    with open_store(str(run / "store.sqlite"), make=False) as store:
        calls = [(call.agent, call.model, call.weights_version, call.finish_reason) for call in store.calls()]
        attempts = sorted(str((one.attempt, one.outcome, one.error, _counts(one.result))) for one in store.attempts())
    batches = [parquet.read_table(path).to_pylist() for path in sorted((run / "transitions").glob("*.parquet"))]
    files = {re.sub(r"\d{6}", "N", str(path.relative_to(run))) for path in run.rglob("*") if path.is_file()}
    return {
        "counts": dict(sorted(result.counts.items())),
        "lines": [_steady(line) for line in lines],
        "keys": [sorted(line) for line in lines],
        "weights": [line.get("weights_sha256") for line in lines],
        "rows": [_digest([{name: row.get(name) for name in COLUMNS} for row in rows]) for rows in batches],
        "columns": sorted(batches[0][0]),
        "calls": _digest(calls),
        "attempts": _digest(attempts),
        "files": sorted(name for name in files if not name.endswith(("-wal", "-shm"))),
    }


def _steady(line: dict[str, Any]) -> dict[str, Any]:
    """A line of the metrics without times and digests."""
    return {
        name: _steady(value) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownArgumentType]
        for name, value in line.items()
        if not name.endswith("_s") and name not in ("at", "time", "weights_sha256")
    }


def _counts(result: Any) -> Any:
    return result["counts"] if isinstance(result, dict) else result  # pyright: ignore[reportUnknownVariableType]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def machine() -> dict[str, str]:
    """The machine and the libraries that decide the last bits of a sum: replies and weights are theirs too."""
    processor = next((line for line in _processor().splitlines() if line.startswith("model name")), "")
    return {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(), "processor": processor}


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def record() -> dict[str, Any]:
    """All runs, and the machine that they were made on."""
    found: dict[str, Any] = {"machine": machine()}
    for algorithm in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            found[algorithm] = train(Path(folder), algorithm)
    return found


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    RECORD.write_text(json.dumps(record(), indent=1, sort_keys=True) + "\n")
