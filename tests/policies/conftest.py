"""Where budgets are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cost_helpers import server_address


@pytest.fixture(params=["memory", "file", "server"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The ledger of a policy: none, a file, or an address."""
    if request.param == "server":
        return server_address()
    return None if request.param == "memory" else tmp_path / "budgets.sqlite"
