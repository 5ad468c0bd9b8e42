"""Governs every AutoGen agent of this process without touching its code.

`instrument` wraps public methods in every class that defines them, also in classes defined later: ``create`` and
``create_stream`` of model clients, ``call_tool`` and ``call_tool_stream`` of workbenches, ``run_json`` and
``run_json_stream`` of tools, ``execute_code_blocks`` of code executors, and the runs of agents and teams. What is not
governed is declared in `plugin`: this governs cooperating programs and is not a sandbox.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lgov_autogen.current_governor import INSTRUMENTOR, acting_governor
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.framework import Patches, governed_method, governed_stream, in_fresh_thread, wrap_methods


def instrument(governor: Governor) -> None:
    """Makes every AutoGen agent, tool and model client of this process governed by ``governor``, and proves it.

    Raises `InstrumentationError` if AutoGen is missing, and as `Instrumentor.instrument` does.
    """
    INSTRUMENTOR.instrument(governor, _patch, _self_test)


def uninstrument() -> None:
    """Undoes `instrument`."""
    INSTRUMENTOR.uninstrument()


def _self_test() -> None:
    from lgov_autogen.self_test import check_all_paths

    in_fresh_thread(lambda: check_all_paths(INSTRUMENTOR))


def _patch(patches: Patches) -> None:
    from autogen_agentchat.agents import BaseChatAgent
    from autogen_agentchat.teams import BaseGroupChat
    from autogen_core.code_executor import CodeExecutor
    from autogen_core.models import ChatCompletionClient
    from autogen_core.tools import BaseTool, FunctionTool, Workbench

    from lgov_autogen import _internals, code_executor, model_client, runs, workbench
    from lgov_autogen import tools as tool_calls

    # Whatever an agent of this process runs is evaluated when it runs, whether it was offered or not.
    calls = model_client.ModelCalls(lambda governor, tool: True)

    def create(client: Any, own: Any, messages: Any, **options: Any) -> Any:
        return calls.create(acting_governor(), client, own, messages, options)

    def create_stream(client: Any, own: Any, messages: Any, **options: Any) -> Any:
        return calls.create_stream(acting_governor(), client, own, messages, options)

    methods: dict[type, dict[str, Callable[..., Any]]] = {
        ChatCompletionClient: {"create": create},
        Workbench: {"call_tool": workbench.call_tool},
        BaseTool: {"run_json": tool_calls.run_json},
        CodeExecutor: {"execute_code_blocks": code_executor.execute_code_blocks},
        BaseChatAgent: {"on_messages": runs.on_messages},
    }
    streams: dict[type, dict[str, Callable[..., Any]]] = {
        ChatCompletionClient: {"create_stream": create_stream},
        Workbench: {"call_tool_stream": workbench.call_tool_stream},
        BaseTool: {"run_json_stream": tool_calls.run_json_stream},
        BaseChatAgent: {"on_messages_stream": runs.on_messages_stream},
        BaseGroupChat: {"run_stream": runs.run_team_stream},
    }
    for wrap, by_class in ((governed_method, methods), (governed_stream, streams)):
        for base, governed in by_class.items():
            wrap_methods(patches, base, {name: wrap(govern) for name, govern in governed.items()})
    patches.replace(FunctionTool, "run", _internals.wrap_function_run(FunctionTool.run))
