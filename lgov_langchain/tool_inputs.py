"""The input of a tool as its schema yields it: validated once, before callbacks and policies see it.

LangChain validates between its callbacks and the tool's function, which is too late for both. `validate_once` has every run of
a tool validate first, so that callbacks are told what the function gets; where LangChain would validate it takes what is there.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.messages import ai
from langchain_core.output_parsers import openai_tools
from langchain_core.tools import BaseTool
from langchain_core.utils.json import parse_partial_json

from lgov_core.instrumentation import json_object
from lgov_core.instrumentation.framework import Patches, wrap_methods
from lgov_core.instrumentation.live_span import MODEL_CALL, covered_call
from lgov_core.instrumentation.tool_arguments import ToolArguments, Unreadable, validate_by_name
from lgov_core.types import Point
from lgov_core.wire.turns import JSON, read_arguments
from lgov_langchain._internals import arguments_and_names, injected_arguments, injected_names, schema_of

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest

#: The one argument of a call whose arguments programs may read differently: their text.
_UNREADABLE = "lgov_unreadable_arguments"


class ToolInput(ToolArguments):
    """The input of one run of ``tool``. What the program puts in beside the model's arguments is not judged."""

    def __init__(self, tool: BaseTool, tool_input: Mapping[str, Any], call_id: str | None) -> None:
        self.tool, self.call_id = tool, call_id
        hidden = injected_names(tool, tool_input)
        self.injected = {name: value for name, value in tool_input.items() if name in hidden}
        super().__init__({name: value for name, value in tool_input.items() if name not in hidden})

    def matches(self, tool: BaseTool, tool_input: Mapping[str, Any]) -> bool:
        """Returns whether this is ``tool_input`` of ``tool``."""
        own, injected = self.raw, self.injected
        return (
            tool is self.tool
            and set(tool_input) == {*own, *injected}
            and all(tool_input[name] is value for name, value in injected.items())
            and {name: tool_input[name] for name in own} == own
        )

    @property
    def schema(self) -> Any:
        """See `ToolArguments.schema`."""
        return schema_of(self.tool)

    def validate(self, raw: JSON, *, by_name: bool) -> tuple[Any, Mapping[str, Any]]:
        """See `ToolArguments.validate`."""
        if set(raw) == {_UNREADABLE}:
            raise Unreadable
        tool_input = {**raw, **self.injected}
        if by_name and self.schema is not None:
            model = validate_by_name(self.schema, tool_input)
            values = {**vars(model), **(getattr(model, "__pydantic_extra__", None) or {})}
            tool_input = {name: value for name, value in values.items() if name in self._names}
            arguments = (tuple(tool_input.values()), {}) if self._is_single else ((), tool_input)
        else:
            arguments, values = arguments_and_names(self.tool, tool_input, self.call_id)
            self._is_single, self._names, tool_input = bool(arguments[0]), frozenset(values), values
        hidden = injected_names(self.tool, tool_input)
        return arguments, {name: value for name, value in tool_input.items() if name not in hidden}

    _is_single = False
    _names: frozenset[str] = frozenset()


class ValidatedInput(dict[str, Any]):
    """A tool's input for ``BaseTool.run``: what callbacks are shown, and what the function gets."""

    def __init__(self, validated: ToolInput) -> None:
        super().__init__({**validated.arguments, **validated.injected})
        self.validated = validated


def validated_input(tool: BaseTool, tool_input: Any, call_id: str | None) -> Any:
    """``tool_input`` as the tool's schema yields it; a text, which LangChain gives to the function as it is, unchanged."""
    if isinstance(tool_input, ValidatedInput) or not isinstance(tool_input, Mapping):
        return tool_input
    around = covered_call()
    validated = around.validated if around is not None else None
    if not isinstance(validated, ToolInput) or not validated.matches(tool, tool_input):
        validated = ToolInput(tool, tool_input, call_id)
    return ValidatedInput(validated)


def node_input(request: ToolCallRequest) -> ToolInput | None:
    """The input of the tool that a node is about to run; None where the node itself refuses to run it."""
    if request.tool is None:
        return None
    try:
        arguments = injected_arguments(request)
    except Exception:  # noqa: BLE001 - the node raises the same
        return None
    return ToolInput(request.tool, arguments, request.tool_call["id"])


@functools.cache
def validate_once() -> None:
    """Has every run of a tool in this process validate its input first, and every model's reply read arguments in one way."""
    patches = Patches()
    for name in ("run", "arun"):
        patches.replace(BaseTool, name, _validating(getattr(BaseTool, name)))
    wrap_methods(patches, BaseTool, {"_to_args_and_kwargs": _handing_out})
    patches.replace(ai, "parse_partial_json", _marking_partial(parse_partial_json))
    patches.replace(openai_tools, "parse_tool_call", _marking(openai_tools.parse_tool_call))
    if (base := sys.modules.get("langchain_openai.chat_models.base")) is not None:
        patches.replace(base, "parse_tool_call", openai_tools.parse_tool_call)


def _validating(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def validated(tool: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        return run(tool, validated_input(tool, tool_input, kwargs.get("tool_call_id")), *args, **kwargs)

    @functools.wraps(run)
    async def avalidated(tool: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        return await run(tool, validated_input(tool, tool_input, kwargs.get("tool_call_id")), *args, **kwargs)

    return avalidated if inspect.iscoroutinefunction(run) else validated


def _handing_out(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def to_args_and_kwargs(tool: BaseTool, tool_input: Any, tool_call_id: str | None) -> Any:
        if not isinstance(tool_input, ValidatedInput):
            return own(tool, tool_input, tool_call_id)
        args, kwargs = tool_input.validated.take()
        return args, dict(kwargs)

    return to_args_and_kwargs


def _is_unreadable(text: Any) -> bool:
    """Returns whether ``text`` is an object that programs may read differently, and a policy would judge it."""
    governor = MODEL_CALL.get()
    if governor is None or not isinstance(text, str) or not governor.evaluates(Point.PRE_TOOL_CALL):
        return False
    return read_arguments(text) is None and json_object(text) is not None


def _marking(parse: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(parse)
    def parse_tool_call(raw_tool_call: Any, **options: Any) -> Any:
        call = parse(raw_tool_call, **options)
        text = raw_tool_call.get("function", {}).get("arguments")
        return {**call, "args": {_UNREADABLE: text}} if call is not None and _is_unreadable(text) else call

    return parse_tool_call


def _marking_partial(parse: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(parse)
    def parse_partial_json(text: str, **options: Any) -> Any:
        return {_UNREADABLE: text} if _is_unreadable(text) else parse(text, **options)

    return parse_partial_json
