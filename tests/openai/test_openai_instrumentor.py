"""Instrumentation of a whole process."""

from __future__ import annotations

import openai
import pytest
from opentelemetry import context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_ON

from lgov_core.errors import InstrumentationError
from lgov_core.testing import ScriptedModelServer
from lgov_openai import instrument, uninstrument
from tests.cells import asks, says
from tests.openai import openai_programs as programs
from tests.openai.rules import chat


def test_instrumentation_covers_every_client(governor):
    with ScriptedModelServer([asks(("c1", "erase_file", {})), says("no")] * 3) as server:

        class Own(openai.OpenAI):
            pass

        before = programs.client(server.base_url)
        instrument(governor)
        try:
            azure = openai.AzureOpenAI(
                azure_endpoint=server.base_url.removesuffix("/v1"), api_key="k", api_version="2024-10-21", max_retries=0
            )
            own = Own(base_url=server.base_url, api_key="k")
            assert [chat(client).content for client in (before, own, azure)] == ["no"] * 3
        finally:
            uninstrument()
    assert "/deployments/m/chat/completions" in server.requests[-1].path
    with ScriptedModelServer([asks(("c1", "erase_file", {}))]) as server:
        assert chat(before.with_options(base_url=server.base_url)).tool_calls, "uninstrumented, it still judges"


@pytest.mark.parametrize(("sampler", "heeds"), [(DEFAULT_ON, False), (ALWAYS_ON, True)])
def test_the_self_test_is_not_in_the_programs_traces_and_logs(governor, monkeypatch, caplog, sampler, heeds):
    caplog.set_level("DEBUG")
    exporter, provider = InMemorySpanExporter(), TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    create = openai.resources.chat.completions.Completions.create

    def traced(*args, **kwargs):  # as an instrumentation that knows no key, or as OpenInference and OpenLLMetry
        if heeds and context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY):
            return create(*args, **kwargs)
        with provider.get_tracer("other").start_as_current_span("ChatCompletion"):
            return create(*args, **kwargs)

    monkeypatch.setattr(openai.resources.chat.completions.Completions, "create", traced)
    with ScriptedModelServer([says("hi")]) as server:
        instrument(governor)
        try:
            assert not exporter.get_finished_spans()
            assert not [record for record in caplog.records if record.name.startswith(("openai", "httpx"))]
            assert chat(programs.client(server.base_url)).content == "hi"
            assert f"HTTP Request: POST {server.base_url}/chat/completions" in caplog.text
        finally:
            uninstrument()
    assert [span.name for span in exporter.get_finished_spans()] == ["ChatCompletion"]


def test_instrumentation_fails_where_a_probe_gets_through(governor, monkeypatch):
    from lgov_openai import client

    def passes_on(self, request, send):
        return (yield from send(request))

    monkeypatch.setattr(client.Interceptor, "steps", passes_on)
    with pytest.raises(
        InstrumentationError, match=r"denied probes got through.*chat\.completions\.create.*responses\.create"
    ):
        instrument(governor)
    assert openai.OpenAI.request.__qualname__ == "SyncAPIClient.request"
