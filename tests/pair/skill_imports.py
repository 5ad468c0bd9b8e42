"""What the document's blocks import under other names."""

from __future__ import annotations

from types import SimpleNamespace

import langchain_anthropic
from pydantic import Field

from lgov_core import sandbox


class ChatAnthropic(langchain_anthropic.ChatAnthropic):
    """The real one, for which a program must name a model: here the name has a default."""

    model: str = Field(default="llama-3.2-3b", alias="model_name")


class Daytona:
    """Daytona's client, with lgov's sandboxes."""

    def __init__(self, config: SimpleNamespace) -> None:
        self.config = config

    def create(self, params: SimpleNamespace) -> sandbox.Sandbox:
        """A sandbox for Python."""
        assert params.language == "python"
        return sandbox.create()


DaytonaConfig = CreateSandboxFromSnapshotParams = SimpleNamespace
