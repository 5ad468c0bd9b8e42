"""What the framework packages say about themselves."""

from __future__ import annotations

import subprocess
import sys


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
