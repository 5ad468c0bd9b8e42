"""Acts that are evaluated with a model call: hosted tools that it offers, hand-offs and computer acts that it proposes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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

from lgov_core.instrumentation import Governor, arun_flow
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.instrumentation.tool_call import ToolReading, tool_flow
from lgov_core.types import Action, Decision, Point, ToolOutcome, new_id
from lgov_openai_agents import items
from lgov_openai_agents.model_request import ModelRequest

_MAKE_AGAIN = "NOT RUN: another call of the same reply was denied. Make this call again."

#: Items of a reply that were denied, each with the decision.
Denials = list[tuple[Any, Decision]]


async def evaluate_proposals(
    governor: Governor, request: ModelRequest, response: ModelResponse, agent: str | None, parent: LiveSpan | None
) -> tuple[Denials, ModelResponse]:
    """Evaluates what only this place can stop; returns what was denied, and the reply with transforms applied."""
    handoffs = {one.tool_name for one in request.handoffs}
    offered = {*handoffs, *(tool.name for tool in request.tools)}
    denied: Denials = []
    output: list[Any] = []
    for item in response.output:
        action = _proposal(item, handoffs)
        if action is not None:
            action = replace(action, agent=agent, framework=items.FRAMEWORK, native=item)
            governed = await arun_flow(tool_flow(governor, action, _permitted, _reading, parent=parent))
            if governed.result is None:
                denied.append((item, governed.decision))
            elif governed.result is not action.arguments and isinstance(item, ResponseFunctionToolCall):
                text = items.arguments_text(governed.result, item.arguments)
                item = item.model_copy(update={"arguments": text})
        elif isinstance(item, ResponseFunctionToolCall) and item.name not in offered:
            await governor.arecord(_unknown(item, agent))
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


async def _permitted(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
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
    found: list[Any] = []
    notes: list[Any] = []
    for item, sent in zip(response.output, response.to_input_items(), strict=True):
        if isinstance(item, ResponseFunctionToolCall):
            found += [sent, answer_to(item, texts.get(id(item), _MAKE_AGAIN))]
        elif id(item) in texts:
            notes.append({"role": "developer", "content": texts[id(item)]})
        elif not items.proposes_calls(replace(response, output=[item])):
            found.append(sent)
    return found + notes


def answer_to(call: ResponseFunctionToolCall, text: str) -> dict[str, Any]:
    """``text`` as the output of the call."""
    return {"type": "function_call_output", "call_id": call.call_id, "output": text}


def can_be_answered(response: ModelResponse) -> bool:
    """Whether a text is an answer to everything that the reply asks for."""
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


def _hosted_action(tool: Any) -> Action | None:
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


async def without_denied_tools(
    governor: Governor, request: ModelRequest, agent: str | None, span_id: str | None
) -> ModelRequest:
    """``request`` without the hosted tools that the policies deny, and with instructions that say so."""
    kept: list[Any] = []
    denials: list[str] = []
    gone: set[Any] = set()
    for tool in request.tools:
        action = _hosted_action(tool)
        if action is not None:
            action = replace(action, agent=agent, framework=items.FRAMEWORK, span_id=span_id)
            decision = await governor.adecide(action)
            if decision.blocks:
                await governor.arecord(ToolOutcome(action, "denied", decision=decision))
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
    """What a ``tool_choice`` may call the tool."""
    if isinstance(tool, HostedMCPTool):
        return {tool.name, "mcp", tool.tool_config.get("server_label")}
    return {tool.name, "web_search_preview"} if isinstance(tool, WebSearchTool) else {tool.name}
