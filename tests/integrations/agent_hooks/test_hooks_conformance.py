"""The conformance kit of AGENT-HOOKS-0.1 holds over the three frameworks, in every way they can be run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from agent_hooks.ctk.runner import load_vectors
from ctk_agents import AgentsHarness, ResponsesHarness
from ctk_autogen import AutoGenHarness
from ctk_harness import Given, KitModel, LgovHarness, Mode, report_of
from ctk_langchain import LangChainHarness
from langchain.agents.middleware import AgentMiddleware
from more_vectors import MORE

#: What the kit of agent-hooks-sdk 0.1.0b3 holds.
VECTORS = 75
APPLICABLE = 47
SKIPPED = {
    'missing capabilities: ["host_declaration"]': 24,
    'missing capabilities: ["incremental_output"]': 4,
}

RUNS: list[tuple[type[LgovHarness], Mode, Given]] = [
    (LangChainHarness, "async", "plugin"),
    (LangChainHarness, "async", "policy"),
    (LangChainHarness, "sync", "plugin"),
    (LangChainHarness, "sync", "policy"),
    (LangChainHarness, "streaming", "plugin"),
    # AutoGen has no synchronous agents.
    (AutoGenHarness, "async", "plugin"),
    (AutoGenHarness, "async", "policy"),
    (AutoGenHarness, "streaming", "plugin"),
    (AgentsHarness, "async", "plugin"),
    (AgentsHarness, "async", "policy"),
    (AgentsHarness, "sync", "plugin"),
    (AgentsHarness, "streaming", "plugin"),
    (ResponsesHarness, "async", "plugin"),
    (ResponsesHarness, "streaming", "plugin"),
]


@pytest.fixture(scope="module")
def vectors() -> list[dict[str, Any]]:
    found = load_vectors()
    assert len(found) == VECTORS == APPLICABLE + sum(SKIPPED.values())
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("harness", "mode", "given"), RUNS, ids=[f"{cls.__name__}-{mode}-{given}" for cls, mode, given in RUNS]
)
def test_every_applicable_vector_passes(
    harness: type[LgovHarness], mode: Mode, given: Given, vectors: list[dict[str, Any]]
) -> None:
    def make(chosen: Mode, model: KitModel) -> LgovHarness:
        made = harness(chosen, model)
        made.given = given
        return made

    report = report_of(make, mode, vectors)
    assert_more(make, mode)
    print(f"{harness.__name__}, {mode}, as a {given}: {report}")
    assert report.failed == []
    assert report.passed == APPLICABLE
    assert report.skipped == SKIPPED


def assert_more(make: Callable[[Mode, KitModel], LgovHarness], mode: Mode) -> None:
    """What the kit does not ask."""
    made: list[LgovHarness] = []

    def kept(chosen: Mode, model: KitModel) -> LgovHarness:
        made.append(make(chosen, model))
        return made[-1]

    report = report_of(kept, mode, MORE)
    assert report.failed == []
    assert report.passed == len(MORE)
    (side_by_side,) = [one for one, vector in zip(made, MORE, strict=True) if vector["id"] == "LGOV-005"]
    ran = sorted(call["args"]["key"] for call in side_by_side.invoked)
    assert ran == ["c", "z"]


class Ungoverned(LangChainHarness):
    """An agent whose middleware does nothing."""

    def agent(self, base_url: str) -> Any:
        import ctk_langchain

        class Nothing(AgentMiddleware[Any, Any, Any]):
            def __init__(self, _governor: object) -> None:
                super().__init__()
                self.tools = []

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ctk_langchain, "LgovMiddleware", Nothing)
            return super().agent(base_url)


def test_the_kit_tells_an_agent_that_is_not_governed(vectors: list[dict[str, Any]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = report_of(Ungoverned, "async", vectors)
    # What begins and ends a rollout is the governor's own; everything else needs the adapter.
    assert report.passed <= 5
    assert len(report.failed) >= APPLICABLE - 5
