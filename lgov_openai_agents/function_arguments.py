"""The arguments of a function tool's call as the SDK validates them: once, for policies and for the function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import FunctionTool

from lgov_core.instrumentation.tool_arguments import ToolArguments, Unreadable, validate_by_name
from lgov_core.wire.turns import JSON, read_arguments
from lgov_openai_agents._internals import function_schema_of, kind_of, prepared_arguments
from lgov_openai_agents.items import arguments_of, arguments_text


class FunctionArguments(ToolArguments):
    """The arguments text ``raw`` of one call of ``tool``, as the SDK or, for a tool of its own making, the program reads it."""

    def __init__(self, tool: FunctionTool, raw: str, tool_name: str) -> None:
        self.text, self._name, self._tool = raw, tool_name, tool
        self._made = function_schema_of(tool)
        super().__init__(arguments_of(raw))

    @property
    def schema(self) -> Any:
        """See `ToolArguments.schema`."""
        return None if self._made is None else self._made[0].params_pydantic_model

    def validate(self, raw: JSON, *, by_name: bool) -> tuple[Any, Mapping[str, Any]]:
        """See `ToolArguments.validate`."""
        if by_name:
            self.text = arguments_text(raw, self.text)
        if read_arguments(self.text) is None:
            raise Unreadable
        if self._made is None:
            self._check_closed(raw)
            return None, raw
        schema, prepare = self._made
        if by_name:
            native = prepared_arguments(schema, prepare, self.text, validate_by_name(self.schema, raw))
        else:
            native = prepare(self.text, self._name)
        return native, _by_parameter(schema, native)

    def _check_closed(self, raw: JSON) -> None:
        """Raises `Unreadable` for names that the schema does not have: who reads the text then may take them for others."""
        schema = self._tool.params_json_schema
        more = schema.keys() & {"additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"}
        is_closed = schema.get("additionalProperties") is False or not more
        unknown = raw.keys() - schema.get("properties", raw).keys()
        if is_closed and unknown and kind_of(self._tool) == "function":
            raise Unreadable(f"the tool has no argument {' and no argument '.join(sorted(unknown))}")


def _by_parameter(schema: Any, prepared: Any) -> JSON:
    """The values that the function gets, by the names of its parameters."""
    args, named = list(prepared.args), dict(prepared.kwargs)
    values: JSON = {}
    for number, (name, parameter) in enumerate(schema.signature.parameters.items()):
        if number == 0 and schema.takes_context:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            values[name], args = args, []
        elif parameter.kind is parameter.VAR_KEYWORD:
            values[name], named = named, {}
        elif name in named and (parameter.kind is parameter.KEYWORD_ONLY or not args):
            values[name] = named.pop(name)
        else:
            values[name] = args.pop(0)
    return values
