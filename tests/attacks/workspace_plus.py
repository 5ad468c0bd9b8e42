"""The user tasks of inspect_evals' AgentDojo suite ``workspace_plus``: their ground truth, with what its tools return.

The calls run one after the other in the package's environment, which is in memory. Its bash tool needs a container: its calls
are judged like any other, and their results are left out. Of the 42 tasks 40 are those of AgentDojo's ``workspace``.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

#: The packages that the tasks and their environment come with.
PACKAGES: Final = ("inspect_evals", "inspect_ai", "email_validator")
INSTALL: Final = "pip install --no-deps inspect-evals==0.28.0; pip install inspect-ai==0.3.285 email-validator"
#: The tool that needs one.
IN_A_CONTAINER: Final = "run_bash_command"


class Call(NamedTuple):
    """A call of the ground truth of a task; ``result`` is None for one that needs a container."""

    task: str
    prompt: str
    tool: str
    arguments: Mapping[str, Any]
    result: str | None


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in PACKAGES)


@cache
def suite_of_package() -> Any:
    module = importlib.import_module("inspect_evals.agentdojo.task_suites.workspace_plus.task_suite")
    return module.WORKSPACE_PLUS_TASK_SUITE


@cache
def ground_truth() -> tuple[Call, ...]:
    """The calls of all user tasks, each task in an environment of its own. Results are YAML, as the tools write them."""
    return asyncio.run(_replayed())


async def _replayed() -> tuple[Call, ...]:
    model: Any = importlib.import_module("inspect_ai.model")
    util: Any = importlib.import_module("inspect_ai.util")
    suite, calls = suite_of_package(), list[Call]()
    for number, task in suite.user_tasks.items():
        environment = suite.load_and_inject_default_environment(suite.get_injection_vector_defaults())
        for name in type(environment).model_fields:
            util.store().set(name, getattr(environment, name))
        for call in task.ground_truth(environment.model_copy(deep=True)):
            result = None
            if call.function != IN_A_CONTAINER:
                message = model.ChatMessageAssistant(content="", tool_calls=[call])
                result = (await model.execute_tools([message], suite.tools, max_output=0)).messages[0].text
            calls.append(Call(str(number), task.PROMPT, call.function, call.arguments, result))
    return tuple(calls)


@cache
def offered() -> dict[str, Any]:
    """The schemas of the suite's tools, and of the bash tool, which two of its tasks get beside them."""
    define: Any = importlib.import_module("inspect_ai.tool").ToolDef
    bash: Any = importlib.import_module("inspect_evals.agentdojo.tools.terminal").run_bash_command
    tools = map(define, [*suite_of_package().tools, bash()])
    return {tool.name: tool.parameters.model_dump(exclude_none=True) for tool in tools}
