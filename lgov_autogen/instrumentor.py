"""Governs every AutoGen agent of this process without touching its code.

`instrument` wraps public methods in every class that defines them, also in classes defined later: ``create`` and
``create_stream`` of model clients, ``call_tool`` and ``call_tool_stream`` of workbenches, ``run_json`` and
``run_json_stream`` of tools, ``execute_code_blocks`` of code executors, and the runs of agents and teams. Not governed
are a tool's function or ``run`` called by itself, a client of an MCP server called by itself, a model client or tool
that is not a subclass of AutoGen's, and code that undoes the patches: this governs cooperating programs and is not a
sandbox.
"""

from __future__ import annotations

from functools import partial

from lgov_autogen.current_governor import INSTRUMENTOR, acting_governor
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.instrumentor import Patches, in_fresh_thread


def instrument(governor: Governor) -> None:
    """Makes every AutoGen agent, tool and model client of this process governed by ``governor``, and proves it.

    Calling it again with the same governor changes nothing. Warns about framework versions outside the tested range.
    Raises `InstrumentationError` if AutoGen is missing, if another governor is instrumented already, or if the
    self-test finds a way around; then nothing stays patched and the process must not run agents.
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

    from lgov_autogen import _internals, code_executor, model_calls, runs, tool_calls, workbench_calls
    from lgov_core.instrumentation.subclasses import wrap_methods

    acting = acting_governor
    # Whatever an agent of this process runs is evaluated when it runs, whether it was offered or not.
    calls = model_calls.ModelCalls(lambda governor, tool: True)
    wraps = {
        ChatCompletionClient: {
            "create": partial(model_calls.wrap_create, calls, acting),
            "create_stream": partial(model_calls.wrap_create_stream, calls, acting),
        },
        Workbench: {
            "call_tool": partial(workbench_calls.wrap_call_tool, acting),
            "call_tool_stream": partial(workbench_calls.wrap_call_tool_stream, acting),
        },
        BaseTool: {
            "run_json": partial(tool_calls.wrap_run_json, acting),
            "run_json_stream": partial(tool_calls.wrap_run_json_stream, acting),
        },
        CodeExecutor: {"execute_code_blocks": partial(code_executor.wrap_execute_code_blocks, acting)},
        BaseChatAgent: {
            "on_messages": partial(runs.wrap_on_messages, acting),
            "on_messages_stream": partial(runs.wrap_on_messages_stream, acting),
        },
        BaseGroupChat: {"run_stream": partial(runs.wrap_team_stream, acting)},
    }
    for base, methods in wraps.items():
        wrap_methods(patches, base, methods)
    patches.replace(FunctionTool, "run", _internals.wrap_function_run(FunctionTool.run))
