"""CPU that an adapter adds to one model call and to one tool call of an agent, and to the turn that both make.

``make bench``, or ``python -m tests.bench.adapters [NAME …]``. A real agent of each framework talks over HTTP to a scripted
model in a process of its own. The variants take turns within one process, instrumented, warmed up and uninstrumented
again, each round
in another order, so that a slow moment of the machine falls on all alike; what counts is the median of the differences to
the bare runs beside them, given with the interval that holds the true median in 95 of 100 cases. Beside it stands the same
for the moments in which nothing else ran: how far apart the quickest tenth of both lies.

The bare framework's own CPU swings by more than what is measured here, mostly on the network's side. So each framework is
measured once more, *paired*: in a process pinned to one CPU, the scripted model's answers come from within it in place of
the network, and one variant takes turns with bare, some tenths of a second each, warmed up first. No other variant is in that
process, as none would be in a program: what one loads and patches slows down the others. What others do on a machine makes a
run slower and never quicker, and hardly ever leaves one alone for as long as a whole run takes. So each run is timed in
parts, from one time that it comes to its model or to a tool to the next; what it takes undisturbed is the sum of what the
quickest twentieth of each part takes, and a process's figure is by how much a variant's sum is behind that of the bare
one. Where a process's code and objects come to lie in memory moves that figure too, and so do minutes in which others use the
same caches all the time, and no number of runs tells; so it is asked of several processes, and what is printed is their
median, with the same kind of interval. It holds all that the others hold, except what the network's system calls push out of
the caches; on a machine that others use it is the one to compare.

These runs come in two shapes: with one tool call in each turn, and with three at once. What the second costs more, shared
among the tool calls it has more, is *a tool call*; what is left of a run without its tool calls, shared among its model calls
(one more than turns: the last asks for no tool), is *a model call*, with its share of what belongs to the run, such as the
span of the agent. The variants:

- *bare*: the framework alone, also without lgov's callback handler, which stays with LangChain once it was instrumented;
- *empty handler*: the least that a framework with callbacks lets anybody add: LangChain with a handler, the Agents SDK with
  a tracing processor, whose methods for agents, model calls and tool calls do nothing at all;
- *capture*: instrumented by a governor that only watches; the spans of the model call and the tool call, with their content,
  go to the sink of a store that keeps none (what a store on disk costs is part of *recorded*);
- *governed*: instrumented, one rule that allows, spans shown to nobody;
- *recorded*: the same with the audit record and a trace store on disk, content included;
- *OpenInference*: the framework's usual observability instrumentor, with a span processor that drops everything.

CPU is that of the whole process: threads that write for a variant count too.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

FRAMEWORKS = ("langchain", "autogen", "openai-agents", "openai")
VARIANTS = ("bare", "empty handler", "capture", "governed", "recorded", "OpenInference")
#: Turns of one run, rounds in which each variant has its turn, and runs of it in each.
TURNS, ROUNDS, AGAIN = 5, 40, 3
#: How often a variant takes turns with bare, without a network, in each of how many processes: for capture, which has a goal
#: to be held against, and for each of the others.
PAIRS, PROCESSES, OTHERS = 12, 16, 5
#: Tool calls at once in a turn of the second shape.
WIDE = 3
#: Rounds before the first that counts.
WARM_UP = 3
#: What capture may cost, in microseconds of CPU a call.
GOAL_US = 150

_INSTRUMENTORS = {
    "langchain": ("openinference.instrumentation.langchain", "LangChainInstrumentor"),
    "autogen": ("openinference.instrumentation.autogen_agentchat", "AutogenAgentChatInstrumentor"),
    "openai-agents": ("openinference.instrumentation.openai_agents", "OpenAIAgentsInstrumentor"),
    "openai": ("openinference.instrumentation.openai", "OpenAIInstrumentor"),
}
ADAPTERS = {
    "langchain": "lgov_langchain",
    "autogen": "lgov_autogen",
    "openai-agents": "lgov_openai_agents",
    "openai": "lgov_openai",
}

# ---------------------------------------------------------------------- the agents: each answers after so many turns


class Agent(Protocol):
    """Runs an agent for so many turns with so many tool calls at once in each, and looks at its answer."""

    def __call__(self, turns: int, wide: int = 1) -> Awaitable[None]:
        """One run."""
        ...


def task(turns: int, wide: int) -> str:
    """What the user asks for; `script` reads it."""
    return f"turns={turns} wide={wide}."


def langchain_agent() -> Agent:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def add(a: int, b: int) -> str:
        """Adds."""
        passed()
        return str(a + b)

    agent: Any = create_agent(ChatOpenAI(model="scripted", max_retries=0), [add], name="bench")

    async def run(turns: int, wide: int = 1) -> None:
        asked = {"messages": [("user", task(turns, wide))]}
        answer = await agent.ainvoke(asked, config={"recursion_limit": 100})
        assert answer["messages"][-1].text == "done"

    return run


def autogen_agent() -> Agent:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelFamily, ModelInfo
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    def add(a: int, b: int) -> str:
        """Adds."""
        passed()
        return str(a + b)

    info = ModelInfo(
        vision=False, function_calling=True, json_output=False, family=ModelFamily.UNKNOWN, structured_output=False
    )
    client = OpenAIChatCompletionClient(model="scripted", model_info=info)

    async def run(turns: int, wide: int = 1) -> None:
        agent = AssistantAgent("bench", client, tools=[add], max_tool_iterations=100)
        answer = await agent.run(task=task(turns, wide))
        assert "done" in str(answer.messages[-1])

    return run


def openai_agents_agent() -> Agent:
    from agents import Agent as SDKAgent
    from agents import OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def add(a: int, b: int) -> str:
        """Adds."""
        passed()
        return str(a + b)

    model = OpenAIChatCompletionsModel("scripted", AsyncOpenAI(max_retries=0))
    agent = SDKAgent(name="bench", model=model, tools=[add])

    async def run(turns: int, wide: int = 1) -> None:
        answer = await Runner.run(agent, task(turns, wide), max_turns=100)
        assert answer.final_output == "done"

    return run


def openai_agent() -> Agent:
    from openai import AsyncOpenAI

    client: Any = AsyncOpenAI(max_retries=0)
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": parameters}}]

    async def run(turns: int, wide: int = 1) -> None:
        messages: list[Any] = [{"role": "user", "content": task(turns, wide)}]
        while True:
            reply = await client.chat.completions.create(model="scripted", messages=messages, tools=tools)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                given = json.loads(call.function.arguments)
                passed()
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])})
            if not message.tool_calls:
                assert message.content == "done"
                return

    return run


#: The process's CPU time in seconds at which a run has come to its model or to a tool, one after the other.
_PASSED: list[float] = []


def passed() -> None:
    """A run has come to its model, or to a tool."""
    _PASSED.append(time.process_time())


AGENTS: Mapping[str, Callable[[], Agent]] = {
    "langchain": langchain_agent,
    "autogen": autogen_agent,
    "openai-agents": openai_agents_agent,
    "openai": openai_agent,
}


# ---------------------------------------------------------------------- one framework, in a process of its own


class Variant:
    """One way to run the agent: `begin` instruments or instruments, `end` undoes it, `close` is called once at the very end."""

    def begin(self) -> None:
        """Nothing for the bare framework."""

    def end(self) -> None:
        """Nothing for the bare framework."""

    def close(self) -> None:
        """Nothing for the bare framework."""


class BareLangChain(Variant):
    """Without the handler that instrumentation has left: it watches nobody then, but LangChain goes on calling it."""

    def begin(self) -> None:
        from langchain_core.tracers.context import _configure_hooks

        self.hooks = [hook for hook in _configure_hooks if getattr(hook[2], "__module__", "").startswith("lgov_")]
        for hook in self.hooks:
            _configure_hooks.remove(hook)

    def end(self) -> None:
        from langchain_core.tracers.context import _configure_hooks

        _configure_hooks.extend(self.hooks)


class EmptyHandler(BareLangChain):
    """Bare, with a handler that LangChain calls as it calls lgov's, and that does nothing."""

    def __init__(self) -> None:
        from contextvars import ContextVar

        from langchain_core.callbacks import BaseCallbackHandler

        class Nothing(BaseCallbackHandler):
            run_inline = True

            def ignored(self, *args: Any, **kwargs: Any) -> None:
                """Nothing."""

            on_chain_start = on_chain_end = on_chat_model_start = on_llm_end = on_tool_start = on_tool_end = ignored

        self.handler, self.var = Nothing(), ContextVar[Any]("empty_handler", default=None)

    def begin(self) -> None:
        from langchain_core.tracers.context import _configure_hooks, register_configure_hook

        super().begin()
        register_configure_hook(self.var, inheritable=True)
        self.own = _configure_hooks[-1]
        self.var.set(self.handler)

    def end(self) -> None:
        from langchain_core.tracers.context import _configure_hooks

        _configure_hooks.remove(self.own)
        super().end()


