"""The garbage collector, out of the way while many values are made that form no cycles."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

#: Values that a block has to make before it is worth while to keep the collector from looking through them.
_MANY: Final = 2_000
#: After so many such blocks, and so many values made in them, without a full collection one is made.
_BLOCKS_A_COLLECTION: Final = 100
_VALUES_A_COLLECTION: Final = 1_000_000


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
            made = gc.get_count()[0]
            if made > _MANY:
                _ages.settle(made)
            gc.enable()


class _Ages:
    """Makes what there is old, without looking through it: the first collection after a block would be of all it made."""

    def __init__(self) -> None:
        self._blocks = self._values = 0
        self._collections = -1
        self._frozen = False

    def settle(self, made: int) -> None:
        """`gc.freeze` moves everything into a generation of its own, and `gc.unfreeze` that into the oldest one.

        A program that has frozen values itself keeps them so: it is left alone from then on, since to count what is
        frozen takes a look at all of it. So is every program on Python 3.12, which begins with frozen values. Freezing
        also sets back what the collector counts towards a full collection, so that one that is due is made here.
        """
        self._frozen = self._frozen or gc.get_freeze_count() > 0
        if self._frozen:
            return
        gc.freeze()
        gc.unfreeze()
        collections = gc.get_stats()[-1]["collections"]
        if collections != self._collections:
            self._blocks, self._values, self._collections = 0, 0, collections
        self._blocks += 1
        self._values += made
        if self._blocks >= _BLOCKS_A_COLLECTION and self._values >= _VALUES_A_COLLECTION:
            gc.collect()


_ages: Final = _Ages()
