"""CPU that an adapter adds to one turn of an agent: one model call and one tool call.

``make bench``, or ``python -m tests.bench.adapters [NAME …]``. A real agent of each framework talks over HTTP to a scripted
model in a process of its own. The variants take turns within one process, armed and disarmed between the runs, so that a
slow moment of the machine falls on all alike; what counts is the median of the differences to the bare run beside it:

- *bare*: the framework alone;
- *governed*: armed, one rule that allows, spans shown to nobody;
- *recorded*: the same with the audit record and a trace store on disk;
- *OpenInference*: the framework's usual observability instrumentor, with a span processor that drops everything.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

FRAMEWORKS = ("langchain", "autogen", "openai-agents", "openai")
VARIANTS = ("bare", "governed", "recorded", "OpenInference")
#: Turns of one run, and how often each variant is run.
TURNS, RUNS = 5, 80
#: What capture may cost, in microseconds of CPU a turn.
GOAL_US = 150

_INSTRUMENTORS = {
    "langchain": ("openinference.instrumentation.langchain", "LangChainInstrumentor"),
    "autogen": ("openinference.instrumentation.autogen_agentchat", "AutogenAgentChatInstrumentor"),
    "openai-agents": ("openinference.instrumentation.openai_agents", "OpenAIAgentsInstrumentor"),
    "openai": ("openinference.instrumentation.openai", "OpenAIInstrumentor"),
}
_ADAPTERS = {
    "langchain": "lgov_langchain",
    "autogen": "lgov_autogen",
    "openai-agents": "lgov_openai_agents",
    "openai": "lgov_openai",
}

# ---------------------------------------------------------------------- the agents: each answers after so many turns

Agent = Callable[[int], Awaitable[None]]


def langchain_agent() -> Agent:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def add(a: int, b: int) -> str:
        """Adds."""
        return str(a + b)

    agent: Any = create_agent(ChatOpenAI(model="scripted", max_retries=0), [add], name="bench")

    async def run(turns: int) -> None:
        asked = {"messages": [("user", f"turns={turns}")]}
        answer = await agent.ainvoke(asked, config={"recursion_limit": 100})
        assert answer["messages"][-1].text == "done"

    return run


def autogen_agent() -> Agent:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelFamily, ModelInfo
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    def add(a: int, b: int) -> str:
        """Adds."""
        return str(a + b)

    info = ModelInfo(
        vision=False, function_calling=True, json_output=False, family=ModelFamily.UNKNOWN, structured_output=False
    )
    client = OpenAIChatCompletionClient(model="scripted", model_info=info)

    async def run(turns: int) -> None:
        agent = AssistantAgent("bench", client, tools=[add], max_tool_iterations=100)
        answer = await agent.run(task=f"turns={turns}")
        assert "done" in str(answer.messages[-1])

    return run


def openai_agents_agent() -> Agent:
    from agents import Agent as SDKAgent
    from agents import OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def add(a: int, b: int) -> str:
        """Adds."""
        return str(a + b)

    model = OpenAIChatCompletionsModel("scripted", AsyncOpenAI(max_retries=0))
    agent = SDKAgent(name="bench", model=model, tools=[add])

    async def run(turns: int) -> None:
        answer = await Runner.run(agent, f"turns={turns}", max_turns=100)
        assert answer.final_output == "done"

    return run


def openai_agent() -> Agent:
    from openai import AsyncOpenAI

    client: Any = AsyncOpenAI(max_retries=0)
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": parameters}}]

    async def run(turns: int) -> None:
        messages: list[Any] = [{"role": "user", "content": f"turns={turns}"}]
        while True:
            reply = await client.chat.completions.create(model="scripted", messages=messages, tools=tools)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                given = json.loads(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])})
            if not message.tool_calls:
                assert message.content == "done"
                return

    return run


_AGENTS: Mapping[str, Callable[[], Agent]] = {
    "langchain": langchain_agent,
    "autogen": autogen_agent,
    "openai-agents": openai_agents_agent,
    "openai": openai_agent,
}


# ---------------------------------------------------------------------- one framework, in a process of its own


class Variant:
    """One way to run the agent: `begin` arms or instruments, `end` undoes it, `close` is called once at the very end."""

    def begin(self) -> None:
        """Nothing for the bare framework."""

    def end(self) -> None:
        """Nothing for the bare framework."""

    def close(self) -> None:
        """Nothing for the bare framework."""


class Governed(Variant):
    """Armed, by a governor without a record."""

    def __init__(self, framework: str, folder: Path) -> None:
        from lgov_core.governor import Governor
        from lgov_core.policies import load_policy_file

        self.adapter = importlib.import_module(_ADAPTERS[framework])
        self.policy = folder / "policy.yaml"
        self.policy.write_text("version: 1\ndefault: allow\nrules:\n  - {name: add, tools: [add], use: allow}\n")
        self.governor: Any = Governor(load_policy_file(self.policy))

    def begin(self) -> None:
        self.adapter.arm(self.governor)

    def end(self) -> None:
        self.adapter.disarm()


class Recorded(Governed):
    """Armed, with the audit record and a store."""

    def __init__(self, framework: str, folder: Path) -> None:
        super().__init__(framework, folder)
        from lgov_core.governed_process import ProcessOptions, open_process

        self.process = open_process(ProcessOptions(self.policy, folder / "audit.db", str(folder / "store.db")))
        self.governor = self.process.governor

    def close(self) -> None:
        for problem in self.process.close():
            print(problem, file=sys.stderr)


class OpenInference(Variant):
    """Instrumented; the spans are dropped."""

    def __init__(self, framework: str, folder: Path) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

        class Drop(SpanExporter):
            def export(self, spans: Any) -> SpanExportResult:
                return SpanExportResult.SUCCESS

        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(Drop()))
        module, name = _INSTRUMENTORS[framework]
        self.instrumentor: Any = getattr(importlib.import_module(module), name)()
        self.framework = framework

    def begin(self) -> None:
        self.instrumentor.instrument(tracer_provider=self.provider)

    def end(self) -> None:
        self.instrumentor.uninstrument()
        if self.framework == "openai-agents":  # its instrumentor does not take its processor back
            from agents import set_trace_processors

            set_trace_processors([])


_VARIANTS: Mapping[str, Callable[[str, Path], Variant]] = {
    "bare": lambda framework, folder: Variant(),
    "governed": Governed,
    "recorded": Recorded,
    "OpenInference": OpenInference,
}


def measure(framework: str) -> dict[str, float]:
    """For each variant the CPU microseconds of a turn: the whole for *bare*, what is added for the others."""
    if framework == "openai-agents":
        from agents import set_trace_processors

        set_trace_processors([])  # nothing is sent to the vendor's collector
    with tempfile.TemporaryDirectory() as name:
        variants: dict[str, tuple[Variant, Agent]] = {}
        for variant in VARIANTS:
            if available(framework, variant):
                (folder := Path(name) / variant).mkdir()
                one = _VARIANTS[variant](framework, folder)
                one.begin()
                variants[variant] = one, _AGENTS[framework]()
                one.end()
        times = asyncio.run(_in_turns(variants))
        for one, _ in variants.values():
            one.close()
    bare = times.pop("bare")
    added = {
        variant: statistics.median(mine - beside for mine, beside in zip(taken, bare, strict=True))
        for variant, taken in times.items()
    }
    return {name: value / TURNS * 1e6 for name, value in {"bare": statistics.median(bare), **added}.items()}


async def _in_turns(variants: Mapping[str, tuple[Variant, Agent]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(-3, RUNS):  # the first ones only warm up
        for name, (variant, run) in variants.items():
            variant.begin()
            gc.collect()
            began = time.process_time()
            await run(TURNS)
            taken = time.process_time() - began
            variant.end()
            if number >= 0:
                times[name].append(taken)
    return times


# ---------------------------------------------------------------------- all of them


def script(body: Mapping[str, Any]) -> Any:
    """A model that calls a tool as often as the user's text says."""
    from lgov_core.testing import ScriptedCall, ScriptedReply

    messages = body["messages"]
    asked = next(message["content"] for message in messages if message["role"] == "user")
    wanted = int(str(asked).partition("turns=")[2].split('"')[0].split("'")[0])
    done = sum(message["role"] == "tool" for message in messages)
    if done >= wanted:
        return "done"
    return ScriptedReply(tool_calls=[ScriptedCall("add", {"a": done, "b": 1}, f"call_{done}")])


