"""The arguments of one model call of the SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.instrumentation.model_call import reply_limit
from lgov_core.scope import current_scope
from lgov_openai_agents import items
from lgov_openai_agents._internals import base_url_of

_NAMES = (
    "system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing",
    "previous_response_id", "conversation_id", "prompt",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The arguments of one ``Model.get_response``, by their names in the SDK's interface; ``rest`` are the others."""

    system_instructions: str | None = None
    input: Any = None
    model_settings: Any = None
    tools: Sequence[Any] = ()
    output_schema: Any = None
    handoffs: Sequence[Any] = ()
    tracing: Any = None
    rest: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ModelRequest:
        """Reads the arguments of a call, positional or not."""
        given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
        own: dict[str, Any] = {name: given.pop(name, None) for name in _NAMES[:7]}
        own.update(tools=own["tools"] or [], handoffs=own["handoffs"] or [])
        return cls(**own, rest=given)

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments to pass by position."""
        return tuple(getattr(self, name) for name in _NAMES[:7])

    @property
    def conversation(self) -> str | None:
        """The conversation that the server keeps for this request."""
        return self.rest.get("conversation_id")

    @property
    def previous_response(self) -> str | None:
        """The reply on the server that this request goes on from."""
        return self.rest.get("previous_response_id")

    @property
    def is_kept_by_server(self) -> bool:
        """Whether the server keeps the conversation, so that the request holds only what is new."""
        return self.previous_response is not None or self.conversation is not None

    def messages(self) -> list[dict[str, Any]]:
        """The instructions and the input as mappings that policies read."""
        messages = [items.as_mapping(item) for item in items.as_list(self.input)]
        if self.system_instructions:
            messages.insert(0, {"role": "system", "content": self.system_instructions})
        return messages

    def definitions(self) -> list[dict[str, Any]]:
        """The definition of each tool and each hand-off in the request, as JSON values."""
        fields = ("type", "name", "description", "params_json_schema")
        tools = [{field: getattr(tool, field) for field in fields if hasattr(tool, field)} for tool in self.tools]
        return tools + [
            {"name": one.tool_name, "description": one.tool_description, "params_json_schema": one.input_json_schema}
            for one in self.handoffs
        ]

    def reply_limit(self) -> dict[str, int]:
        """The limit on the reply's tokens as an argument of the call, if there is one."""
        return reply_limit(getattr(self.model_settings, "max_tokens", None))

    def with_headers(self, model: Any, agent: str | None) -> ModelRequest:
        """The request with the headers that tell our own endpoint whose call it is."""
        if (scope := current_scope()) is None or self.model_settings is None:
            return self
        headers = endpoint_headers(base_url_of(model), scope, agent)
        if not headers:
            return self
        merged = {**(self.model_settings.extra_headers or {}), **headers}
        return replace(self, model_settings=replace(self.model_settings, extra_headers=merged))

    def without_choice(self) -> ModelRequest:
        """The request without a ``tool_choice``."""
        return replace(self, model_settings=replace(self.model_settings, tool_choice=None))


def model_name(model: Any) -> str:
    """What the model calls itself, or the name of its class."""
    name = getattr(model, "model", None)
    return name if isinstance(name, str) and name else type(model).__name__
