"""What the framework packages say about themselves."""

from __future__ import annotations

import subprocess
import sys

from lgov_core.types import Point
from lgov_langchain.instrumentor import lgov_framework as langchain


def test_asking_for_adapters_imports_no_framework() -> None:
    program = """
import sys
from lgov_core.plugins import make_plugin_manager
adapters = make_plugin_manager().hook.lgov_framework()
assert {adapter.name for adapter in adapters} == {"langchain", "autogen", "openai-agents", "openai"}
[adapter.installed() for adapter in adapters]
import lgov_langchain
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"langchain", "langchain_core", "langgraph", "autogen_core", "autogen_agentchat", "agents", "openai"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_langchain_is_there_and_says_what_cannot_be_streamed() -> None:
    adapter = langchain()
    assert adapter.installed()
    assert set(adapter.surface) == set(Point) - {Point.AGENT_STARTUP, Point.AGENT_SHUTDOWN}
    assert all(surface.block and surface.observe and surface.sync for surface in adapter.surface.values())
    assert {point for point, surface in adapter.surface.items() if surface.tell} == {
        Point.PRE_TOOL_CALL,
        Point.POST_TOOL_CALL,
    }
    assert {point for point, surface in adapter.surface.items() if not surface.stream} == {
        Point.POST_MODEL_CALL,
        Point.OUTPUT,
    }
