"""Checkpoints: whole or not at all, and what comes back is what was written."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')

from lgov_core.errors import TrainError  # noqa: E402
from lgov_core.train.loop.checkpoint import (  # noqa: E402
    Best,
    Checkpoint,
    best_checkpoint,
    latest_checkpoint,
    mark_best,
    save_checkpoint,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def trained(steps: int) -> tuple[Any, Any]:
    """A small module and its optimizer after ``steps`` steps on the same data."""
    torch.manual_seed(0)
    module = torch.nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    for number in range(steps):
        step(module, optimizer, number)
    return module, optimizer


def step(module: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    data = torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
    module(data).square().sum().backward()
    optimizer.step()


def checkpoint(number: int, **extra: Any) -> Checkpoint:
    module, optimizer = trained(number)
    weights = {name: value.detach().clone() for name, value in module.named_parameters()}
    return Checkpoint(number, weights, {"optimizer": optimizer.state_dict()}, extra)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_comes_back_is_what_was_written(tmp_path: Path) -> None:
    written = checkpoint(3, run_id="run", note="größe")
    path = save_checkpoint(tmp_path / "deep" / "checkpoints", written)
    assert path.name == "step-000003"
    found = latest_checkpoint(path.parent)
    assert found is not None
    assert (found.step, found.extra) == (3, {"run_id": "run", "note": "größe"})
    assert found.weights.keys() == written.weights.keys()
    assert all(torch.equal(found.weights[name], written.weights[name]) for name in written.weights)
    assert all(found.weights[name].dtype == written.weights[name].dtype for name in written.weights)


def test_a_run_that_goes_on_from_a_checkpoint_comes_to_the_same_weights(tmp_path: Path) -> None:
    uninterrupted, _ = trained(6)
    save_checkpoint(tmp_path, checkpoint(4))
    found = latest_checkpoint(tmp_path)
    assert found is not None
    module, optimizer = trained(0)
    module.load_state_dict(dict(found.weights))
    optimizer.load_state_dict(found.state["optimizer"])
    for number in range(found.step, 6):
        step(module, optimizer, number)
    assert torch.equal(module.weight, uninterrupted.weight)
    # The optimizer's state is part of it: without it the same steps lead elsewhere.
    without, fresh = trained(0)
    without.load_state_dict(dict(found.weights))
    for number in range(found.step, 6):
        step(without, fresh, number)
    assert not torch.equal(without.weight, uninterrupted.weight)


def test_the_newest_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    for number in (1, 2, 10, 11):
        save_checkpoint(tmp_path, checkpoint(number), keep=2)
    assert names(tmp_path) == ["step-000010", "step-000011"]
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 11


def test_a_step_that_is_written_again_replaces_the_first(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, checkpoint(2, take=1))
    save_checkpoint(tmp_path, checkpoint(2, take=2))
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.extra == {"take": 2}
    assert names(tmp_path) == ["step-000002"]


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "nowhere") is None
    assert latest_checkpoint(tmp_path) is None


def test_what_is_half_written_is_passed_over_and_cleared_away(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, checkpoint(1))
    partial = tmp_path / ".step-000002.partial"
    partial.mkdir()
    (partial / "state.pt").write_bytes(b"half")
    (tmp_path / "step-000009").mkdir()  # nothing in it
    (tmp_path / "step-7").mkdir()
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1
    save_checkpoint(tmp_path, checkpoint(2))
    assert not partial.exists()
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 2


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("state.pt", b""),
        ("state.pt", b"this is no checkpoint"),
        ("state.pt", b"PK\x03\x04 torn off"),
        ("state.pt", None),
        ("extra.json", b"{"),
        ("extra.json", b"{}"),
    ],
)
def test_one_that_cannot_be_read_is_an_error_that_names_it(file: str, content: bytes | None, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, checkpoint(1))
    if content is None:
        (path / file).unlink()
    else:
        (path / file).write_bytes(content)
    with pytest.raises(TrainError, match="step-000001 cannot be read"):
        latest_checkpoint(tmp_path)


def test_a_checkpoint_that_holds_code_is_refused(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, checkpoint(1))
    torch.save({"optimizer": Path("x")}, path / "state.pt")
    with pytest.raises(TrainError, match="cannot be read"):
        latest_checkpoint(tmp_path)


FULL_DISK = """
    import resource, sys
    from pathlib import Path
    import torch
    from lgov_core.errors import TrainError
    from lgov_core.train.loop.checkpoint import Checkpoint, save_checkpoint
    folder = Path(sys.argv[1])
    def save(step):
        save_checkpoint(folder, Checkpoint(step, {"w": torch.full((50_000,), float(step))}, {}, {}), keep=1)
    save(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        save(2)
    except TrainError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_a_full_disk_is_an_error_and_the_older_one_is_intact(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "step-000002 could not be written" in done.stdout
    assert "older checkpoints are intact" in done.stdout
    assert names(tmp_path) == ["step-000001"]
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert torch.equal(found.weights["w"], torch.ones(50_000))


def test_a_score_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    mark_best(tmp_path, 1, "mean_return", math.nan)
    assert best_checkpoint(tmp_path) is None
    assert mark_best(tmp_path, 2, "mean_return", -1.0) == Best(2, "mean_return", -1.0)
    for score in (math.nan, math.inf, -math.inf):
        assert mark_best(tmp_path, 3, "mean_return", score).step == 2
    assert best_checkpoint(tmp_path) == Best(2, "mean_return", -1.0)