class EmptyProcessor(Variant):
    """Bare, with a processor that the Agents SDK shows its spans and that does nothing."""

    def begin(self) -> None:
        from agents import set_trace_processors
        from agents.tracing import TracingProcessor

        class Nothing(TracingProcessor):
            def on_trace_start(self, trace: Any) -> None:
                """Nothing."""

            def on_trace_end(self, trace: Any) -> None:
                """Nothing."""

            def on_span_start(self, span: Any) -> None:
                """Nothing."""

            def on_span_end(self, span: Any) -> None:
                """Nothing."""

            def shutdown(self) -> None:
                """Nothing."""

            def force_flush(self) -> None:
                """Nothing."""

        set_trace_processors([Nothing()])

    def end(self) -> None:
        from agents import set_trace_processors

        set_trace_processors([])


_EMPTY: Mapping[str, Callable[[], Variant]] = {"langchain": EmptyHandler, "openai-agents": EmptyProcessor}


class Instrumented(Variant):
    """Instrumented by a governor."""

    def __init__(self, framework: str, governor: Any) -> None:
        self.adapter = importlib.import_module(ADAPTERS[framework])
        self.governor = governor

    def begin(self) -> None:
        self.adapter.instrument(self.governor)

    def end(self) -> None:
        self.adapter.uninstrument()


