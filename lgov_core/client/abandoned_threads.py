"""Runs attempts in daemon threads that can be abandoned, so that a hanging agent does not keep the program alive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

Given = TypeVar("Given")
Found = TypeVar("Found")


def as_they_end(
    run: Callable[[Given], Found], inputs: Sequence[Given], threads: int, name: str
) -> Generator[tuple[int, Found]]:
    """Calls ``run`` with each of ``inputs``, at most ``threads`` at a time; yields the index and the result as they end.

    Raises what ``run`` raised. Once the generator is closed, or has raised, nothing more is begun; what runs continues
    in daemon threads and its result is dropped. For one thread.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended: queue.SimpleQueue[tuple[int, Found | None, BaseException | None]] = queue.SimpleQueue()
    over = threading.Event()
    for index in range(len(inputs)):
        waiting.put(index)

    def work() -> None:
        while not over.is_set():
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put((index, run(inputs[index]), None))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                ended.put((index, None, error))

    try:
        for number in range(min(threads, len(inputs))):
            threading.Thread(target=work, name=f"{name}-{number}", daemon=True).start()
        for _ in inputs:
            index, result, error = ended.get()
            if error is not None:
                raise error
            yield index, result  # pyright: ignore[reportReturnType] - there is one where nothing was raised
    finally:
        over.set()
