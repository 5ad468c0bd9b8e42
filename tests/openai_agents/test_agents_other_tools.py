"""Shell, patch, custom, computer and hosted tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    AsyncComputer,
    ComputerTool,
    CustomTool,
    HostedMCPTool,
    LocalShellTool,
    ModelSettings,
    RunConfig,
    ShellTool,
    WebSearchTool,
    function_tool,
)
from cells import ANSWER, Seen, asks
from cells_agents import (
    as_response,
    chat_model,
    deny,
    denying,
    instrumented,
    make_governor,
    responses_model,
    run,
    transform,
)

from lgov_core.testing import ScriptedModelServer
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from lgov_openai_agents import LgovRunner

SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": ANSWER, "annotations": []}],
}


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture(params=["instrumented", "runner"])
def way(request: pytest.FixtureRequest) -> Any:
    """Runs an agent under a governor in one of the two ways."""

    def act(governor: Any, agent: Agent[Any], text: str = "go", **options: Any) -> Any:
        if request.param == "runner":
            return LgovRunner(governor).run_sync(agent, text, run_config=RunConfig(tracing_disabled=True), **options)
        with instrumented(governor):
            return run("sync", agent, text, **options)

    return act


def last_prompt(server: ScriptedModelServer) -> str:
    return json.dumps(server.requests[-1].body)


class _Editor:
    def __init__(self) -> None:
        self.done: list[str] = []

    def create_file(self, operation: Any) -> str:
        self.done.append(f"create {operation.path}")
        return "created"

    def update_file(self, operation: Any) -> str:
        self.done.append(f"update {operation.path}")
        return "updated"

    def delete_file(self, operation: Any) -> str:
        self.done.append(f"delete {operation.path}")
        return "deleted"


class _Computer(AsyncComputer):
    def __init__(self) -> None:
        self.done: list[str] = []

    @property
    def environment(self) -> Any:
        return "linux"

    @property
    def dimensions(self) -> tuple[int, int]:
        return (10, 10)

    async def screenshot(self) -> str:
        self.done.append("screenshot")
        return "aW1hZ2U="

    async def click(self, x: int, y: int, button: Any) -> None:
        self.done.append("click")

    async def double_click(self, x: int, y: int) -> None: ...
    async def scroll(self, x: int, y: int, scroll_x: int, scroll_y: int) -> None: ...
    async def type(self, text: str) -> None: ...
    async def wait(self) -> None: ...
    async def move(self, x: int, y: int) -> None: ...
    async def keypress(self, keys: list[str]) -> None: ...
    async def drag(self, path: list[tuple[int, int]]) -> None: ...


def shell_call(command: str) -> dict[str, Any]:
    action = {"commands": [command], "timeout_ms": None, "max_output_length": None}
    return {"type": "shell_call", "id": "sh_1", "call_id": "c1", "status": "completed", "action": action}


def local_shell_call(command: str) -> dict[str, Any]:
    action = {"type": "exec", "command": command.split(), "env": {}}
    return {"type": "local_shell_call", "id": "ls_1", "call_id": "c1", "status": "completed", "action": action}


def custom_call(text: str) -> dict[str, Any]:
    return {"type": "custom_tool_call", "id": "ct_1", "call_id": "c1", "name": "sql", "input": text}


def patch_call(path: str) -> dict[str, Any]:
    operation = {"type": "delete_file", "path": path}
    return {"type": "apply_patch_call", "id": "ap_1", "call_id": "c1", "status": "completed", "operation": operation}


def computer_call() -> dict[str, Any]:
    action = {"type": "click", "x": 1, "y": 2, "button": "left"}
    return {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "c1",
        "status": "completed",
        "action": action,
        "pending_safety_checks": [],
    }


def kinds(done: list[str]) -> dict[str, tuple[Any, dict[str, Any], str]]:
    """Of each kind of tool: the tool, a call of it, and the name under which it is judged."""
    editor = _Editor()
    editor.done = done

    def shell(request: Any) -> str:
        done.append(" ".join(request.data.action.commands))
        return "ran"

    def local_shell(request: Any) -> str:
        done.append(" ".join(request.data.action.command))
        return "ran"

    async def custom(context: Any, text: str) -> str:
        done.append(text)
        return "ran"

    return {
        "shell": (ShellTool(executor=shell), shell_call("rm notes"), "shell"),
        "local shell": (LocalShellTool(local_shell), local_shell_call("rm notes"), "local_shell"),
        "custom": (CustomTool("sql", "SQL.", custom), custom_call("DROP TABLE notes"), "sql"),
        "patch": (ApplyPatchTool(editor), patch_call("notes"), "apply_patch"),
    }


@pytest.mark.parametrize("kind", ["shell", "local shell", "custom", "patch"])
@pytest.mark.parametrize("denied", [True, False])
def test_local_tools_of_other_kinds(kind: str, denied: bool, way: Any, seen: Seen) -> None:
    done: list[str] = []
    tool, called, name = kinds(done)[kind]
    with ScriptedModelServer([as_response(called), as_response(SAID)]) as server:
        governor = make_governor(denying(name) if denied else lambda action: None, seen)
        result = way(governor, Agent(name="a", model=responses_model(server), tools=[tool]))
        assert result.final_output == ANSWER
        assert ("DENIED by policy judging/no" in last_prompt(server)) is denied
    assert (done == []) is denied
    (outcome,) = seen.outcomes
    assert (outcome.status, outcome.action.name) == ("denied" if denied else "ok", name)
    assert outcome.action.call_id == "c1"
    assert outcome.action.agent == "a"
    (span,) = [one for one in seen.spans if one.attributes[semconv.OPERATION] == semconv.EXECUTE_TOOL]
    assert span.attributes[semconv.TOOL_STATUS] == outcome.status


def test_a_shell_command_is_rewritten_and_its_output_too(way: Any) -> None:
    def judge(action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL:
            return transform(arguments={"command": "ls"})
        return transform(text="***") if action.point is Point.POST_TOOL_CALL and action.text == "ran" else None

    done: list[str] = []
    tool, called, _ = kinds(done)["shell"]
    with ScriptedModelServer([as_response(called), as_response(SAID)]) as server:
        way(make_governor(judge), Agent(name="a", model=responses_model(server), tools=[tool]))
        assert "***" in last_prompt(server)
    assert done == ["ls"]


@pytest.mark.parametrize("denied", [True, False])
def test_acts_on_a_computer_are_stopped_at_the_model(denied: bool, way: Any, seen: Seen) -> None:
    """The SDK asks nobody before it clicks: a denied act is taken out of the reply and the model asked again."""
    computer = _Computer()
    agent_tools: list[Any] = [ComputerTool(computer)]
    with ScriptedModelServer([as_response(computer_call()), as_response(SAID)]) as server:
        governor = make_governor(denying("computer") if denied else lambda action: None, seen)
        result = way(governor, Agent(name="a", model=responses_model(server), tools=agent_tools))
        assert result.final_output == ANSWER
        assert ("DENIED by policy judging/no" in last_prompt(server)) is denied
    assert ("click" in computer.done) is not denied


@pytest.mark.parametrize("denied", [True, False])
def test_hosted_tools_are_kept_out_of_the_request(denied: bool, way: Any, seen: Seen) -> None:
    with ScriptedModelServer([as_response(SAID)]) as server:
        governor = make_governor(denying("web_search") if denied else lambda action: None, seen)
        way(governor, Agent(name="a", model=responses_model(server), tools=[WebSearchTool()], instructions="Help."))
        sent = server.requests[0].body
    assert bool(sent["tools"]) is not denied
    assert ("web_search: DENIED" in sent["instructions"]) is denied
    assert [outcome.status for outcome in seen.outcomes] == (["denied"] if denied else [])


@pytest.mark.parametrize("denied", [True, False])
def test_a_hosted_mcp_tool_that_asks_for_approval_is_judged(denied: bool, way: Any, seen: Seen) -> None:
    """Before anybody is asked to approve it."""
    asked: list[str] = []

    def approve(request: Any) -> Any:
        asked.append(request.data.name)
        return {"approve": True}

    hosted = HostedMCPTool({"type": "mcp", "server_label": "files", "server_url": "http://x"}, approve)
    wanted = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "name": "erase",
        "arguments": "{}",
        "server_label": "files",
    }
    with ScriptedModelServer([as_response(wanted), as_response(SAID)]) as server:
        governor = make_governor(denying("erase") if denied else lambda action: None, seen)
        result = way(governor, Agent(name="a", model=responses_model(server), tools=[hosted]))
        assert ("DENIED by policy judging/no" in last_prompt(server)) is denied
    assert result.final_output == ANSWER
    assert asked == ([] if denied else ["erase"])
    assert next(one.action.kind for one in seen.outcomes) == "mcp"


@pytest.mark.parametrize("choice", ["web_search", "required"])
def test_a_tool_choice_of_a_denied_hosted_tool_is_lifted(way: Any, choice: str) -> None:
    """A server refuses a request with a choice of what it does not offer."""
    with ScriptedModelServer([as_response(SAID)]) as server:
        settings = ModelSettings(tool_choice=choice)
        agent = Agent(name="a", model=responses_model(server), tools=[WebSearchTool()], model_settings=settings)
        assert way(make_governor(denying("web_search")), agent).final_output == ANSWER
        assert not server.requests[0].body.get("tools")
        assert "tool_choice" not in server.requests[0].body


@pytest.mark.gap("openai-agents", "tools at the provider")
def test_a_hosted_tool_acts_before_its_act_is_evaluated(way: Any, seen: Seen) -> None:
    """A known gap: the tool is judged before the request, without arguments; its act comes with the reply."""
    action = {"type": "search", "query": "forbidden"}
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
    with ScriptedModelServer([as_response(searched, SAID)]) as server:
        governor = make_governor(
            lambda action: (
                deny("no") if action.point is Point.PRE_TOOL_CALL and "forbidden" in str(action.arguments) else None
            ),
            seen,
        )
        result = way(governor, Agent(name="a", model=responses_model(server), tools=[WebSearchTool()]))
    assert result.final_output == ANSWER
    assert [(one.action.name, dict(one.action.arguments)) for one in seen.decisions()] == [("web_search", {})]
    assert ["forbidden" in str(one.action.arguments) for one in seen.decisions(Point.POST_MODEL_CALL)] == [True]
    assert seen.decisions(Point.POST_TOOL_CALL) == []
    assert seen.outcomes == []


@pytest.mark.gap("openai-agents", "a result that is the answer")
def test_a_result_that_is_the_answer_is_judged_as_a_result_only(way: Any, seen: Seen) -> None:
    """A known gap: with ``tool_use_behavior`` the model says nothing more, so there is no ``output`` to judge."""

    @function_tool
    def read() -> str:
        """Reads."""
        return "the answer"

    with ScriptedModelServer([asks(("c1", "read", {}))]) as server:
        agent = Agent(name="a", model=chat_model(server), tools=[read], tool_use_behavior="stop_on_first_tool")
        assert way(make_governor(denying("a", point=Point.OUTPUT), seen), agent).final_output == "the answer"
    assert seen.decisions(Point.OUTPUT) == []
    assert len(seen.decisions(Point.POST_TOOL_CALL)) == 1
