"""Records what real instrumentations send over OTLP, for the tests of the mapping.

Each sample is made in an environment that has its instrumentation (see samples/README.md)::

    python -m tests.otlp.record_samples openinference_openai

runs one tool conversation against a scripted model, receives what OpenTelemetry's own exporter posts, and writes it to
``samples/NAME.jsonl``: one ``ExportTraceServiceRequest`` a line, in OTLP's JSON.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lgov_core.testing import ScriptedModelServer, call

SAMPLES = Path(__file__).parent / "samples"
QUESTION = "What is the weather in Oslo?"
SCRIPT = [call("get_weather", city="Oslo"), "It is raining in Oslo."]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Receiver:
    """Takes what is posted to it, unpacked by nobody."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"


def get_weather(city: str) -> str:
    """Tells the weather in a city."""
    return f"rain in {city}"


def converse(base_url: str) -> None:
    """A tool conversation with the plain client."""
    from openai import OpenAI

    client = OpenAI(base_url=base_url, api_key="none")
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    reply = client.chat.completions.create(model="scripted", messages=messages, tools=[TOOL], temperature=0.5)
    proposed = reply.choices[0].message
    messages.append(proposed.model_dump(exclude_none=True))
    for one in proposed.tool_calls or ():
        messages.append({"role": "tool", "tool_call_id": one.id, "content": get_weather("Oslo")})
    client.chat.completions.create(model="scripted", messages=messages, tools=[TOOL], temperature=0.5)


def openinference_openai(provider: Any, base_url: str) -> None:
    from openinference.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=provider)
    converse(base_url)


def openinference_langchain(provider: Any, base_url: str) -> None:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI
    from openinference.instrumentation import using_session
    from openinference.instrumentation.langchain import LangChainInstrumentor

    LangChainInstrumentor().instrument(tracer_provider=provider)
    model = ChatOpenAI(model="scripted", base_url=base_url, api_key="none", temperature=0.5)  # type: ignore[arg-type]
    agent: Any = create_agent(model, [get_weather], name="forecaster")
    with using_session("session-1"):
        agent.invoke({"messages": [("user", QUESTION)]})


def openinference_openai_agents(provider: Any, base_url: str) -> None:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI
    from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

    OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)
    model = OpenAIChatCompletionsModel("scripted", AsyncOpenAI(base_url=base_url, api_key="none"))
    agent = Agent(name="forecaster", instructions="Be brief.", tools=[function_tool(get_weather)], model=model)
    asyncio.run(Runner.run(agent, QUESTION))


def openinference_autogen(provider: Any, base_url: str) -> None:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient
    from openinference.instrumentation.autogen_agentchat import AutogenAgentChatInstrumentor

    AutogenAgentChatInstrumentor().instrument(tracer_provider=provider)
    info: Any = {
        "vision": False, "function_calling": True, "json_output": False, "structured_output": False, "family": "unknown"
    }  # fmt: skip
    client = OpenAIChatCompletionClient(model="scripted", base_url=base_url, api_key="none", model_info=info)
    agent = AssistantAgent("forecaster", client, tools=[get_weather], reflect_on_tool_use=True)
    asyncio.run(agent.run(task=QUESTION))


def openllmetry_openai(provider: Any, base_url: str) -> None:
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=provider)
    converse(base_url)


def agentops_openai(provider: Any, base_url: str) -> None:
    from agentops.instrumentation.providers.openai.instrumentor import OpenaiInstrumentor
    from agentops.sdk.core import tracer
    from agentops.sdk.decorators import agent, tool

    tracer.provider, tracer._initialized = provider, True  # its own provider sends to its makers
    OpenaiInstrumentor().instrument(tracer_provider=provider)
    weather = tool(name="get_weather")(get_weather)

    @agent(name="forecaster")
    class Forecaster:
        def run(self) -> None:
            converse(base_url)
            weather("Oslo")

    Forecaster().run()


def agentlightning_rewards(provider: Any, base_url: str) -> None:
    from agentlightning import emit_reward
    from agentlightning.utils.otel import make_link_attributes

    tracer = provider.get_tracer("agentlightning")
    of_call = make_link_attributes({"gen_ai.response.id": "chatcmpl-1"})
    for made in (
        emit_reward(0.5, attributes=of_call, propagate=False),
        emit_reward({"solved": 1.0, "speed": 0.25}, primary_key="solved", propagate=False),
    ):
        tracer.start_span(made.name, attributes=made.attributes).end()


SAMPLERS: dict[str, Callable[[Any, str], None]] = {
    function.__name__: function
    for function in (
        openinference_openai,
        openinference_langchain,
        openinference_openai_agents,
        openinference_autogen,
        openllmetry_openai,
        agentops_openai,
        agentlightning_rewards,
    )
}


def as_json(body: bytes) -> dict[str, Any]:
    """A request in OTLP's JSON: as protobuf's own encoder writes it, with the ids in hexadecimal."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = MessageToDict(ExportTraceServiceRequest.FromString(body), use_integers_for_enums=True)
    for group in request["resourceSpans"]:
        kept = [
            pair
            for pair in group["resource"]["attributes"]
            if pair["key"].startswith(("telemetry.", "service.", "agentlightning."))
        ]
        group["resource"]["attributes"] = kept  # not the machine it ran on
        for part in group["scopeSpans"]:
            for span in part["spans"]:
                for one in (span, *span.get("links", ())):
                    for name in ("traceId", "spanId", "parentSpanId"):
                        if name in one:
                            one[name] = base64.b64decode(one[name]).hex()
    return request


def main(name: str) -> None:
    """Records one sample."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # Under these names agent-lightning tells whose spans they are.
    whose = {"agentlightning.rollout_id": "ro-1", "agentlightning.attempt_id": "at-1"}
    of_rollout = Resource.create(whose if name.startswith("agentlightning") else {})
    receiver, provider = Receiver(), TracerProvider(resource=of_rollout)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(receiver.url)))
    trace.set_tracer_provider(provider)
    with ScriptedModelServer(SCRIPT, token_ids=True) as model:
        SAMPLERS[name](provider, model.base_url)
    provider.shutdown()
    lines = [json.dumps(as_json(body), ensure_ascii=False, separators=(",", ":")) for body in receiver.bodies]
    text = "\n".join(lines) + "\n"
    for here in (model.base_url.removesuffix("/v1"), sys.prefix):
        text = text.replace(here, "http://127.0.0.1:8000" if here.startswith("http") else "/env")
    (SAMPLES / f"{name}.jsonl").write_text(text)
    print(f"{name}: {len(lines)} requests, {text.count('spanId')} ids")


if __name__ == "__main__":
    main(sys.argv[1])
