"""Instrumentation of a whole process."""

from __future__ import annotations

import subprocess
import sys
import warnings

import openai
import pytest

from lgov_core.errors import InstrumentationError
from lgov_core.governor import Governor
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Point
from lgov_openai import instrument, uninstrument
from lgov_openai.instrumentor import INSTRUMENTOR, lgov_framework
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


async def test_instrumentation_inside_a_running_loop(governor):
    instrument(governor)
    uninstrument()


def test_untested_versions_warn_and_two_governors_raise(governor, monkeypatch):
    monkeypatch.setattr(INSTRUMENTOR, "tested", {"openai": ">=99"})
    with pytest.warns(UserWarning, match=r"openai 3\.\S+ is outside the range lgov was tested with \(>=99\)"):
        instrument(governor)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            instrument(governor)
        other = Governor([])
        with pytest.raises(InstrumentationError, match="already governed"):
            instrument(other)
        other.close()
    finally:
        uninstrument()


def test_without_openai_instrumentation_raises():
    program = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "openai":
            raise ModuleNotFoundError("No module named 'openai'", name="openai")
sys.meta_path.insert(0, Gone())
from lgov_core.errors import InstrumentationError
from lgov_core.governor import Governor
from lgov_openai.instrumentor import INSTRUMENTOR, lgov_framework
try:
    lgov_framework().instrument(Governor([]))
except InstrumentationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "openai cannot be governed here: ModuleNotFoundError" in done.stdout


def test_the_adapter_is_declared():
    adapter = lgov_framework()
    assert (adapter.name, adapter.modules, adapter.installed()) == ("openai", ("openai",), True)
    assert set(adapter.surface) == {
        point for point in Point if point not in (Point.AGENT_STARTUP, Point.AGENT_SHUTDOWN)
    }
    assert all(adapter.unsupported[mode, shape] for mode in ("sync", "async", "streaming")
               for shape in ("hand-off", "agent-as-tool"))  # fmt: skip
