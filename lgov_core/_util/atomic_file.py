"""Files for other programs: there whole or not at all, for their owner alone, and never in the place of a database."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from lgov_core._util.sqlite_file import is_database
from lgov_core.errors import LgovError


@contextmanager
def whole_file(path: Path, error: type[LgovError]) -> Generator[Path]:
    """A file beside ``path`` to write to, which takes its place when the block ends, and is gone when that raises.

    It has mode 0600, and is on disk before it is moved. Raises ``error``, leaving what was there, when ``path`` is a
    link, no ordinary file or a database (a record or store itself is easily named by mistake), or cannot be written.
    """
    try:
        if os.path.lexists(path) and not stat.S_ISREG(mode := os.lstat(path).st_mode):
            what = "a symbolic link" if stat.S_ISLNK(mode) else "no ordinary file"
            raise error(f"{path} is {what}", hint="name a new file, or an ordinary one")
        if is_database(path):
            raise error(f"{path} is a database and is not overwritten", hint="name another file")
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
        beside = Path(name)
        try:
            try:
                yield beside
                os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(beside, path)  # takes the place of a link that came in between; never follows it
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as failed:
        raise error(f"{path} cannot be written: {failed.strerror or failed}", hint="name another place") from failed


def write_lines(path: Path, lines: Iterable[str], error: type[LgovError]) -> int:
    """Writes ASCII lines as a `whole_file`; returns how many. Raises ``error``."""
    count = 0
    with whole_file(path, error) as beside, beside.open("w", encoding="ascii") as file:
        for line in lines:
            file.write(line + "\n")
            count += 1
    return count
