"""Governs every AutoGen agent of this process without touching its code.

`instrument` wraps public methods in every class that defines them, also in classes defined later: ``create`` and
``create_stream`` of model clients, ``call_tool`` and ``call_tool_stream`` of workbenches, ``run_json`` and
``run_json_stream`` of tools, ``execute_code_blocks`` of code executors, and the runs of agents and teams. What stays
outside: a tool's function or ``run`` called by itself, a client of an MCP server called by itself, a model client or
tool that is no subclass of AutoGen's, and code that undoes the patches. This is governance of cooperating programs,
not a sandbox.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from lgov_core.instrumentation.instrumentor import Instrumentor, Patches, in_fresh_thread

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor

#: The versions that the tests run against.
TESTED = {"autogen-agentchat": ">=0.7.5,<0.8", "autogen-core": ">=0.7.5,<0.8"}

_INSTRUMENTOR = Instrumentor("AutoGen", TESTED)


def acting_governor() -> Governor | None:
    """The governor that the patches ask: that of a self-test that is running, else the instrumented one, else None."""
    return _INSTRUMENTOR.governor


def instrument(governor: Governor) -> None:
    """Makes every AutoGen agent, tool and model client of this process governed by ``governor``, and proves it.

    Instrumentation again with the same governor changes nothing. Warns about framework versions outside the tested range.
    Raises `InstrumentationError` if AutoGen is missing, if another governor is instrumented already, or if the
    self-test finds a way
    around; then nothing stays patched and the process must not run agents.
    """
    _INSTRUMENTOR.instrument(governor, _patch, _self_test)


def uninstrument() -> None:
    """Undoes `instrument`."""
    _INSTRUMENTOR.uninstrument()


def _self_test() -> None:
    from lgov_autogen.self_test import check_all_paths

    in_fresh_thread(lambda: check_all_paths(_INSTRUMENTOR))


def _patch(patches: Patches) -> None:
    from autogen_agentchat.agents import BaseChatAgent
    from autogen_agentchat.teams import BaseGroupChat
    from autogen_core.code_executor import CodeExecutor
    from autogen_core.models import ChatCompletionClient
    from autogen_core.tools import BaseTool, FunctionTool, Workbench

    from lgov_autogen import code, model_calls, runs, threads, tool_calls, workbench_calls
    from lgov_autogen.subclasses import wrap_methods

    acting = acting_governor
    # Whatever an agent of this process runs is judged when it is run, whether it was offered or not.
    calls = model_calls.ModelCalls(lambda governor, tool: True)
    wrap_methods(
        patches,
        ChatCompletionClient,
        {"create": functools.partial(_wrap_create, calls), "create_stream": functools.partial(_wrap_stream, calls)},
    )
    wrap_methods(
        patches,
        Workbench,
        {
            "call_tool": functools.partial(workbench_calls.wrap_call_tool, acting),
            "call_tool_stream": functools.partial(workbench_calls.wrap_call_tool_stream, acting),
        },
    )
    wrap_methods(
        patches,
        BaseTool,
        {
            "run_json": functools.partial(tool_calls.wrap_run_json, acting),
            "run_json_stream": functools.partial(tool_calls.wrap_run_json_stream, acting),
        },
    )
    patches.replace(FunctionTool, "run", threads.wrap_function_run(FunctionTool.run))
    wrap_methods(
        patches, CodeExecutor, {"execute_code_blocks": functools.partial(code.wrap_execute_code_blocks, acting)}
    )
    wrap_methods(
        patches,
        BaseChatAgent,
        {
            "on_messages": functools.partial(runs.wrap_on_messages, acting),
            "on_messages_stream": functools.partial(runs.wrap_on_messages_stream, acting),
        },
    )
    wrap_methods(patches, BaseGroupChat, {"run_stream": functools.partial(runs.wrap_team_stream, acting)})


def _wrap_create(calls: Any, create: Callable[..., Any]) -> Callable[..., Any]:
    """``ChatCompletionClient.create`` with a judgement of everything around it."""
    from lgov_autogen.answers import Answer
    from lgov_core.instrumentation.evaluated_call import model_call_covered

    @functools.wraps(create)
    async def governed_create(self: Any, messages: Sequence[Any], **options: Any) -> Any:
        governor = acting_governor()
        if governor is None or model_call_covered(governor):
            return await create(self, messages, **options)

        async def send(sent: Sequence[Any], how: Mapping[str, Any]) -> Answer:
            return Answer(await create(self, sent, **how))

        return (await calls.answer(governor, self, messages, options, send)).result

    return governed_create


def _wrap_stream(calls: Any, create_stream: Callable[..., Any]) -> Callable[..., Any]:
    """``ChatCompletionClient.create_stream`` with a judgement of everything around it."""
    from lgov_autogen.answers import Answer, collected, streamed
    from lgov_core.instrumentation.evaluated_call import model_call_covered

    @functools.wraps(create_stream)
    async def governed_create_stream(self: Any, messages: Sequence[Any], **options: Any) -> AsyncGenerator[Any]:
        governor = acting_governor()
        if governor is None or model_call_covered(governor):
            async for item in create_stream(self, messages, **options):
                yield item
            return

        if governor.observe_only:
            stream = functools.partial(create_stream, self)
            async with aclosing(calls.watched_stream(governor, self, messages, options, stream)) as items:
                async for item in items:
                    yield item
            return

        async def send(sent: Sequence[Any], how: Mapping[str, Any]) -> Answer:
            return await collected(create_stream(self, sent, **how))

        async for item in streamed(calls.answer(governor, self, messages, options, send)):
            yield item

    return governed_create_stream
