"""The options of ``lgov transitions`` that choose among the attempts that were read: by split and by reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from lgov_core.transitions import TransitionSet

#: The dimension of a bound that names none.
_TASK: Final = "task"


def split_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--split``: training rollouts, held-out ones (mode test, val or eval), or both."""
    return click.option(
        "--split",
        type=click.Choice(["train", "held-out", "all"]),
        default="train",
        show_default=True,
        help="Rollouts to take: those to train on, those of mode test, val or eval (marked in the rows), or all.",
    )(function)


def reward_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--min-reward`` and ``--max-reward``."""
    for flag, what in (("--max-reward", "at most"), ("--min-reward", "at least")):
        function = click.option(
            flag,
            multiple=True,
            metavar="[DIMENSION=]NUMBER",
            callback=_bounds,
            help=f"Only attempts that earned {what} this in a dimension (task unless named); repeatable.",
        )(function)
    return function


def chosen(
    data: TransitionSet, split: str, least: Sequence[tuple[str, float]], most: Sequence[tuple[str, float]]
) -> TransitionSet:
    """``data`` without the attempts that do not fit. Credit stays what it was among all."""
    from lgov_core.transitions.export.messages import totals_of
    from lgov_core.transitions.transition_set import by_rollout

    kept: set[tuple[str, int]] = set()
    for key, turns in by_rollout(data.transitions).items():
        earned = totals_of(turns)
        fits = all(earned.get(name, 0.0) >= bound for name, bound in least)
        fits = fits and all(earned.get(name, 0.0) <= bound for name, bound in most)
        if fits and not (split == "held-out" and not turns[0].held_out):
            kept.add(key)
    return replace(data, transitions=tuple(one for one in data.transitions if (one.rollout_id, one.attempt) in kept))


def _bounds(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[str, float], ...]:
    found: list[tuple[str, float]] = []
    for text in texts:
        name, equals, number = text.rpartition("=")
        with suppress(ValueError):
            if isfinite(float(number)) and (name or not equals):
                found.append((name or _TASK, float(number)))
                continue
        raise click.BadParameter(f"{text!r} is neither a finite number nor DIMENSION=NUMBER")
    return tuple(found)
