"""What the document's blocks import under other names."""

from __future__ import annotations

import langchain_anthropic
from pydantic import Field


class ChatAnthropic(langchain_anthropic.ChatAnthropic):
    """The real one, for which a program must name a model: here the name has a default."""

    model: str = Field(default="llama-3.2-3b", alias="model_name")
