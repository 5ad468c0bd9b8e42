"""The types of what others bring to lgov: protocols of policies, and the declarations of a framework package about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from lgov_core.types.actions import Action, Decision, Point


@runtime_checkable
class Policy(Protocol):
    """Judges actions.

    ``judge`` returns a `Decision`, or None when the policy has no opinion on this action (which is not an allow: a set
    whose policies all have no opinion falls back to its default). It may be called from several threads at once. When it
    raises, the caller denies. ``bounded`` says that its cost is bounded by construction, so that it may run
    inline; leave it out (or False) for anything that may wait.

    More attributes are optional. ``default_points`` are the points at which a rule that names none asks the policy; a
    policy without them is asked at every point. ``settles_at`` maps points at which it sets something aside to those at which
    it learns what was used, where it is asked too whatever the rule names. ``listens_at`` are those at which it only takes
    note of what it is shown: there it is called in place, bounded or not, and neither the tools and agents nor the condition
    of its rule count.
    ``reads_replies`` (False) says that it is asked about replies and outputs for another reason than their text, or not at
    all: without it a streamed text reaches its reader only after its decision.
    ``ping()`` raises while something cannot be used that it needs, as a server asks again and again.
    ``observe(event)`` makes it an `ObservingPolicy`. ``continue_from(previous)`` takes over what ``previous``, the policy of
    the same rule before its file was changed, has counted; see `ReloadingPolicySet`. ``deferred`` (True) has it asked
    after all others, and only about what none of them denies. ``timeout_s`` is how long the governor waits for one that is
    not bounded, when that is longer than usual. ``permits`` says whether its allow can permit an act (a policy that only
    restricts says False); without it, it can, but not in a policy file.
    """

    name: str

    def judge(self, action: Action) -> Decision | None:
        """The verdict on ``action``, or None for no opinion."""
        ...


@runtime_checkable
class ObservingPolicy(Protocol):
    """A policy that also gets the events that follow its decisions, because it counts or remembers something.

    ``observe`` gets every event that ``lgov_observe`` gets, on the thread where it happened, after the decision is
    committed: an ``ObservedDecision`` (which shows whether another policy denied what this one allowed), a
    ``ToolOutcome``, and so on. It must not block. When it raises, the error is counted on the governor.
    """

    name: str

    def observe(self, event: Any) -> None:
        """Takes note of ``event``."""
        ...


#: Makes a policy: called with the rule's name as ``name`` and the entries of ``with`` as keyword arguments.
PolicyFactory = Callable[..., Policy]


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
    ``offers`` gives the definitions of the tools that the framework's agents, teams and nodes alive in this process may offer
    to a model or run: mappings with ``name``, and where known ``kind``, ``parameters`` (a JSON Schema), ``arguments``.
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
    offers: Callable[[], Iterable[Mapping[str, Any]]] = tuple[Mapping[str, Any]]
