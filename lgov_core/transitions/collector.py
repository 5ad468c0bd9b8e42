"""The garbage collector, out of the way while many values are made that form no cycles."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Generator[None]:
    """Switches automatic collection off inside the block, if it was on.

    Converting makes some ten objects a call that all stay and hold no cycle. Left on, the collector looks through all of
    them, and through every list of tokens, again and again, which takes as long as the converting. Of two blocks that
    overlap in two threads, the one that found collection on switches it on again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
