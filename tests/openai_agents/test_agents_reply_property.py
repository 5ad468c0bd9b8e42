"""Whatever a model replies: the tools of an SDK agent are handed the calls on record, each with its own arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from agents import Agent, FunctionTool
from cells_agents import MODELS, instrumented, make_governor, run
from hypothesis import Phase, example, given, settings

from tests.cells import Seen
from tests.random_replies import CALLS, FRESH_IDS, PLAIN, Hiding, Ran, RandomModel, check

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model() -> Iterator[RandomModel]:
    model = RandomModel()
    with model.server:
        yield model


def tools_of(ran: Ran) -> list[Any]:
    def tool_of(name: str) -> FunctionTool:
        async def act(context: Any, arguments: str) -> str:
            ran.append((context.tool_call_id, name, arguments))
            return "done"

        return FunctionTool(name, "Acts.", SCHEMA, act)

    return [tool_of(name) for name in ("look", "run_sql", "erase_file")]


@pytest.mark.parametrize("mode", ["async", "streaming"])
@pytest.mark.parametrize("api", ["chat", "responses"])
@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(calls=CALLS | FRESH_IDS, early=FRESH_IDS)
@example(calls=PLAIN, early=[])
def test_tools_are_handed_only_calls_on_record(api: str, mode: str, model: RandomModel, calls: Any, early: Any) -> None:
    model.play(calls, early if api == "responses" else [])
    seen, ran, raised = Seen(), Ran(), None
    governor = make_governor(Hiding(), seen)
    with instrumented(governor):
        try:
            run(mode, Agent(name="a", model=MODELS[api](model.server), tools=tools_of(ran)), "go")
        except Exception as error:
            raised = error
    governor.close()
    check(ran, seen, raised, calls, early)
