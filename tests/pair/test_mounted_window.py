"""The window on a training server: at the server's address, open with the address that is printed."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from lgov_core.commands.traces import mounted_window
from lgov_core.server import ServerOptions
from lgov_core.server.local import serving
from tests.pair.conftest import settings


def test_a_training_server_has_the_window(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with (
        serving(settings(model_folder), folder, options=ServerOptions(mounted=mounted_window(str(folder)))) as server,
        httpx.Client() as client,
    ):
        address = capsys.readouterr().err.partition("look at it: ")[2].split()[0]
        assert address.startswith(f"{server.url}/view/?token=")
        assert client.get(f"{server.url}/view/api/sources").status_code == 401
        client.get(address)
        (source,) = client.get(f"{server.url}/view/api/sources").json()["sources"]
        assert (source["id"], source["place"]) == ("run", str(folder))
        assert client.get(f"{server.url}/train/about").status_code == 200  # the server's own routes are as before
