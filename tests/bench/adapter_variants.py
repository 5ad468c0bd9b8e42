"""The variants of the benchmark of the adapters: bare, or instrumented in one way or another."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.adapter_agents import ADAPTERS, AGENTS, Agent

VARIANTS = ("bare", "empty handler", "capture", "governed", "recorded", "OpenInference")

_INSTRUMENTORS = {
    "langchain": ("openinference.instrumentation.langchain", "LangChainInstrumentor"),
    "autogen": ("openinference.instrumentation.autogen_agentchat", "AutogenAgentChatInstrumentor"),
    "openai-agents": ("openinference.instrumentation.openai_agents", "OpenAIAgentsInstrumentor"),
    "openai": ("openinference.instrumentation.openai", "OpenAIInstrumentor"),
}


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
        from lgov_core.governance import Governance

        self.process = Governance(
            policy=_policy(folder), audit=folder / "audit.db", store=str(folder / "store.db")
        ).open()
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


def available(framework: str, variant: str) -> bool:
    """Whether what the variant needs is there."""
    if variant == "empty handler":
        return framework in _EMPTY
    module = _INSTRUMENTORS[framework][0] if variant == "OpenInference" else ADAPTERS[framework]
    try:
        return variant == "bare" or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
