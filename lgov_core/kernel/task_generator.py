"""Tasks of an environment, made by a function from random numbers that may be seeded."""

from __future__ import annotations

import inspect
import random
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from lgov_core.errors import ArgumentError

_GLOBAL_RANDOM = threading.Lock()


def make_task_generator(function: Callable[..., Any] | None) -> Callable[[np.random.Generator, bool], Any]:
    """A function of the environment's random numbers, and whether they were seeded, that makes a task.

    Raises `ArgumentError` for a function that requires other arguments.
    """
    if function is None:
        return lambda _random, _seeded: ""
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        parameters = {}
    for name in ("np_random", "rng"):
        if name in parameters:
            return lambda np_random, _seeded: function(**{name: np_random})
    if "seed" in parameters:
        return lambda np_random, _seeded: function(seed=int(np_random.integers(2**31)))
    needed = [one.name for one in parameters.values() if one.default is one.empty and one.kind not in _VARIADIC]
    if needed:
        raise ArgumentError(
            f"the task generator requires {', '.join(needed)}", hint="let it take nothing, np_random, rng or seed"
        )

    def from_global(np_random: np.random.Generator, seeded: bool) -> Any:
        if not seeded:
            return function()
        with _global_random(int(np_random.integers(2**31))):
            return function()

    return from_global


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@contextmanager
def _global_random(seed: int) -> Generator[None]:
    """``random`` and ``numpy.random`` seeded while the block runs, and then as they were before.

    Another thread that draws from them meanwhile draws from the seeded ones.
    """
    with _GLOBAL_RANDOM:
        python, numpy = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
