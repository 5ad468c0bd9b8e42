"""Flows that a synchronous and an asynchronous caller run alike."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from lgov_core.flow import TURN, Flow, Step, arun_flow, foreign, in_thread, run_flow

SET: ContextVar[str] = ContextVar("set", default="outside")


def doubled(function: Any, aside: list[str]) -> Flow[int]:
    token = SET.set("inside")
    try:
        first = yield Step(function)
        second = yield from nested(function)
    except KeyError:
        return -1
    finally:
        SET.reset(token)
        yield Step(lambda: aside.append("closed"))
    return first + second


def nested(function: Any) -> Flow[int]:
    return (yield Step(function))


def raising(error: BaseException) -> Any:
    def function() -> Any:
        raise error

    return function


def test_both_drivers_send_the_answers_into_the_flow() -> None:
    seen: list[str] = []

    async def two() -> int:
        seen.append(SET.get())
        return 2

    assert run_flow(doubled(lambda: 2, seen)) == 4
    assert asyncio.run(arun_flow(doubled(two, seen))) == 4
    assert seen == ["closed", "inside", "inside", "closed"]
    assert SET.get() == "outside"


def test_each_driver_makes_the_call_of_its_kind() -> None:
    async def later() -> str:
        return "async"

    def flow() -> Flow[str]:
        return (yield Step(lambda: "sync", later))

    assert run_flow(flow()) == "sync"
    assert asyncio.run(arun_flow(flow())) == "async"


def test_what_a_step_raises_is_handled_by_the_flow() -> None:
    assert run_flow(doubled(raising(KeyError()), [])) == -1
    assert asyncio.run(arun_flow(doubled(raising(KeyError()), []))) == -1
    closed: list[str] = []
    with pytest.raises(OSError, match="gone"):
        run_flow(doubled(raising(OSError("gone")), closed))
    assert closed == ["closed"]


def test_a_stop_iteration_leaves_the_synchronous_driver() -> None:
    with pytest.raises(StopIteration):
        run_flow(doubled(raising(StopIteration()), []))


def test_a_cancellation_lets_the_flow_clean_up() -> None:
    closed: list[str] = []

    async def cancelled() -> None:
        task = asyncio.create_task(arun_flow(doubled(lambda: asyncio.sleep(60), closed)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert closed == ["closed"]


def test_an_error_of_the_flow_that_a_step_caused_leaves_it_as_it_is() -> None:
    def flow() -> Flow[None]:
        try:
            yield Step(raising(KeyError("a")))
        except KeyError as error:
            raise RuntimeError("no such name") from error

    with pytest.raises(RuntimeError, match="no such name"):
        run_flow(flow())


def test_blocking_work_is_done_in_place_or_in_a_thread_that_does_not_hold_up_the_loop() -> None:
    def where(first: str, *, second: str) -> tuple[str, int]:
        return first + second, threading.get_ident()

    def flow() -> Flow[tuple[str, int]]:
        return (yield in_thread(where, "a", second="b"))

    here = threading.get_ident()
    assert run_flow(flow()) == ("ab", here)
    text, thread = asyncio.run(arun_flow(flow()))
    assert text == "ab"
    assert thread != here


def test_a_call_of_the_program_gets_its_arguments_in_the_thread_of_the_caller() -> None:
    def where(*names: str, **named: str) -> tuple[Any, ...]:
        return names, named, threading.get_ident()

    def flow(*names: str, **named: str) -> Flow[Any]:
        return (yield foreign(where, *names, **named))

    here = threading.get_ident()
    for names, named in [((), {}), (("a",), {}), ((), {"b": "c"}), (("a",), {"b": "c"})]:
        assert run_flow(flow(*names, **named)) == (names, named, here)
        assert asyncio.run(arun_flow(flow(*names, **named))) == (names, named, here)


def test_a_turn_for_others_is_a_step_without_a_result() -> None:
    def flow() -> Flow[Any]:
        return (yield TURN)

    assert run_flow(flow()) is None
    assert asyncio.run(arun_flow(flow())) is None
