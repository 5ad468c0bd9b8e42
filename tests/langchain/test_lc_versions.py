"""Other versions of LangChain, and none at all: `instrument` refuses where it cannot govern."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import langchain.agents
import pytest
from langchain_core.tools import tool
from scripted import Witness, deny, make_governor

from lgov_core.types import Action, Decision
from lgov_langchain import instrument
from lgov_langchain.instrumentor import INSTRUMENTOR

QUESTION: Any = {"messages": [("user", "go")]}
WAYS = pytest.mark.parametrize("way", ["explicit", "instrumented"])
ran: list[str] = []


@tool
def work(what: str) -> str:
    """Works."""
    ran.append(what)
    return f"{what} done"


def no_digging(action: Action) -> Decision | None:
    return deny("no digging") if action.arguments.get("what") == "dig" else None


PROGRAM = """
import sys
for name in {missing}:
    sys.modules[name] = None
from lgov_core.errors import InstrumentationError
from lgov_core.governor import Governor
from lgov_langchain.instrumentor import lgov_framework
adapter = lgov_framework()
print("installed", adapter.installed())
try:
    adapter.instrument(Governor())
except InstrumentationError as error:
    print("refused", error)
else:
    print("instrumented")
    adapter.uninstrument()
"""


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["langchain_openai"], "installed True\ninstrumented"),
    ],
)
def test_without_the_framework(missing: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(missing=missing)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(said), done.stdout


@pytest.mark.parametrize(
    ("owner", "name", "found"),
    [
        ("tool", "run", r"got through \(tool\.run, tool\.invoke\)"),
        ("tool", "arun", r"got through \(tool\.arun, tool\.ainvoke\)"),
        ("model", "generate", r"got through \(model\.invoke\)"),
        ("model", "agenerate", r"got through \(model\.ainvoke\)"),
        ("model", "stream", r"got through \(model\.stream\)"),
        ("model", "astream", r"got through \(model\.astream\)"),
        ("langchain", "create_agent", "did not get the governing middleware"),
    ],
)
def test_a_patch_that_does_not_hold_is_found(
    owner: str, name: str, found: str, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the patch of one path had no effect in some other version: instrumentation refuses, and nothing stays patched."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

    from lgov_core.errors import InstrumentationError
    from lgov_core.instrumentation.framework import Patches

    replace: Callable[..., None] = Patches.replace

    def all_but_one(self: Any, target: Any, attribute: str, new: Any) -> None:
        if attribute != name:
            replace(self, target, attribute, new)

    before = (BaseTool.run, BaseTool.arun, BaseChatModel.generate, BaseChatModel.stream, langchain.agents.create_agent)
    monkeypatch.setattr(Patches, "replace", all_but_one)
    with pytest.raises(InstrumentationError, match=found):
        instrument(make_governor(witness=witness))
    assert before == (
        BaseTool.run,
        BaseTool.arun,
        BaseChatModel.generate,
        BaseChatModel.stream,
        langchain.agents.create_agent,
    )
    assert INSTRUMENTOR.governor is None
