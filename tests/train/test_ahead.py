"""Collections that go on in a thread: one after the other, known by their step, tried again where they failed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from lgov_core.errors import TrainError
from lgov_core.train.loop.collecting import CollectedAhead, Progress

PATIENCE_S = 60.0


def quiet(done: int, total: int) -> None:
    """Takes progress that a test does not look at."""


def gated(gate: threading.Event, value: str, began: list[str]) -> Callable[[Progress], str]:
    def collect(progress: Progress) -> str:
        began.append(value)
        progress(1, 2)
        assert gate.wait(PATIENCE_S)
        progress(2, 2)
        return value

    return collect


def test_collections_go_on_in_their_order_and_are_waited_for() -> None:
    ahead: CollectedAhead[str] = CollectedAhead()
    gate, began = threading.Event(), list[str]()
    ahead.begin(2, "two", gated(gate, "second", began))
    ahead.begin(3, "three", gated(gate, "third", began))
    ahead.begin(3, "three", gated(gate, "again", began))
    assert ahead.steps == [2, 3]
    heard: list[tuple[int, int, str]] = []

    def hear(done: int, total: int) -> None:
        heard.append((done, total, threading.current_thread().name))
        if done == 1:
            assert ahead.collecting.locked(), "who else has these workers run something waits"
            gate.set()

    assert ahead.take(2, "two", hear) == "second"
    assert ahead.take(3, "three", quiet) == "third"
    assert began == ["second", "third"]
    assert ahead.steps == []
    assert heard[-1] == (2, 2, threading.current_thread().name)
    assert ahead.take(4, "four", quiet) is None
    with ahead.collecting:
        pass


def test_what_failed_was_of_something_else_or_came_too_late_is_left_to_the_caller() -> None:
    ahead: CollectedAhead[str] = CollectedAhead()

    def fail(progress: Progress) -> str:
        raise TrainError("the workers keep dying")

    gate, began = threading.Event(), list[str]()
    ahead.begin(1, "one", fail)
    assert ahead.take(1, "one", quiet) is None
    ahead.begin(2, "two", gated(gate, "second", began))
    ahead.begin(3, "three", gated(gate, "third", began))
    ahead.begin(4, "four", gated(gate, "fourth", began))
    assert ahead.take(3, "other tasks", quiet) is None, "it does not wait for what it does not want"
    gate.set()
    assert ahead.take(4, "four", quiet) == "fourth"
    assert "third" not in began, "what nobody wants any more is not begun"
    closed = threading.Event()
    ahead.begin(6, "six", gated(closed, "sixth", began))
    ahead.begin(7, "seven", gated(gate, "seventh", began))
    assert ahead.take(8, "eight", quiet) is None
    closed.set()
    ahead.begin(9, "nine", gated(gate, "ninth", began))
    assert ahead.take(9, "nine", quiet) == "ninth"
    assert "seventh" not in began, "nor what is older than what is asked for"
    ahead.begin(5, "five", gated(gate, "fifth", began))
    assert ahead.take(5, "five", quiet) == "fifth", "a new thread takes over where the last one ended"


@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit])
def test_nothing_is_waited_for_in_vain(failure: type[BaseException]) -> None:
    ahead: CollectedAhead[str] = CollectedAhead()

    def end(progress: Progress) -> str:
        raise failure

    ahead.begin(1, "one", end)
    assert ahead.take(1, "one", quiet) is None
