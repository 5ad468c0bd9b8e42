"""What a framework package tells the core about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lgov_core.types import Point

if TYPE_CHECKING:
    from lgov_core.governor import Governor


@dataclass(frozen=True, slots=True)
class Surface:
    """What an adapter can do at one point.

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
class Adapter:
    """One framework package.

    ``installed`` answers without importing the framework. ``arm`` makes every agent of that framework in this process
    governed and raises `ArmError` when it cannot; ``disarm`` undoes it. ``modules`` are the top-level modules whose import
    shows that a program uses the framework. ``tested`` maps distribution names to the tested version range.
    """

    name: str
    modules: tuple[str, ...]
    tested: Mapping[str, str]
    surface: Mapping[Point, Surface]
    installed: Callable[[], bool]
    arm: Callable[[Governor], None]
    disarm: Callable[[], None]
