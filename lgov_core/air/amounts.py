"""Checks that what users' functions and files give as a reward is a finite number."""

from __future__ import annotations

import inspect
import math
from typing import Any

from lgov_core.errors import RewardError


def finite(what: str, value: Any) -> float:
    """``value`` as a finite float. Raises `RewardError`, naming ``what``, for anything else."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise RewardError(f"{what} is a coroutine", hint="reward functions are plain functions, not async ones")
    try:
        number = math.nan if isinstance(value, str | bytes | bytearray) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"{what} is {value!r:.100}, not a finite number")
    return number


def amount(what: str, value: Any) -> float:
    """As `finite`, but a truth value is not a number either."""
    if isinstance(value, bool):
        raise RewardError(f"{what} is {value}, not a finite number", hint="write how much it earns or costs")
    return finite(what, value)
