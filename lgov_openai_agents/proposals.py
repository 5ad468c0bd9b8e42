"""The arguments of a model call of the SDK, and the acts that are judged with it.

These are the hosted tools that it offers, and the hand-offs and acts on a computer that its reply proposes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agents import (
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ModelResponse,
    ShellTool,
    WebSearchTool,
)
from openai.types.responses import ResponseFunctionToolCall

from lgov_core.instrumentation import Flow, Governor
from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.instrumentation.model_call import reply_limit
from lgov_core.instrumentation.tool_call import (
    GovernedToolCall,
    ToolReading,
    denied_outcome,
    refuse_arguments,
    tool_flow,
)
from lgov_core.scope import current_scope
from lgov_core.types import Action, Decision, Point, ToolOutcome, new_id
from lgov_core.wire.turns import read_arguments
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
        values = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
        own: dict[str, Any] = {name: values.pop(name, None) for name in _NAMES[:7]}
        own.update(tools=own["tools"] or [], handoffs=own["handoffs"] or [])
        return cls(**own, rest=values)

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
        """True where the server keeps the conversation, so that the request holds only what is new."""
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
            {
                "name": handoff.tool_name,
                "description": handoff.tool_description,
                "params_json_schema": handoff.input_json_schema,
            }
            for handoff in self.handoffs
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
    """The model's name for itself, or the name of its class."""
    name = getattr(model, "model", None)
    return name if isinstance(name, str) and name else type(model).__name__


_MAKE_AGAIN = "NOT RUN: another call of the same reply was denied. Make this call again."

#: Items of a reply that were denied, each with the decision.
Denials = list[tuple[Any, Decision]]


def judge_proposals_flow(
    governor: Governor, request: ModelRequest, response: ModelResponse, agent: str | None, parent: LiveSpan | None
) -> Flow[tuple[Denials, ModelResponse]]:
    """Judges what only this place can stop; returns what was denied, and the reply with transforms applied."""
    handoffs = {handoff.tool_name for handoff in request.handoffs}
    offered = {*handoffs, *(tool.name for tool in request.tools)}
    denied: Denials = []
    output: list[Any] = []
    for item in response.output:
        action = _proposal(item, handoffs)
        if action is not None:
            action = replace(action, agent=agent, framework=items.FRAMEWORK, native=item)
            if _is_unreadable(governor, item):
                action = action.changed(operation_id=new_id("op"))
                denial = refuse_arguments(governor, action)
                yield from governor.record_flow(denied_outcome(action, denial))
                denied.append((item, denial))
                output.append(item)
                continue
            governed = yield from tool_flow(GovernedToolCall(governor, action, parent), _permitted, _reading)
            if governed.result is None:
                denied.append((item, governed.decision))
            elif governed.result is not action.arguments and isinstance(item, ResponseFunctionToolCall):
                text = items.arguments_text(governed.result, item.arguments)
                item = item.model_copy(update={"arguments": text})
        elif isinstance(item, ResponseFunctionToolCall) and item.name not in offered:
            yield from governor.record_flow(_unknown(item, agent))
        output.append(item)
    return denied, replace(response, output=output)


def _unknown(call: ResponseFunctionToolCall, agent: str | None) -> ToolOutcome:
    """The outcome of a call that the SDK cannot run, for it has no tool of that name."""
    action = Action(
        Point.PRE_TOOL_CALL,
        name=call.name,
        arguments=items.arguments_of(call.arguments),
        call_id=call.call_id,
        agent=agent,
        framework=items.FRAMEWORK,
        native=call,
        operation_id=new_id("op"),
    )
    return ToolOutcome(action, "unknown_tool", error_type="UnknownTool", error=f"no tool {call.name} was offered")


def _is_unreadable(governor: Governor, item: Any) -> bool:
    """Returns whether programs may read the arguments of a proposal differently, and a policy would judge them."""
    text = getattr(item, "arguments", None)
    return isinstance(text, str) and read_arguments(text) is None and governor.evaluates(Point.PRE_TOOL_CALL)


