"""Whatever a model replies: the tools of an AutoGen agent are handed the calls on record, each with its own arguments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from autogen_core.tools import FunctionTool
from hypothesis import Phase, example, given, settings

from lgov_core.governor import Governor
from tests.autogen.autogen_parts import WAYS, answer_of, governed
from tests.cells import Seen
from tests.random_replies import CALLS, FRESH_IDS, PLAIN, Hiding, Ran, RandomModel, check


@pytest.fixture(scope="module")
def model() -> Iterator[RandomModel]:
    model = RandomModel()
    with model.server:
        yield model


def tools_of(ran: Ran) -> list[FunctionTool]:
    def tool_of(name: str) -> FunctionTool:
        def act(n: int) -> str:
            ran.append((None, name, json.dumps({"n": n})))
            return "done"

        return FunctionTool(act, "Acts.", name=name)

    return [tool_of(name) for name in ("look", "run_sql", "erase_file")]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(calls=CALLS | FRESH_IDS)
@example(calls=PLAIN)
def test_tools_are_handed_only_calls_on_record(way: str, streamed: bool, model: RandomModel, calls: Any) -> None:
    model.play(calls, [])
    seen, ran, raised = Seen(), Ran(), None
    governor = Governor([Hiding()], plugins=[seen])
    with governed(way, governor, model.server.base_url) as parts:
        try:
            asyncio.run(answer_of(parts.agent("a", tools_of(ran), stream=streamed), "go", stream=streamed))
        except Exception as error:
            raised = error
    governor.close()
    check(ran, seen, raised, calls, [])
