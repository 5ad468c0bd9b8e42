"""The declarations of a framework package about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lgov_core.types.actions import Point


@dataclass(frozen=True, slots=True)
class Surface:
    """The abilities of an adapter at one point.

    ``observe``: see it happen; ``block``: stop it; ``tell``: let the model read why; ``transform``: change it;
    ``stream``: all that also when replies are streamed; ``sync``: all that also for synchronous agents.
    """

    observe: bool = False
    block: bool = False
    tell: bool = False
    transform: bool = False
    stream: bool = False
    sync: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """A known way around an adapter: ``name`` and ``why`` in words.

    ``calls`` are the names of methods and functions whose call in a program shows that it comes near the gap.
    """

    name: str
    why: str
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """A distribution that a framework does not work with from version ``below`` on; ``why`` says what fails.

    It is looked for where ``needed_by``, a distribution of the framework, is installed.
    """

    distribution: str
    below: str
    needed_by: str
    why: str


@dataclass(frozen=True, slots=True)
class Adapter:
    """One framework package.

    ``installed`` answers without importing the framework. ``instrument`` gets a `Governor`, under which it puts every agent
    of that framework in this process, and raises `InstrumentationError` when it cannot; ``uninstrument`` undoes it.
    ``modules`` are the top-level modules whose import shows that a program uses the framework. ``tested`` maps
    distribution names to the tested version range.
    ``unsupported`` says why a cell (mode, shape) of the table of denials does not exist or is not governed; ``*`` as the
    shape stands for all. ``gaps`` are the known ways around. ``conflicts`` are releases of other distributions that break it.
    """

    name: str
    modules: tuple[str, ...]
    tested: Mapping[str, str]
    surface: Mapping[Point, Surface]
    installed: Callable[[], bool]
    instrument: Callable[[Any], None]
    uninstrument: Callable[[], None]
    unsupported: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    gaps: tuple[Gap, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
