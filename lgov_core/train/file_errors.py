"""The errors of a run's files."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pickle import UnpicklingError

from lgov_core.errors import TrainError


@contextlib.contextmanager
def file_errors(message: str, hint: str, *more: type[Exception]) -> Generator[None]:
    """Turns what reading or writing a file raises within the block, and ``more``, into `TrainError`."""
    try:
        yield
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, UnpicklingError, *more) as error:
        raise TrainError(f"{message}: {error}", hint=hint) from error
