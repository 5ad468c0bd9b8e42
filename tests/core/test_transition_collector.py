"""Conversion and the garbage collector: what was made is not looked through, and nothing is kept from being collected."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Generator

import pytest

from lgov_core.transitions.reading.collector import collector_paused

#: More than a block has to make.
MANY = 5_000
#: So many blocks, with nothing between them that could lead to a collection, have to lead to one.
BLOCKS = 250


@pytest.fixture
def collecting() -> Generator[None]:
    was_on = gc.isenabled()
    gc.enable()
    gc.collect()
    yield
    if not was_on:
        gc.disable()


class Knot:
    """Can only be freed by the collector."""

    def __init__(self) -> None:
        self.me = self


def convert() -> list[list[int]]:
    with collector_paused():
        return [[number] for number in range(MANY)]


def is_young(value: object) -> bool:
    return any(one is value for one in gc.get_objects(generation=0))


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="begins with frozen values, which are left alone")
@pytest.mark.usefixtures("collecting")
def test_what_a_block_made_is_old_without_a_collection() -> None:
    before = [one["collections"] for one in gc.get_stats()]
    made = convert()
    assert [one["collections"] for one in gc.get_stats()] == before
    assert not is_young(made[0])
    assert gc.isenabled()


@pytest.mark.usefixtures("collecting")
def test_a_small_block_leaves_the_ages_of_others_alone() -> None:
    young = [1]
    with collector_paused():
        pass
    assert is_young(young)


@pytest.mark.usefixtures("collecting")
def test_a_collector_that_was_off_stays_off_and_untouched() -> None:
    gc.disable()
    made = convert()
    assert not gc.isenabled()
    assert is_young(made[0])


@pytest.mark.usefixtures("collecting")
def test_a_program_that_only_converts_still_frees_its_cycles() -> None:
    knot = Knot()
    gone = weakref.ref(knot)
    del knot
    for _ in range(BLOCKS):
        convert()
    assert gone() is None


def test_what_a_program_froze_stays_frozen() -> None:
    script = (
        "import gc; from lgov_core.transitions.reading.collector import collector_paused\n"
        "gc.freeze(); frozen = gc.get_freeze_count()\n"
        "with collector_paused(): made = [[number] for number in range(5000)]\n"
        "assert frozen and gc.get_freeze_count() == frozen, (frozen, gc.get_freeze_count())"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
