"""Instrumenting the SDK, headers for our endpoint, and what the adapter declares."""

from __future__ import annotations

from typing import Any

import pytest
from agents import (
    Agent,
    Model,
)
from agents.mcp import MCPServer
from cells import ANSWER, Seen, says
from cells_agents import (
    as_response,
    chat_model,
    denying,
    instrumented,
    make_governor,
    run,
)

import lgov_openai_agents.patching as patching
from lgov_core.errors import InstrumentationError
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Point
from lgov_openai_agents import instrument
from lgov_openai_agents.instrumentor import INSTRUMENTOR


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_calls_to_our_endpoint_say_whose_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedModelServer([says(ANSWER), says(ANSWER)]) as server:
        agent = Agent(name="a", model=chat_model(server))
        with instrumented(make_governor(lambda action: None)), enter_scope(RolloutScope("rol_1", 2)):
            run("sync", agent, "go")
            monkeypatch.setenv("LGOV_ENDPOINT", server.base_url.removesuffix("/v1"))
            run("sync", agent, "go")
        assert "x-lgov-rollout-id" not in server.requests[0].headers
        sent = server.requests[1].headers
        assert (sent["x-lgov-rollout-id"], sent["x-lgov-attempt"], sent["x-lgov-agent"]) == ("rol_1", "2", "a")


def test_models_by_name_and_models_of_the_program_are_governed(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent without a model instance gets one from the provider; a class made after instrumentation is governed too."""
    from agents import Model, ModelResponse, Usage

    from lgov_openai_agents.items import message

    with ScriptedModelServer([as_response(_said())]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        with instrumented(make_governor(denying("late", "gpt-x", point=Point.OUTPUT), seen)):

            class Late(Model):
                async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
                    return ModelResponse(output=[message("late")], usage=Usage(), response_id=None)

                async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
                    raise NotImplementedError
                    yield

            assert "DENIED" in run("sync", Agent(name="late", model=Late()), "go").final_output
            assert "DENIED" in run("sync", Agent(name="gpt-x", model="gpt-x"), "go").final_output
    assert {span.name for span in seen.spans if span.name.startswith("chat")} == {"chat Late", "chat gpt-x"}


def _said() -> dict[str, Any]:
    part = {"type": "output_text", "text": ANSWER, "annotations": []}
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}


@pytest.mark.parametrize("broken", ["tool", "model", "MCP server", "runner"])
def test_a_way_around_is_found_by_the_self_test(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a future SDK called a tool or a model in another way than it does."""
    if broken == "tool":
        import agents.run_internal.tool_execution as execution

        async def around(*, function_tool: Any, context: Any, arguments: str) -> Any:
            from agents.tool import _FunctionToolInvocationResult

            return _FunctionToolInvocationResult(await vars(function_tool)["on_invoke_tool"](context, arguments))

        monkeypatch.setattr(execution, "_invoke_function_tool_with_metadata", around)
    elif broken in ("model", "MCP server"):
        left_out, patch = Model if broken == "model" else MCPServer, patching.wrap_methods
        monkeypatch.setattr(patching, "wrap_methods", lambda p, base, w: base is left_out or patch(p, base, w))
    else:
        import agents

        monkeypatch.setattr(agents.FunctionTool, "__getattribute__", lambda self, name: vars_of(self, name))
    with pytest.raises(
        InstrumentationError,
        match=rf"denied probes got through \({broken}" if broken in ("model", "MCP server") else None,
    ):
        instrument(make_governor(lambda action: None))
    assert INSTRUMENTOR.governor is None


def vars_of(instance: Any, name: str) -> Any:
    stored = object.__getattribute__(instance, "__dict__")
    return stored[name] if name in stored else object.__getattribute__(instance, name)
