"""Whatever a model replies: the tools of a LangChain agent are handed the calls on record, each with its own arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from hypothesis import Phase, example, given, settings
from langchain.agents import create_agent
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langchain_openai import ChatOpenAI

from lgov_core.governor import Governor
from lgov_langchain import instrument, uninstrument
from tests.cells import Seen
from tests.random_replies import CALLS, FRESH_IDS, PLAIN, Hiding, Ran, RandomModel, check

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model() -> Iterator[RandomModel]:
    model = RandomModel()
    with model.server:
        yield model


def tools_of(ran: Ran) -> list[StructuredTool]:
    def tool_of(name: str) -> StructuredTool:
        def act(n: int, call_id: Annotated[str, InjectedToolCallId]) -> str:
            ran.append((call_id, name, json.dumps({"n": n})))
            return "done"

        return StructuredTool.from_function(act, name=name, description="Acts.")

    return [tool_of(name) for name in ("look", "run_sql", "erase_file")]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(calls=CALLS | FRESH_IDS, early=FRESH_IDS)
@example(calls=PLAIN, early=[])
def test_tools_are_handed_only_calls_on_record(
    api: str, streamed: bool, model: RandomModel, calls: Any, early: Any
) -> None:
    model.play(calls, early if api == "responses" else [])
    seen, ran, raised = Seen(), Ran(), None
    governor = Governor([Hiding()], plugins=[seen])
    instrument(governor)
    try:
        chat: Any = ChatOpenAI(model="m", base_url=model.server.base_url, api_key="k", max_retries=0,  # type: ignore[arg-type]
                               streaming=streamed, use_responses_api=api == "responses")  # fmt: skip
        create_agent(chat, tools_of(ran)).invoke({"messages": [("user", "go")]})
    except Exception as error:
        raised = error
    finally:
        uninstrument()
        governor.close()
    check(ran, seen, raised, calls, early)
