from __future__ import annotations

import gc

from lgov_core.instrumentation.shared_state import share_state


class Part:
    def __init__(self) -> None:
        self.values = [1]


class Whole:
    def __init__(self) -> None:
        self.name = "whole"
        self.part = Part()


class Twin(Whole):
    pass


def twin_of(original: Whole) -> Twin:
    twin = object.__new__(Twin)
    share_state(twin, original)
    return twin


def test_what_is_set_on_one_is_set_on_all() -> None:
    original = Whole()
    first, second = twin_of(original), twin_of(original)
    third = twin_of(first)
    first.name = "first"
    original.part.values.append(2)
    third.more = 3  # type: ignore[attr-defined]
    assert [one.name for one in (original, second, third)] == ["first"] * 3
    assert third.part.values == [1, 2]
    assert original.more == second.more == 3  # type: ignore[attr-defined]


def test_nothing_is_lost_once_the_first_of_them_is_gone() -> None:
    original = Whole()
    twin = twin_of(original)
    twin.__dict__["kept"] = [original]
    del original
    for _ in range(3):
        gc.collect()  # with CPython 3.13 this emptied what two objects share
    assert (twin.name, twin.part.values) == ("whole", [1])