class Queue:
    """As much of a store as capture needs: what a writer would take from here is forgotten when there is much of it."""

    def __init__(self) -> None:
        self.spans: deque[Any] = deque(maxlen=1000)

    def add_span(self, span: Any) -> None:
        self.spans.append(span)

    def add_rewards(self, rewards: Any) -> None:
        raise AssertionError("nobody rewards here")


def capture(framework: str, folder: Path) -> Variant:
    """Instrumented; nobody judges, spans and their content go to a sink."""
    from lgov_core.governor import Governor
    from lgov_core.trace.sink import StoreSink

    return Instrumented(framework, Governor(plugins=[StoreSink(Queue())], capture_content=True, observe_only=True))


def _policy(folder: Path) -> Path:
    policy = folder / "policy.yaml"
    policy.write_text("version: 1\ndefault: allow\nrules:\n  - {name: add, tools: [add], use: allow}\n")
    return policy


def governed(framework: str, folder: Path) -> Variant:
    """Instrumented, by a governor without a record."""
    from lgov_core.governor import Governor
    from lgov_core.policies import load_policy_file

    return Instrumented(framework, Governor(load_policy_file(_policy(folder))))


class Recorded(Instrumented):
    """Instrumented, with the audit record and a store."""

    def __init__(self, framework: str, folder: Path) -> None:
        from lgov_core.process.governed import ProcessOptions, open_process

        self.process = open_process(ProcessOptions(_policy(folder), folder / "audit.db", str(folder / "store.db")))
        super().__init__(framework, self.process.governor)

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
    "bare": lambda framework, folder: BareLangChain() if framework == "langchain" else Variant(),
    "empty handler": lambda framework, folder: _EMPTY[framework](),
    "capture": capture,
    "governed": governed,
    "recorded": Recorded,
    "OpenInference": OpenInference,
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What a variant costs in microseconds of CPU: the whole for *bare*, what is added for the others.

    ``turn`` over HTTP and ``undisturbed`` for the moments in which nothing else ran; paired, without a network,
    ``paired_turn`` and its parts, ``model_call`` and ``tool_call``. Each but ``undisturbed`` as the median and the bounds of
    its 95 % interval.
    """

    turn: Sequence[float]
    undisturbed: float
    paired_turn: Sequence[float]
    model_call: Sequence[float]
    tool_call: Sequence[float]


@contextmanager
def ready(framework: str, names: Sequence[str] = VARIANTS) -> Generator[dict[str, tuple[Variant, Agent]]]:
    """The variants of one framework that are there, each with its agent."""
    if framework == "openai-agents":
        from agents import set_trace_processors

        set_trace_processors([])  # nothing is sent to the vendor's collector
    with tempfile.TemporaryDirectory() as name:
        variants: dict[str, tuple[Variant, Agent]] = {}
        for variant in names:
            if available(framework, variant):
                (folder := Path(name) / variant).mkdir()
                one = _VARIANTS[variant](framework, folder)
                one.begin()
                variants[variant] = one, AGENTS[framework]()
                one.end()
        try:
            yield variants
        finally:
            for one, _ in variants.values():
                one.close()


def over_http(framework: str, rounds: int) -> dict[str, tuple[tuple[float, float, float], float]]:
    """A turn of each variant, with its interval, and undisturbed."""
    with ready(framework) as variants:
        times = asyncio.run(_in_turns(variants, rounds))
    bare = times.pop("bare")
    found = {"bare": (median_of(_turns(bare)), undisturbed(bare))}
    for variant, taken in times.items():
        added = [mine - other for mine, other in zip(taken, bare, strict=True)]
        found[variant] = median_of(_turns(added)), undisturbed(taken) - undisturbed(bare)
    return found


def beside_bare(framework: str, variant: str, pairs: int) -> dict[str, tuple[float, float, float]]:
    """The turn, model call and tool call of bare and of ``variant``, without a network, in this process."""
    with ready(framework, ("bare", variant)) as variants:
        times = asyncio.run(_in_pairs(variants, pairs))
    bare, taken = ([in_parts(runs) for runs in times[name]] for name in ("bare", variant))
    return {"bare": _parts(*bare), variant: _parts(*[mine - least for mine, least in zip(taken, bare, strict=True)])}


def _parts(turn: float, wide: float) -> tuple[float, float, float]:
    """Of what turns with one tool call and with `WIDE` take: the turn, its model call and its tool call."""
    tool = (wide - turn) / (WIDE - 1)
    return turn, (turn - tool) * TURNS / (TURNS + 1), tool


def _turns(seconds: Sequence[float]) -> list[float]:
    """Of the seconds of whole runs, the microseconds of a turn."""
    return [value / TURNS * 1e6 for value in seconds]


def median_of(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the two values between which the true one lies in 95 of 100 cases."""
    ordered = sorted(values)
    reach = math.ceil(0.98 * math.sqrt(len(ordered)))
    middle = len(ordered) // 2
    return statistics.median(ordered), ordered[max(0, middle - reach)], ordered[min(len(ordered) - 1, middle + reach)]


