"""Governs every AutoGen agent of this process without touching its code.

`instrument` wraps public methods in every class that defines them, also in classes defined later: ``create`` and
``create_stream`` of model clients, ``call_tool`` and ``call_tool_stream`` of workbenches, ``run_json`` and
``run_json_stream`` of tools, ``execute_code_blocks`` of code executors, and the runs of agents and teams. What is not
governed is declared here: this governs cooperating programs and is not a sandbox.

`lgov_autogen.patching` does it; this module imports no framework.
"""

from __future__ import annotations

from lgov_core.instrumentation.framework import SHAPES, Conflict, Gap, Instrumentor, whole_surface

INSTRUMENTOR = Instrumentor(
    name="autogen",
    title="AutoGen",
    modules=("autogen_agentchat", "autogen_core"),
    tested={"autogen-agentchat": ">=0.7.5,<0.8", "autogen-core": ">=0.7.5,<0.8"},
    patching="lgov_autogen.patching",
    self_test_in_thread=True,
    # ``input`` is evaluated with the model call that first shows it, ``output`` with the one that writes it. A streamed reply
    # is withheld until it has been evaluated. AutoGen has nothing synchronous.
    surface=whole_surface(sync=False),
    unsupported={
        ("sync", shape): "AutoGen 0.7 has no synchronous API: its agents, tools and model clients are only asynchronous"
        for shape in SHAPES
    },
    gaps=(
        Gap(
            "tool.run",
            "a tool's run(), or the function behind it, called by the program itself is not governed; run_json is",
            calls=("_func",),
        ),
        Gap(
            "MCP session",
            "a call of a tool on an mcp ClientSession that the program opened itself is not governed; a workbench's is",
            calls=("ClientSession",),
        ),
        Gap(
            "model client of another kind",
            "a model client that is not a subclass of ChatCompletionClient is not governed, nor are the hand-offs it proposes",
            calls=(),
        ),
        Gap(
            "agents that bring their own client",
            "OpenAIAgent and OpenAIAssistantAgent call their model without ChatCompletionClient; their tools are governed",
            calls=("OpenAIAgent", "OpenAIAssistantAgent"),
        ),
        Gap(
            "runtime of its own",
            "the members of a team on a runtime that was started elsewhere are governed, in the rollout in which it was"
            " started",
            calls=("SingleThreadedAgentRuntime",),
        ),
        Gap(
            "other processes",
            "what a tool starts as a process of its own is not governed, nor are the agents of a distributed runtime"
            " elsewhere",
            calls=("GrpcWorkerAgentRuntime",),
        ),
    ),
    conflicts=(Conflict("mcp", "2", "autogen-ext", "AutoGen's MCP tools (autogen-ext[mcp]) cannot be imported"),),
)

instrument = INSTRUMENTOR.instrument
"""Puts every AutoGen agent, tool and model client in this process under its governor, and proves it by a self-test.

Raises `InstrumentationError` where that cannot be done: then the process must not run agents.
"""

uninstrument = INSTRUMENTOR.uninstrument
"""Undoes `instrument`."""

lgov_framework = INSTRUMENTOR.lgov_framework
