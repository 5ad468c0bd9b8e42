"""A training gives what it gave before its parts were moved: same seed, same replies, rows, figures, weights and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

for _module in ("torch", "transformers", "starlette", "pyarrow"):
    pytest.importorskip(_module, reason='needs the extras "gateway" and "train"')

from tests.golden.golden_training import RECORD, RUNS, machine, train  # noqa: E402

#: Parts of a record that are the same on every machine.
EVERYWHERE = ("files", "columns", "keys")


@pytest.mark.parametrize("algorithm", RUNS)
def test_a_training_gives_what_is_on_record(algorithm: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORD.read_text())
    found = json.loads(json.dumps(train(tmp_path, algorithm)))
    names = list(found) if recorded["machine"] == machine() else EVERYWHERE
    for name in names:
        assert found[name] == recorded[algorithm][name], name
