"""What the adapter declares it can do at each point is what it does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from lgov_core.governor import Governor
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Point
from lgov_openai import govern_client, instrument, uninstrument
from lgov_openai.instrumentor import INSTRUMENTOR
from tests import surfaces
from tests.openai import openai_programs as programs

CHAT = {
    "sync": programs.chat_create,
    "async": programs.achat_create,
    "streaming": programs.chat_chunks,
}
RESPONSES = {
    "sync": programs.response_create,
    "async": programs.aresponse_create,
    "streaming": programs.response_events,
}


def answer(api: str, mode: str, client: Any, tools: programs.Tools) -> str:
    """Runs an ordinary program to its end; what it says is put together from every piece that it got."""
    asks = (CHAT if api == "chat" else RESPONSES)[mode]
    if mode == "async":
        loop: Any = programs.achat_loop if api == "chat" else programs.aresponse_loop
        return asyncio.run(loop(asks, client, tools, question=surfaces.QUESTION))
    loop = programs.chat_loop if api == "chat" else programs.response_loop
    return loop(asks, client, tools, question=surfaces.QUESTION)


def play(mode: str, way: str, api: str, policy: surfaces.AtPoint) -> surfaces.Ran:
    """One run under the policy."""
    ran = surfaces.Ran()
    governor = Governor([policy], plugins=[ran.seen])
    with ScriptedModelServer(surfaces.script()) as server:
        client: Any = (programs.aclient if mode == "async" else programs.client)(server.base_url)
        if way == "instrumented":
            instrument(governor)
        try:
            governed = client if way == "instrumented" else govern_client(client, governor)
            ran.shown = answer(api, mode, governed, {"note": ran.note})
        finally:
            uninstrument()
    ran.sent = [json.dumps(request.body) for request in server.requests]
    governor.close()
    return ran


@pytest.mark.parametrize(("way", "api"), [("one line", "responses"), ("instrumented", "chat")])
@surfaces.cases("openai")
def test_the_declared_surface_is_what_works(point: Point, mode: str, way: str, api: str) -> None:
    runs = [play(mode, way, api, surfaces.AtPoint(point, effect)) for effect in ("deny", "change")]
    assert surfaces.found(point, *runs) == surfaces.of(point)


def test_every_declared_point_is_tried() -> None:
    assert set(INSTRUMENTOR.surface) == set(surfaces.WORDS)
