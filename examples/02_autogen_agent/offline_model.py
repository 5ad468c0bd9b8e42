"""A scripted model: the example runs without a key and without a network.

It does not read the question. It does what a careless model does: it tries to throw files away, then to
hand off to an agent that does it, reads the results, lists the files, and answers with the list.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from autogen_core import FunctionCall
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    ModelInfo,
    RequestUsage,
)

STEPS = (
    ("delete_file", {"name": "letters_1912.txt"}),
    ("transfer_to_caretaker", {}),
    ("delete_file", {"name": "letters_1913.txt"}),
    ("transfer_to_archivist", {}),
    ("list_files", {}),
)


class OfflineModel(ChatCompletionClient):
    """Plays `STEPS`, one a turn and only those for which it has the tool, then answers."""

    component_type = "model"

    def __init__(self) -> None:
        self._done = 0

    async def create(
        self, messages: Sequence[LLMMessage], *, tools: Sequence[Any] = (), **options: Any
    ) -> CreateResult:
        offered = {tool["name"] if isinstance(tool, dict) else tool.name for tool in tools}
        while self._done < len(STEPS):
            name, arguments = STEPS[self._done]
            self._done += 1
            if name in offered:
                call = FunctionCall(id=f"call_{self._done}", name=name, arguments=json.dumps(arguments))
                return CreateResult(finish_reason="function_calls", content=[call], usage=_NOTHING, cached=False)
        results = [
            result.content
            for message in messages
            if isinstance(message, FunctionExecutionResultMessage)
            for result in message.content
        ]
        refused = sum("DENIED" in result for result in results)
        told = f"{refused} of my calls were refused, so I left things as they are. " if refused else "Done. "
        text = f"{told}The archive holds: {results[-1] if results else 'nothing that I saw'}. TERMINATE"
        return CreateResult(finish_reason="stop", content=text, usage=_NOTHING, cached=False)

    async def create_stream(
        self, messages: Sequence[LLMMessage], **options: Any
    ) -> AsyncGenerator[str | CreateResult, None]:
        yield await self.create(messages, **options)

    async def close(self) -> None:
        return None

    def actual_usage(self) -> RequestUsage:
        return _NOTHING

    def total_usage(self) -> RequestUsage:
        return _NOTHING

    def count_tokens(self, messages: Sequence[LLMMessage], **options: Any) -> int:
        return 0

    def remaining_tokens(self, messages: Sequence[LLMMessage], **options: Any) -> int:
        return 100_000

    @property
    def capabilities(self) -> Any:
        return self.model_info

    @property
    def model_info(self) -> ModelInfo:
        return ModelInfo(
            vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
        )


_NOTHING = RequestUsage(prompt_tokens=0, completion_tokens=0)
