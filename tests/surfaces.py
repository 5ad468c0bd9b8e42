"""What an adapter can do at one point, found out by doing it.

An agent that uses one tool is run twice: under a policy that denies at the point, and under one that changes something
there. Whoever uses this runs the agent; what counts as stopped, told and
changed is the same for every framework.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from lgov_core.instrumentation.framework import Surface
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedReply
from lgov_core.types import Action, Decision, Point
from tests.cells import Seen, asks, says

#: What the policy looks for at each point: the user says ``Alpha``, the tool gets ``beta`` and answers with ``gamma``, the
#: model's last word is ``omega``.
WORDS = {
    Point.INPUT: "Alpha",
    Point.PRE_MODEL_CALL: "Alpha",
    Point.PRE_TOOL_CALL: "beta",
    Point.POST_TOOL_CALL: "gamma",
    Point.POST_MODEL_CALL: "omega",
    Point.OUTPUT: "omega",
}
QUESTION = "Alpha"
REASON = "not that one"

#: What tests claim about each point: with a tool call or its result the model is told, elsewhere the caller.
ABILITIES = {
    point: ("observe", "block", "tell", "transform")
    if point in (Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL)
    else ("observe", "block", "transform")
    for point in WORDS
}


def script() -> list[ScriptedReply]:
    """One use of the tool, then the last word."""
    return [asks(("c1", "note", {"text": "beta"})), says("omega")]


class AtPoint(BoundedPolicy):
    """Denies or changes what bears the word of one point, and allows the rest."""

    name = "surface"

    def __init__(self, point: Point, effect: str) -> None:
        self.point, self.effect, self.word = point, effect, WORDS[point]

    def judge(self, action: Action) -> Decision | None:
        given = json.dumps(dict(action.arguments), default=str)
        inside = given if self.point in (Point.PRE_MODEL_CALL, Point.PRE_TOOL_CALL) else action.text or ""
        if action.point is not self.point or self.word not in inside:
            return self.allow("fine") if action.point is Point.PRE_TOOL_CALL else None
        if self.effect == "deny":
            return self.deny("no", REASON)
        changed = inside.replace(self.word, self.word.upper())
        if inside is given:
            return self.transform("change", "changed", arguments=json.loads(changed))
        return self.transform("change", "changed", text=changed)


@dataclass
class Ran:
    """What came of one run: everything the caller saw, what the tool got, what was sent to the model, what was judged."""

    shown: str = ""
    got: list[str] = field(default_factory=list[str])
    sent: list[str] = field(default_factory=list[str])
    seen: Seen = field(default_factory=Seen)

    def note(self, text: str) -> str:
        """What the agent's tool does."""
        self.got.append(text)
        return f"{text} gamma"


def found(point: Point, denied: Ran, changed: Ran) -> Surface:
    """What can be done at ``point``, judged by a run under each of the two policies. Streaming and sync are the caller's."""
    word = WORDS[point]
    last = denied.sent[-1] if denied.sent else ""
    every = " ".join(changed.sent)
    blocked = {
        Point.INPUT: not denied.sent,
        Point.PRE_MODEL_CALL: not denied.sent,
        Point.PRE_TOOL_CALL: denied.got == [],
        Point.POST_TOOL_CALL: denied.got == ["beta"] and word not in last,
        Point.POST_MODEL_CALL: word not in denied.shown,
        Point.OUTPUT: word not in denied.shown,
    }[point]
    rewritten = {
        Point.INPUT: word.upper() in every and word not in every,
        Point.PRE_MODEL_CALL: word.upper() in every and word not in every,
        Point.PRE_TOOL_CALL: changed.got == ["BETA"],
        Point.POST_TOOL_CALL: word.upper() in every and word not in every,
        Point.POST_MODEL_CALL: word.upper() in changed.shown and word not in changed.shown,
        Point.OUTPUT: word.upper() in changed.shown and word not in changed.shown,
    }[point]
    observed = [one for one in denied.seen.decisions(point) if one.decision.rule == "no"]
    told = REASON in last
    # A denial that neither the model nor the caller can read would be a silent one.
    assert told or REASON in denied.shown, f"nobody was told: {denied.shown!r}"
    return Surface(observe=bool(observed), block=blocked, tell=told, transform=rewritten)


def of(point: Point) -> Surface:
    """What `ABILITIES` claims of a point, to be compared with what was `found`."""
    return Surface(**dict.fromkeys(ABILITIES[point], True))


def cases(framework: str, modes: tuple[str, ...] = ("sync", "async", "streaming")) -> Any:
    """One case for each point and mode, marked as what it shows: ``stream`` and ``sync`` mean all of it in that mode."""
    bears = {"sync": ("sync",), "streaming": ("stream",)}
    return pytest.mark.parametrize(
        ("point", "mode"),
        [
            pytest.param(
                point,
                mode,
                marks=pytest.mark.surface(framework, point.value, *bears.get(mode, ABILITIES[point])),
                id=f"{point.value}-{mode}",
            )
            for point in WORDS
            for mode in modes
        ],
    )
