"""Hides transformers' progress bars, which would break the caller's own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def no_transformers_bars() -> Generator[None]:
    """Within it transformers shows no bars. The switch is the whole process's, as transformers has it."""
    from transformers.utils import logging

    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()
