"""Variables of this process's environment that are set for a while, by several at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator

_LOCK = threading.Lock()
#: By name: what the variable was before the first block, and the values of the open blocks, oldest first.
_OPEN: dict[str, tuple[str | None, list[tuple[object, str]]]] = {}


@contextlib.contextmanager
def environment_variable(name: str, value: str) -> Generator[None]:
    """Within the block the variable is ``value``.

    Blocks of several threads may overlap and end in any order: the newest of those that are open holds, and after the last
    the variable is what it was before the first.
    """
    mine = object()
    with _LOCK:
        _, values = _OPEN.setdefault(name, (os.environ.get(name), []))
        values.append((mine, value))
        os.environ[name] = value
    try:
        yield
    finally:
        with _LOCK:
            before, values = _OPEN[name]
            values[:] = [entry for entry in values if entry[0] is not mine]
            if not values:
                del _OPEN[name]
            value_now = values[-1][1] if values else before
            if value_now is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value_now
