"""The arguments of a tool's call as AutoGen validates them: once, for policies and for the tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autogen_agentchat.tools import AgentTool, TeamTool

from lgov_autogen._internals import ValidatedType, validate_with, validating_model
from lgov_autogen.messages import RAW_ARGUMENTS
from lgov_core.instrumentation.live_span import covered_call
from lgov_core.instrumentation.tool_arguments import ToolArguments, fields_in, validate_by_name
from lgov_core.types import Kind
from lgov_core.wire.turns import JSON


def kind_of(*owners: Any) -> Kind:
    """The kind of a call of the first of ``owners`` (a tool, its workbench) that tells it."""
    for owner in owners:
        if isinstance(owner, AgentTool | TeamTool):
            return "agent"
        if any(cls.__module__.startswith("autogen_ext.tools.mcp") for cls in type(owner).__mro__):
            return "mcp"
    return "function"


def as_arguments(arguments: Any) -> dict[str, Any]:
    """The arguments that policies see; anything but a mapping is the argument `RAW_ARGUMENTS`."""
    if arguments is None:
        return {}
    return dict(arguments) if isinstance(arguments, Mapping) else {RAW_ARGUMENTS: arguments}


class ToolModel(ToolArguments):
    """The arguments of one call of ``tool``, which validates them with the pydantic model ``schema``."""

    def __init__(self, tool: Any, schema: Any, arguments: Any) -> None:
        self.tool, self._schema, self.is_due = tool, schema, False
        self._is_object = isinstance(arguments, Mapping)
        self._original = arguments
        super().__init__(as_arguments(arguments))

    @classmethod
    def of(cls, tool: Any, method: Any, arguments: Any) -> ToolModel | None:
        """The arguments as ``method`` of ``tool`` validates them; None where that does not, or does so in its own way."""
        running = running_model(tool)
        if running is not None and running.is_of(arguments):
            return running
        schema = validating_model(tool, method)
        return None if schema is None else cls(tool, schema, arguments)

    def is_of(self, arguments: Any) -> bool:
        """Returns whether these are the ``arguments`` that a method of the tool got."""
        return self.raw == arguments if isinstance(arguments, Mapping) else self._original is arguments

    @property
    def schema(self) -> Any:
        """See `ToolArguments.schema`."""
        return self._schema

    def validate(self, raw: JSON, *, by_name: bool) -> tuple[Any, Mapping[str, Any]]:
        """See `ToolArguments.validate`. An MCP server is sent only what is set."""
        if by_name:
            model = validate_by_name(self._schema, raw)
        else:
            model = self._schema.model_validate(raw if self._is_object else self._original)
        values = fields_in(model) or {}
        if kind_of(self.tool) == "mcp":
            values = {name: value for name, value in values.items() if name in model.model_fields_set}
        return model, values

    def take(self) -> Any:
        """See `ToolArguments.take`."""
        self.is_due = False  # what the tool's function validates with the model itself is another thing
        return super().take()


def running_model(tool: Any) -> ToolModel | None:
    """The arguments of the call of ``tool`` that is running."""
    around = covered_call()
    validated = around.validated if around is not None else None
    return validated if isinstance(validated, ToolModel) and validated.tool is tool else None


def _stand_in(tool: Any) -> ValidatedType | None:
    model = running_model(tool)
    return ValidatedType(model.schema, model.take) if model is not None and model.is_due else None


validate_with(_stand_in)
