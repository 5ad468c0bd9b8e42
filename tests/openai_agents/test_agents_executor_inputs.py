"""Every field that an executor of the SDK receives was seen by the policies, and each command of a call by itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from agents import Agent, LocalShellTool, RunConfig, ShellTool
from agents.editor import ApplyPatchOperation
from agents.tool import LocalShellCommandRequest, ShellActionRequest, ShellCallData, ShellCommandRequest, ShellResult
from agents.tool_context import ToolContext
from cells import ANSWER, Seen
from cells_agents import as_response, deny, make_governor, responses_model, transform
from openai.types.responses.response_output_item import LocalShellCall, LocalShellCallAction
from pydantic import BaseModel
from test_agents_other_tools import SAID

from lgov_core.governor import Governor
from lgov_core.policies import ShellPolicy
from lgov_core.policies.confinement import in_box
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Action, Decision, Point
from lgov_openai_agents import LgovRunner
from lgov_openai_agents.tools import governed_tool

#: What says no more of an act than which one it is, and the SDK's own objects.
NOT_JUDGED = frozenset({"ctx_wrapper", "id", "call_id", "status", "type"})

CONTEXT: Any = ToolContext(None, tool_name="t", tool_call_id="c1", tool_arguments="{}")

SHELL = ShellCommandRequest(
    CONTEXT,
    ShellCallData("c1", ShellActionRequest(["marker-1", "marker-2"], 1003, 1004), "completed", {"raw": "marker-5"}),
)
LOCAL = LocalShellCommandRequest(
    CONTEXT,
    LocalShellCall(
        id="l1", call_id="c1", status="completed", type="local_shell_call",
        action=LocalShellCallAction(
            command=["marker-1"], env={"MARKER_2": "marker-3"}, type="exec", timeout_ms=1004, user="marker-5",
            working_directory="marker-6",
        ),
    ),
)  # fmt: skip


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in a request, by the name of its field."""
    if name in NOT_JUDGED:
        return
    if dataclasses.is_dataclass(value) or isinstance(value, BaseModel):
        fields = (
            [one.name for one in dataclasses.fields(value)]
            if dataclasses.is_dataclass(value)
            else value.__class__.model_fields
        )
        for field in fields:
            yield from leaves(getattr(value, field), field)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield f"{name} key", key
            yield from leaves(one, name + " value")
    elif isinstance(value, list | tuple):
        for one in value:
            yield from leaves(one, name + " item")
    elif value is not None:
        yield name, value


@pytest.mark.parametrize(("kind", "request_"), [(ShellTool, SHELL), (LocalShellTool, LOCAL)])
async def test_every_field_that_an_executor_receives_was_judged(kind: Any, request_: Any) -> None:
    received: list[Any] = []

    def execute(request: Any) -> str:
        received.extend(leaves(request))
        return "ran"

    seen = Seen()
    assert None not in vars(request_.data.action).values(), "the SDK has a field that this test does not fill"
    await governed_tool(kind(executor=execute), make_governor(lambda action: None, seen)).executor(request_)
    judged = json.dumps([dict(event.action.arguments) for event in seen.decisions()])
    assert received
    assert [(name, value) for name, value in received if str(value) not in judged] == []


def test_the_fields_of_a_patch_are_those_that_are_judged() -> None:
    named = {one.name for one in dataclasses.fields(ApplyPatchOperation)}
    assert named == {"type", "path", "diff", "move_to", "ctx_wrapper"}


def test_each_command_of_a_call_is_judged_alone() -> None:
    """Joined, the second one would be in the folder that the first one goes to."""
    ran: list[str] = []

    def execute(request: Any) -> str:
        (command,) = request.data.action.commands
        ran.append(command)
        return f"<{command}>"

    commands = ["cat <<EOF", "cat /etc/passwd", "EOF", "ls"]
    action = {"commands": commands, "timeout_ms": None, "max_output_length": None}
    called = {"type": "shell_call", "id": "s", "call_id": "c1", "status": "completed", "action": action}
    seen = Seen()
    governor = Governor([ShellPolicy(cwd="/work")], plugins=[seen])
    with ScriptedModelServer([as_response(called), as_response(SAID)]) as server:
        agent = Agent(name="a", model=responses_model(server), tools=[ShellTool(executor=execute)])
        result = LgovRunner(governor).run_sync(agent, "go", run_config=RunConfig(tracing_disabled=True))
        sent = json.dumps(server.requests[-1].body)
    assert result.final_output == ANSWER
    assert "cat /etc/passwd" not in ran
    assert ran[-1] == "ls"
    assert [event.action.arguments["command"] for event in seen.decisions()] == commands
    assert "<ls>" in sent
    assert "DENIED" in sent
    governor.close()


async def test_the_results_of_several_commands_are_one_for_the_sdk() -> None:
    def judge(action: Action) -> Decision | None:
        if action.point is not Point.PRE_TOOL_CALL:
            return None
        command = action.arguments["command"]
        return deny() if command == "marker-1" else transform(arguments={**action.arguments, "command": "ls"})

    received: list[Any] = []
    tool = governed_tool(
        ShellTool(executor=lambda request: received.append(request.data) or "listed"), make_governor(judge)
    )
    result = await tool.executor(SHELL)
    assert isinstance(result, ShellResult)
    assert [(one.stdout, one.stderr.partition(" ")[0]) for one in result.output] == [("", "DENIED"), ("listed", "")]
    ((data),) = received
    assert (data.action.commands, data.action.timeout_ms, data.raw) == (["ls"], 1003, None)
    assert SHELL.data.action.commands == ["marker-1", "marker-2"], "the SDK's own request stays as it is"


@pytest.mark.skipif(in_box(), reason="in a box the kernel holds what a shell runs, so the policy lets it")
@pytest.mark.parametrize(
    "changed",
    [{"env": {"LD_PRELOAD": "/tmp/x.so"}}, {"env": {"a b": "c"}}, {"user": "root"}, {"working_directory": "/etc"}],
)
async def test_an_environment_a_user_or_a_folder_is_denied_as_in_a_shell(changed: Any) -> None:
    ran: list[Any] = []
    tool = LocalShellTool(lambda request: str(ran.append(request.data.action) or "ran"))
    for denied, fields in ((False, {}), (True, changed)):
        given = {"command": ["cat", "passwd"], "env": {}, "type": "exec", **fields}
        call = LocalShellCall(
            id="l1", call_id="c1", status="completed", type="local_shell_call", action=LocalShellCallAction(**given)
        )
        governor = Governor([ShellPolicy(cwd="/work")])
        answer = await governed_tool(tool, governor).executor(LocalShellCommandRequest(CONTEXT, call))
        assert ("DENIED" in str(answer)) is denied, answer
    assert len(ran) == 1