def undisturbed(values: Sequence[float]) -> float:
    """The bound of the quickest tenth in microseconds a turn."""
    return sorted(values)[len(values) // 10] / TURNS * 1e6


def in_parts(runs: Sequence[Sequence[float]]) -> float:
    """Of the seconds of each part of runs alike, what a run takes if none of them is disturbed: microseconds a turn."""
    return sum(sorted(part)[len(part) // 20] for part in zip(*runs, strict=True)) / TURNS * 1e6


async def _in_turns(variants: Mapping[str, tuple[Variant, Agent]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    shuffled = random.Random(0)
    for number in range(-WARM_UP, rounds):
        if number == 0:
            gc.collect()
            gc.freeze()  # what is there by now is there for all; a collection looks at what a run made
        for name in shuffled.sample(list(variants), len(variants)):
            variant, run = variants[name]
            variant.begin()
            await run(TURNS)  # what instrumentation has pushed out of the caches comes back
            gc.collect()
            taken: list[float] = []
            for _ in range(AGAIN):
                began = time.process_time()
                await run(TURNS)
                taken.append(time.process_time() - began)
            variant.end()
            if number >= 0:
                times[name] += taken
    return times


async def _in_pairs(
    variants: Mapping[str, tuple[Variant, Agent]], pairs: int
) -> dict[str, tuple[list[list[float]], ...]]:
    """For each variant runs with one tool call a turn, and those with `WIDE`: of each the seconds of its parts."""
    times: dict[str, tuple[list[list[float]], ...]] = {variant: ([], []) for variant in variants}
    shuffled = random.Random(1)
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    if cpus is not None:
        os.sched_setaffinity(0, {max(cpus)})  # threads too: one that is woken elsewhere costs what nobody here caused
    with _answering_within():
        for number in range(-WARM_UP, pairs):
            if number == 0:
                gc.collect()
                gc.freeze()
            for name in shuffled.sample(list(variants), len(variants)):
                variant, run = variants[name]
                variant.begin()
                for _ in range(2):
                    await run(TURNS)
                gc.collect(0)
                for _ in range(AGAIN):
                    for runs, wide in zip(times[name], (1, WIDE), strict=True):
                        _PASSED.clear()
                        passed()
                        await run(TURNS, wide)
                        passed()
                        if number >= 0:
                            runs.append([after - before for before, after in pairwise(_PASSED)])
                variant.end()
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    return times


@contextmanager
def _answering_within() -> Generator[None]:
    """What would go to the scripted model's server is answered in this process, by the transport of the HTTP client."""
    import openai

    from lgov_core.types import new_id

    client = next(one for one in openai.DefaultAsyncHttpxClient.__mro__ if one.__name__ == "AsyncClient")
    library = importlib.import_module(client.__module__.partition(".")[0])
    transport: Any = library.AsyncHTTPTransport
    sends, base_url = transport.handle_async_request, os.environ["OPENAI_BASE_URL"]

    async def answer(self: Any, request: Any) -> Any:
        if not str(request.url).startswith(base_url):
            return await sends(self, request)  # the probes of a self-test
        passed()
        said: Any = script(json.loads(request.content))
        message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
        if not isinstance(said, str):
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.text},
                }
                for call in said.tool_calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        whole = {
            "id": new_id("chatcmpl"),
            "object": "chat.completion",
            "created": 1,
            "model": "scripted",
            "usage": usage,
        }
        return library.Response(200, json={**whole, "choices": [{**choice, "logprobs": None}]})

    transport.handle_async_request = answer
    try:
        yield
    finally:
        transport.handle_async_request = sends


# ---------------------------------------------------------------------- all of them


def script(body: Mapping[str, Any]) -> Any:
    """A model that calls a tool as often as the user's text says. No two calls have one id: results are told apart by it."""
    from lgov_core.testing import ScriptedCall, ScriptedReply
    from lgov_core.types import new_id

    messages = body["messages"]
    asked = next(message["content"] for message in messages if message["role"] == "user")
    wanted = re.search(r"turns=(\d+) wide=(\d+)\.", str(asked))
    assert wanted is not None, asked
    turns, wide = map(int, wanted.groups())
    done = sum(message["role"] == "assistant" for message in messages)
    if done >= turns:
        return "done"
    return ScriptedReply(
        tool_calls=[ScriptedCall("add", {"a": done, "b": number}, new_id("call")) for number in range(wide)]
    )


def serve() -> None:
    """The scripted model, until standard input ends."""
    from lgov_core.testing import ScriptedModelServer

    with ScriptedModelServer(script) as server:
        print(server.base_url, flush=True)
        sys.stdin.read()


def available(framework: str, variant: str) -> bool:
    """Whether what the variant needs is there."""
    if variant == "empty handler":
        return framework in _EMPTY
    module = _INSTRUMENTORS[framework][0] if variant == "OpenInference" else ADAPTERS[framework]
    try:
        return variant == "bare" or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=FRAMEWORKS)
    parser.add_argument("--over-http", help=argparse.SUPPRESS)
    parser.add_argument("--beside-bare", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="what each variant costs, see Measured")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="%(default)s by default")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="in each process, %(default)s by default")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="for capture, %(default)s by default")
    parser.add_argument("--others", type=int, default=OTHERS, help="for each other variant, %(default)s by default")
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    if arguments.over_http:
        return print(json.dumps(over_http(arguments.over_http, arguments.rounds)))
    if arguments.beside_bare:
        return print(json.dumps(beside_bare(*arguments.beside_bare, arguments.pairs)))
    serving = [sys.executable, "-m", "tests.bench.adapters", "--serve"]
    server = subprocess.Popen(serving, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    env = {**os.environ, "OPENAI_BASE_URL": server.stdout.readline().strip(), "OPENAI_API_KEY": "none"}
    env["PYTHONHASHSEED"] = "0"  # AutoGen's bare tool call takes 45 or 210 us, by the order of a set of names
    results: dict[str, dict[str, Measured]] = {}
    try:
        if not arguments.json:
            print(
                f"{'CPU in µs':46} {'a turn':>8} {'95 %':>12} {'undisturbed':>12} {'paired':>7} {'95 %':>12}"
                f" {'model call':>11} {'95 %':>12} {'tool call':>10} {'95 %':>12}"
            )
        for framework in arguments.names:
            over = _asked(["--over-http", framework, "--rounds", str(arguments.rounds)], env)
            beside: dict[str, list[Any]] = {variant: [] for variant in over}
            asked_of = {
                variant: arguments.processes if variant == "capture" else arguments.others
                for variant in over.keys() - {"bare"}
            }
            for number in range(max(asked_of.values(), default=0)):
                for variant in [one for one, processes in asked_of.items() if number < processes]:
                    if sys.stderr.isatty():
                        print(
                            f"\r{framework}: {variant}, {number + 1} of {asked_of[variant]}\033[K\r",
                            end="",
                            file=sys.stderr,
                        )
                    how = ["--beside-bare", framework, variant, "--pairs", str(arguments.pairs)]
                    for one, parts in _asked(how, env).items():
                        beside[one].append(parts)
            results[framework] = {
                variant: Measured(*turn, *map(median_of, zip(*beside[variant], strict=True)))
                for variant, turn in over.items()
            }
            if not arguments.json:
                write(framework, results[framework])
    finally:
        server.communicate()
    if arguments.json:
        said = {name: {variant: asdict(one) for variant, one in found.items()} for name, found in results.items()}
        print(json.dumps(said, indent=2))
    return None


def _asked(what: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """What this module prints when it is asked so in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.adapters", *what], env=env, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(what)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def write(framework: str, measured: Mapping[str, Measured]) -> None:
    """The lines of one framework."""
    peer = measured.get("OpenInference")
    for variant, one in measured.items():
        said: list[str] = []
        if variant == "capture":
            calls = {"model call": one.model_call, "tool call": one.tool_call}
            said += [f"{what} NOT met" for what, (median, _, _) in calls.items() if median > GOAL_US] or ["both met"]
            said += [f"{what} not for certain" for what, (_, low, high) in calls.items() if low <= GOAL_US < high]
            said[0] = f"goal {GOAL_US} a call: {said[0]}"
        if variant in ("capture", "governed") and peer is not None:
            said.append(f"OpenInference adds {peer.paired_turn[0] / one.paired_turn[0]:.1f} times as much")
        what = "bare, the whole" if variant == "bare" else f"{variant}, added"
        print(
            f"{framework:16}{what:30} {_columns(one.turn, 8, 12)} {one.undisturbed:12.0f} {_columns(one.paired_turn, 7, 12)}"
            f" {_columns(one.model_call, 11, 12)} {_columns(one.tool_call, 10, 12)}  {'; '.join(said)}",
            flush=True,
        )


def _columns(value: Sequence[float], width: int, interval: int) -> str:
    median, low, high = value
    return f"{median:{width}.0f} {f'{low:.0f}–{high:.0f}':>{interval}}"


if __name__ == "__main__":
    main()