def _permitted(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The outcome of a proposal is that it goes on, with these arguments."""
    return arguments


def _reading(_: Any) -> ToolReading:
    return ToolReading("")


def _proposal(item: Any, handoffs: set[str]) -> Action | None:
    """The act that ``item`` proposes, if only the model's reply can be stopped at it."""
    kind = getattr(item, "type", None)
    if kind == "function_call" and item.name in handoffs and isinstance(item, ResponseFunctionToolCall):
        arguments = items.arguments_of(item.arguments)
        return Action(Point.PRE_TOOL_CALL, name=item.name, kind="handoff", arguments=arguments, call_id=item.call_id)
    if kind == "mcp_approval_request":  # of a hosted MCP tool that the server asks about
        arguments = items.arguments_of(item.arguments)
        return Action(Point.PRE_TOOL_CALL, name=item.name, kind="mcp", arguments=arguments, call_id=item.id)
    if kind == "computer_call":
        plain = item.model_dump(exclude_none=True)
        acts = plain.get("actions") or [plain.get("action") or {}]
        return Action(Point.PRE_TOOL_CALL, name="computer", arguments={"actions": acts}, call_id=plain.get("call_id"))
    return None


def answered(response: ModelResponse, denials: Denials) -> list[Any]:
    """The reply and the answers to it, as items for the next request."""
    texts = {id(item): decision.denial_message() for item, decision in denials}
    exchange: list[Any] = []
    notes: list[Any] = []
    for item, sent in zip(response.output, response.to_input_items(), strict=True):
        if isinstance(item, ResponseFunctionToolCall):
            exchange += [sent, answer_to(item, texts.get(id(item), _MAKE_AGAIN))]
        elif id(item) in texts:
            notes.append({"role": "developer", "content": texts[id(item)]})
        elif not items.proposes_calls(replace(response, output=[item])):
            exchange.append(sent)
    return exchange + notes


def answer_to(call: ResponseFunctionToolCall, text: str) -> dict[str, Any]:
    """``text`` as the output of the call."""
    return {"type": "function_call_output", "call_id": call.call_id, "output": text}


def can_be_answered(response: ModelResponse) -> bool:
    """Returns whether a text is an answer to everything that the reply asks for."""
    return all(
        isinstance(item, ResponseFunctionToolCall) or not items.proposes_calls(replace(response, output=[item]))
        for item in response.output
    )


def next_request(request: ModelRequest, response: ModelResponse, exchange: list[Any], denials: Denials) -> ModelRequest:
    """The request that tells the model what was denied (``exchange``, as `answered` made it), and asks it again."""
    choice = getattr(request.model_settings, "tool_choice", None)
    if isinstance(choice, str) and choice in {getattr(item, "name", None) for item, _ in denials}:
        request = request.without_choice()
    if request.is_kept_by_server and can_be_answered(response):
        answers = [one for one in exchange if one.get("type") == "function_call_output"]
        if request.conversation is not None:
            return replace(request, input=answers)
        if response.response_id is not None:
            rest = {**request.rest, "previous_response_id": response.response_id}
            return replace(request, input=answers, rest=rest)
    return replace(request, input=[*items.as_list(request.input), *exchange])


# ---------------------------------------------------------------------- hosted tools

_HOSTED = (CodeInterpreterTool, FileSearchTool, HostedMCPTool, ImageGenerationTool, WebSearchTool)


def hosted_action(tool: Any) -> Action | None:
    """The action of offering ``tool``, which runs at the provider; None for a tool that runs here."""
    if isinstance(tool, HostedMCPTool):
        config: Any = tool.tool_config
        arguments = {
            key: config[key] for key in ("server_label", "server_url", "connector_id", "allowed_tools") if key in config
        }
        return Action(Point.PRE_TOOL_CALL, name=tool.name, kind="hosted", arguments=arguments, native=tool)
    if isinstance(tool, _HOSTED) or (isinstance(tool, ShellTool) and tool.executor is None):
        return Action(Point.PRE_TOOL_CALL, name=tool.name, kind="hosted", native=tool)
    return None


def without_denied_tools_flow(
    governor: Governor, request: ModelRequest, agent: str | None, span_id: str | None
) -> Flow[ModelRequest]:
    """``request`` without the hosted tools that the policies deny, and with instructions that say so."""
    kept: list[Any] = []
    denials: list[str] = []
    gone: set[Any] = set()
    for tool in request.tools:
        action = hosted_action(tool)
        if action is not None:
            action = replace(action, agent=agent, framework=items.FRAMEWORK, span_id=span_id)
            decision = yield from governor.decision_flow(action)
            if decision.blocks:
                yield from governor.record_flow(ToolOutcome(action, "denied", decision=decision))
                denials.append(f"{tool.name}: {decision.denial_message()}")
                gone |= _choices_of(tool)
                continue
        kept.append(tool)
    if not denials:
        return request
    instructions = "\n".join([request.system_instructions or "", *denials]).strip()
    choice = getattr(request.model_settings, "tool_choice", None)
    # A server refuses a choice of what it is not offered.
    if getattr(choice, "server_label", choice) in gone or (choice == "required" and not kept and not request.handoffs):
        request = request.without_choice()
    return replace(request, tools=kept, system_instructions=instructions)


def _choices_of(tool: Any) -> set[Any]:
    """The names that a ``tool_choice`` may call the tool."""
    if isinstance(tool, HostedMCPTool):
        return {tool.name, "mcp", tool.tool_config.get("server_label")}
    return {tool.name, "web_search_preview"} if isinstance(tool, WebSearchTool) else {tool.name}
