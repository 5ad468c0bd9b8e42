"""One trainer on a store, also on one that other machines reach."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lgov_core.errors import TrainError
from lgov_core.server.run_state import only_trainer
from lgov_core.server.training import ServerOptions, TrainingServer
from lgov_core.store import store_of
from tests.pair.conftest import settings
from tests.pair.test_train_commands import ENVIRONMENT, until

pytest.importorskip("psycopg", reason="needs the extra postgres")
from tests.postgres_server import shared_server

HOLDER = """\
import sys
from lgov_core.server.run_state import only_trainer
with only_trainer(sys.argv[1]):
    print("trains", flush=True)
    sys.stdin.read()
"""


def test_two_trainers_on_one_postgresql_store_are_refused_until_the_first_has_ended(
    model_folder: Path, tmp_path: Path
) -> None:
    address = shared_server().empty_store()
    # A process of its own, as on another machine; it ends without a word to anybody.
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"trains\n"
        with (
            pytest.raises(TrainError, match=r"another process trains on the store postgresql://.* already"),
            TrainingServer(settings(model_folder), folder=tmp_path / "second", options=ServerOptions(store=address)),
        ):
            raise AssertionError("not reached")
    finally:
        first.kill()
        first.communicate()

    def alone() -> bool:
        try:
            with only_trainer(address), pytest.raises(TrainError, match="already"), only_trainer(address):
                raise AssertionError("not reached")
        except TrainError:
            return False
        return True

    # PostgreSQL sees that the connection is gone, and when it does is its own affair.
    until(alone, "the lock ends with its holder")


def test_a_store_that_cannot_be_reached_is_told_without_its_password() -> None:
    with (
        pytest.raises(TrainError, match="cannot be reached") as caught,
        only_trainer("postgresql://lgov:hunter2@127.0.0.1:9/none"),
    ):
        raise AssertionError("not reached")
    assert "hunter2" not in str(caught.value)


def test_a_resumed_training_goes_on_with_the_store_that_it_began_with(model_folder: Path, tmp_path: Path) -> None:
    address, folder = shared_server().empty_store(), tmp_path / "run"
    with TrainingServer(settings(model_folder), folder=folder, options=ServerOptions(store=address)):
        assert store_of(folder) == address
    with TrainingServer(settings(model_folder), folder=folder, resume=True) as server:
        assert "postgresql://" in repr(server.store)
    assert not (folder / "store.sqlite").exists()
    assert store_of(folder) == address
