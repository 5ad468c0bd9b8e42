"""A scripted model: the example runs without a key and without a network.

It does not read the question. It does what a careless model does: it tries to empty the table and to
delete a file, reads the results, counts the rows, and answers with the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

STEPS = (
    ("run_sql", {"query": "DELETE FROM orders"}),
    ("delete_file", {"name": "invoices.txt"}),
    ("run_sql", {"query": "SELECT count(*) FROM orders"}),
)


class OfflineModel(BaseChatModel):
    """Plays `STEPS`, one a turn, then answers."""

    @property
    def _llm_type(self) -> str:
        return "offline"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        results = [message.text for message in messages if isinstance(message, ToolMessage)]
        if len(results) < len(STEPS):
            name, arguments = STEPS[len(results)]
            call = {"name": name, "args": arguments, "id": f"call_{len(results) + 1}", "type": "tool_call"}
            reply = AIMessage(content="", tool_calls=[call])
        else:
            refused = sum("DENIED" in result for result in results)
            told = f"{refused} of my calls were refused, so I left things as they are. " if refused else "Done. "
            reply = AIMessage(content=f"{told}The count I got is {results[-1]}.")
        return ChatResult(generations=[ChatGeneration(message=reply)])
