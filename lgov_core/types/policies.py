"""The protocols of policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from lgov_core.types.actions import Action
from lgov_core.types.decisions import Decision


@runtime_checkable
class Policy(Protocol):
    """Judges actions.

    ``judge`` returns a `Decision`, or None when the policy has no opinion on this action (which is not an allow: a set
    whose policies all have no opinion falls back to its default). It may be called from several threads at once. When it
    raises, the caller denies. ``bounded`` says that its cost is bounded by construction, so that it may run
    inline; leave it out (or False) for anything that may wait.

    More attributes are optional. ``default_points`` are the points at which a rule that names none asks the policy; a
    policy without them is asked at every point. ``listens_at`` are those at which it only takes note of what it is shown: there
    neither the tools and agents nor the condition of its rule count.
    ``reads_replies`` (False) says that it is asked about replies and outputs for another reason than their text, or not at
    all: without it a streamed text reaches its reader only after its decision.
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
