"""What the adapter declares it can do at each point is what it does."""

from __future__ import annotations

import json

import pytest

from lgov_autogen.instrumentor import INSTRUMENTOR
from lgov_core.types import Point
from tests import surfaces
from tests.autogen.autogen_parts import WAYS, playing


async def play(mode: str, way: str, policy: surfaces.AtPoint) -> surfaces.Ran:
    """One run under the policy. Its caller sees every message and, streamed, every piece."""
    ran = surfaces.Ran()

    async def note(text: str) -> str:
        """Notes."""
        return ran.note(text)

    with playing(way, policy, *surfaces.script()) as (parts, seen, server):
        agent = parts.agent("clerk", [note], stream=mode == "streaming")
        if mode == "streaming":
            events = [event async for event in agent.run_stream(task=surfaces.QUESTION)]
        else:
            events = list((await agent.run(task=surfaces.QUESTION)).messages)
    ran.shown, ran.seen = str(events), seen
    ran.sent = [json.dumps(request.body) for request in server.requests]
    return ran


@pytest.mark.parametrize("way", WAYS)
@surfaces.cases("autogen", ("async", "streaming"))
async def test_what_is_declared_is_what_can_be_done(point: Point, mode: str, way: str) -> None:
    runs = [await play(mode, way, surfaces.AtPoint(point, effect)) for effect in ("deny", "change")]
    assert surfaces.found(point, *runs) == surfaces.of(point)


def test_no_point_is_declared_that_was_not_tried() -> None:
    assert set(INSTRUMENTOR.surface) == set(surfaces.WORDS)