def serve() -> None:
    """The scripted model, until standard input ends."""
    from lgov_core.testing import ScriptedModelServer

    with ScriptedModelServer(script) as server:
        print(server.base_url, flush=True)
        sys.stdin.read()


def available(framework: str, variant: str) -> bool:
    """Whether what the variant needs is installed."""
    module = _INSTRUMENTORS[framework][0] if variant == "OpenInference" else _ADAPTERS[framework]
    try:
        return variant == "bare" or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=FRAMEWORKS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    if arguments.one:
        return print(json.dumps(measure(arguments.one)))
    here = [sys.executable, "-m", "tests.bench.adapters"]
    server = subprocess.Popen([*here, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    env = {**os.environ, "OPENAI_BASE_URL": server.stdout.readline().strip(), "OPENAI_API_KEY": "none"}
    results: dict[str, dict[str, float]] = {}
    try:
        if not arguments.json:
            print(f"{'CPU of one turn: a model call and a tool call':46} {'µs':>8}")
        for framework in arguments.names:
            done = subprocess.run([*here, "--one", framework], env=env, capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"{framework}: {done.stderr[-2000:]}")
            results[framework] = json.loads(done.stdout.splitlines()[-1])
            if not arguments.json:
                write(framework, results[framework])
    finally:
        server.communicate()
    if arguments.json:
        print(json.dumps(results, indent=2))
    return None


def write(framework: str, measured: Mapping[str, float]) -> None:
    """The lines of one framework."""
    peer = measured.get("OpenInference")
    for variant, value in measured.items():
        verdict = ""
        if variant == "governed":
            verdict = f"goal {GOAL_US}: {'met' if value <= GOAL_US else 'NOT met'}"
            verdict += f"; OpenInference adds {peer / value:.1f} times as much" if peer is not None else ""
        what = "bare, the whole" if variant == "bare" else f"{variant}, added"
        print(f"{framework:16}{what:30} {value:8.0f}  {verdict}", flush=True)


if __name__ == "__main__":
    main()
