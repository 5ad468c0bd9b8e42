"""A program that traces itself with OpenTelemetry: prints each exported span and the span above it."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from typing import Any

from langchain_core.tools import tool
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.types import Action, Decision, Point
from lgov_langchain import LgovMiddleware, instrument

kind, how, attached = sys.argv[1:]
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("program")


class AllowAll(BoundedPolicy):
    name = "all"

    def judge(self, action: Action) -> Decision | None:
        return self.allow("fine") if action.point is Point.PRE_TOOL_CALL else None


def query(what: str) -> str:
    with tracer.start_as_current_span("query"):
        return f"{what} done"


if kind == "async":

    @tool
    async def work(what: str) -> str:
        """Works."""
        await asyncio.sleep(0)
        return query(what)

elif kind == "threaded":

    @tool
    def work(what: str) -> str:
        """Works in a thread of its own, handing its context on as programs that trace themselves do."""
        thread = threading.Thread(target=contextvars.copy_context().run, args=(query, what))
        thread.start()
        thread.join()
        return "done"

else:

    @tool
    def work(what: str) -> str:
        """Works."""
        return query(what)


governor = Governor([AllowAll()])
if attached == "instrumented":
    instrument(governor)

from langchain.agents import create_agent  # noqa: E402 - after instrumentation, as under lgov run
from langchain_openai import ChatOpenAI  # noqa: E402

middleware = [LgovMiddleware(governor)] if attached == "middleware" else []
agent: Any = create_agent(ChatOpenAI(model="scripted"), [work], name="clerk", middleware=middleware)
question = {"messages": [("user", "work")]}


async def consume() -> None:
    async for _ in agent.astream(question):
        pass


with tracer.start_as_current_span("request"):
    if how == "invoke":
        agent.invoke(question)
    elif how == "stream":
        list(agent.stream(question))
    else:
        asyncio.run(agent.ainvoke(question) if how == "ainvoke" else consume())

spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}
for span in spans.values():
    print(span.name, "<", spans[span.parent.span_id].name if span.parent else "")
