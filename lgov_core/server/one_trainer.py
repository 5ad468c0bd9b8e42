"""One trainer on a store: two would hand out each other's rollouts and publish over each other's weights."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from lgov_core._util.file_lock import HeldByAnother, hold
from lgov_core.errors import TrainError
from lgov_core.settings import without_password

#: Names lgov's lock among the advisory locks of a PostgreSQL database.
_POSTGRES_LOCK = 0x6C676F76


@contextlib.contextmanager
def only_trainer(place: str) -> Generator[None]:
    """Within the block no other trainer works on the store at ``place``, in whatever process. Raises `TrainError`.

    The lock ends with the process, however that ends.
    """
    if place.startswith("memory://"):
        yield
        return
    with _postgres(place) if place.startswith(("postgresql://", "postgres://")) else _file(place):
        yield


@contextlib.contextmanager
def _file(place: str) -> Generator[None]:
    path = Path(f"{place.removeprefix('sqlite:///')}.trainer")
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(hold(path))
        except HeldByAnother as error:
            raise _refused(place, f"process {error.holder}" if error.holder else "another process") from error
        except OSError as error:
            raise TrainError(f"{path} cannot be written: {error.strerror or error}") from error
        yield


@contextlib.contextmanager
def _postgres(place: str) -> Generator[None]:
    import psycopg

    try:
        connection = psycopg.connect(place, autocommit=True)
    except psycopg.Error as error:
        raise TrainError(f"the store {without_password(place)} cannot be reached: {error}") from error
    with connection:
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (_POSTGRES_LOCK,)).fetchone()
        if row is None or not row[0]:
            raise _refused(without_password(place), "another process")
        yield


def _refused(place: str, holder: str) -> TrainError:
    return TrainError(
        f"{holder} trains on the store {place} already", hint="stop it, or give this one a folder of its own"
    )
