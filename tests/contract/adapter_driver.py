"""What the contract of the adapters asks of a framework: an ordinary agent of it, governed by one line or by none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lgov_core.governor import Governor
from lgov_core.instrumentation.framework import Instrumentor

#: How an agent is run. The second kind of streaming is there where a framework streams to synchronous readers too.
MODES = ("sync", "async", "streaming", "async streaming")
WAYS = ("explicit", "instrumented")
QUESTION = "Tidy up."


@dataclass
class Program:
    """An agent named ``clerk``, and who governs it. With ``eraser`` it may hand over to an agent that uses that tool."""

    base_url: str
    governor: Governor
    way: str
    mode: str
    tools: Sequence[Callable[..., str]] = ()
    eraser: Callable[[str], str] | None = None
    question: str = QUESTION

    @property
    def streams(self) -> bool:
        return "streaming" in self.mode

    @property
    def explicit(self) -> bool:
        return self.way == "explicit"


@dataclass
class Outcome:
    """The final answer, everything that the program's caller saw on the way, and a streamed reply's text in its pieces."""

    answer: str
    shown: str = ""
    pieces: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.shown = self.shown or self.answer


class Driver(ABC):
    """One framework. ``agents`` says whether it has agents, whose runs are spans and who have names."""

    instrumentor: Instrumentor
    modes: Sequence[str] = MODES
    agents = True

    @property
    def name(self) -> str:
        return self.instrumentor.name

    @abstractmethod
    def patched(self) -> list[Any]:
        """What instrumentation replaces, as it is now."""

    @abstractmethod
    def run(self, program: Program) -> Outcome:
        """Runs the program in the process as it is. Raises what it raises."""

    def has_agent_span(self, program: Program) -> bool:
        """Returns whether a span of the agent is around its calls."""
        return self.agents

    @contextmanager
    def governed(self, way: str, governor: Governor) -> Iterator[None]:
        """Zero lines: the process is instrumented. In the explicit way nothing is."""
        if way == "instrumented":
            self.instrumentor.instrument(governor)
        try:
            yield
        finally:
            self.instrumentor.uninstrument()
