"""The parts of LangChain that lgov needs and that have no public equivalent.

They are the same in all `VERSIONS`; ``tests/langchain/test_internals.py`` checks each with the installed ones. Where a
`langchain_openai` has none of what is patched here, streamed replies have no id, and nothing else changes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool
    from langgraph.prebuilt import ToolNode
    from langgraph.prebuilt.tool_node import ToolCallRequest

VERSIONS = {"langchain-core": ">=1.7,<1.9", "langgraph": ">=1.2.11,<1.3", "langchain-openai": ">=1.7,<2"}

#: The key of a run's metadata that holds the ``name=`` of the agent it belongs to.
AGENT_NAME = "lc_agent_name"

#: The key of a run's metadata that says which package made the graph it belongs to, and the values for graphs.
INTEGRATION = "ls_integration"
GRAPHS = frozenset({"langgraph", "langchain_create_agent", "deepagents"})

#: The key of a tool's metadata by which langgraph-swarm and langgraph-supervisor mark a hand-off.
HANDOFF_DESTINATION = "__handoff_destination"


def node_options(node: ToolNode) -> dict[str, Any]:
    """The options that ``node`` was made with, besides its name and tags."""
    return {
        "handle_tool_errors": node._handle_tool_errors,
        "messages_key": node._messages_key,
        "wrap_tool_call": node._wrap_tool_call,
        "awrap_tool_call": node._awrap_tool_call,
    }


def handled_error_types(handler: Callable[..., str]) -> tuple[type[Exception], ...]:
    """The types of the errors that a ``handle_tool_errors`` function is for, by its annotations."""
    from langgraph.prebuilt.tool_node import _infer_handled_types

    return _infer_handled_types(handler)


def combine_llm_outputs(model: BaseChatModel, outputs: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """The ``llm_output`` of several calls as that of one."""
    return model._combine_llm_outputs(list(outputs))


#: Parameters that LangChain sets itself; a tool's schema may have fields of these names all the same.
_SET_BY_LANGCHAIN = frozenset({"run_manager", "callbacks"})


def schema_of(tool: BaseTool) -> Any:
    """The pydantic model that validates the tool's input; None if nothing does."""
    schema = tool.args_schema
    return schema if isinstance(schema, type) else None


def injected_names(tool: BaseTool, tool_input: Mapping[str, Any]) -> set[str]:
    """The names in ``tool_input`` that the program and not the model sets: what the schema shown to models hides.

    A tool whose schema is plain JSON hides only what no model can write.
    """
    kept = tool._filter_injected_args(dict(tool_input))
    hidden = tool_input.keys() - kept.keys() - _SET_BY_LANGCHAIN
    if isinstance(tool.args_schema, Mapping):
        plain = (str, int, float, list, dict, type(None))
        return {name for name in hidden if not isinstance(tool_input[name], plain)}
    return hidden


def arguments_and_names(tool: BaseTool, tool_input: dict[str, Any], call_id: str | None) -> tuple[Any, dict[str, Any]]:
    """The arguments with which LangChain calls the tool's function with, positional and by name; and by the names of fields.

    Raises what the tool's schema raises.
    """
    args, kwargs = tool._to_args_and_kwargs(tool_input, call_id)
    schema = schema_of(tool)
    names = (
        tool_input
        if schema is None
        else vars(schema).get("__pydantic_fields__", {}) or vars(schema).get("__fields__", {})
    )
    return (args, kwargs), {**dict(zip(names, args, strict=False)), **kwargs}


def injected_arguments(request: ToolCallRequest) -> dict[str, Any]:
    """The arguments of a node's call with what the node puts in. Raises what the node raises where it cannot."""
    from langgraph.prebuilt import ToolNode

    node: Any = SimpleNamespace(_injected_args={}, _messages_key="messages")
    call: Any = ToolNode._inject_tool_args(node, request.tool_call, request.runtime, request.tool)
    return dict(call["args"])


def is_resumable(config: Mapping[str, Any]) -> bool:
    """Returns whether the graph that runs has a checkpointer, so that a paused run can be resumed."""
    return (config.get("configurable") or {}).get("__pregel_checkpointer") is not None


def resumed_by(runtime: Any) -> str | None:
    """The identity of the user whose request LangGraph's server runs; None elsewhere."""
    identity = getattr(getattr(getattr(runtime, "server_info", None), "user", None), "identity", None)
    return identity if isinstance(identity, str) else None


def keep_reply_ids() -> None:
    """Makes streamed replies of ``langchain_openai`` keep the endpoint's id, as ``response_metadata["id"]``.

    LangChain keeps that of a whole reply and drops that of a streamed one; a model call and the endpoint's record of it are
    joined by it. Does nothing the second time, or before the package is imported: call it before each use. Any thread may.
    """
    base: Any = getattr(sys.modules.get("langchain_openai.chat_models.base"), "BaseChatOpenAI", None)
    convert: Any = getattr(base, "_convert_chunk_to_generation_chunk", None)
    if convert is None or hasattr(convert, "lgov_keeps_reply_ids"):
        return

    @functools.wraps(convert)
    def convert_with_id(self: Any, chunk: Any, *args: Any, **kwargs: Any) -> Any:
        converted = convert(self, chunk, *args, **kwargs)
        info: Any = getattr(converted, "generation_info", None) or {}
        # Only beside the other facts about the whole reply: they come once, in the last chunk of the text.
        if "finish_reason" in info and (reply_id := _reply_id(chunk)) is not None:
            converted.generation_info = {"id": reply_id, **info}
        return converted

    convert_with_id.lgov_keeps_reply_ids = True  # type: ignore[attr-defined]
    base._convert_chunk_to_generation_chunk = convert_with_id


def _reply_id(chunk: Any) -> str | None:
    """The id in a chunk as the API sent it, or inside an event of the client library's stream helper."""
    reply_id = chunk.get("id") or (chunk.get("chunk") or {}).get("id") if isinstance(chunk, dict) else None
    return reply_id if isinstance(reply_id, str) and reply_id else None
