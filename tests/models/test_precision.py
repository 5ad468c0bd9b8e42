"""What a model is served and trained in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')

from lgov_core.errors import ModelError  # noqa: E402
from lgov_core.models import build_tiny  # noqa: E402
from lgov_core.models import load as precision  # noqa: E402
from lgov_core.models.load import dtype_for, wait_without_spinning  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_tiny(["hello"], seed=0, hidden=32, layers=1, heads=2, intermediate=64).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_is_named_is_taken(dtype: str) -> None:
    assert dtype_for("/no/such/folder", dtype, "cpu") == dtype


@pytest.mark.parametrize(
    ("small", "computes", "chosen"), [(10, True, "bfloat16"), (10, False, "float32"), (10_000_000, True, "float32")]
)
def test_auto_is_by_size_and_processor(
    folder: Path, monkeypatch: pytest.MonkeyPatch, small: int, computes: bool, chosen: str
) -> None:
    monkeypatch.setattr(precision, "SMALL", small)
    monkeypatch.setattr(precision, "computes_bfloat16", lambda device: computes)
    assert dtype_for(folder, "auto", "cpu") == chosen


def test_auto_needs_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "computes_bfloat16", lambda device: True)
    with pytest.raises(ModelError):
        dtype_for("/no/such/folder", "auto", "cpu")


def test_threads_sleep_unless_the_environment_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    wait_without_spinning()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    wait_without_spinning()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
