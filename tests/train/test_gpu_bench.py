"""The measurement for one GPU runs, on a processor too, so that it is ready where there is one."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason='needs the extra "train"')

from tests.bench import gpu


def test_every_part_runs_and_finds_what_it_computes_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--device", "cpu", "--small"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [name for name, part in found.items() if isinstance(part, dict)] == [
        "attention",
        "small bfloat16",
        "small float32",
        "learning",
    ]
    assert not any("error" in part for part in found.values() if isinstance(part, dict))
    assert found["attention"]["segments"]["gradient_from_rows"] < gpu.CLOSE


def test_a_part_that_fails_is_named_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu.SMALL, "num_attention_heads", 5)
    assert gpu.main(["--device", "cpu", "--small"]) == 1
    assert "ValueError" in json.loads(capsys.readouterr().out)["attention"]["error"]
