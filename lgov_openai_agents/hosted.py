"""Hosted tools, which run at the provider: a denied one is left out of the request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agents import (
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ShellTool,
    WebSearchTool,
)

from lgov_core.instrumentation import Governor
from lgov_core.types import Action, Point, ToolOutcome
from lgov_openai_agents.items import FRAMEWORK
from lgov_openai_agents.model_request import ModelRequest

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


async def without_denied_tools(
    governor: Governor, request: ModelRequest, agent: str | None, span_id: str | None
) -> ModelRequest:
    """``request`` without the hosted tools that the policies deny, and with instructions that say so."""
    kept: list[Any] = []
    denials: list[str] = []
    gone: set[Any] = set()
    for tool in request.tools:
        action = hosted_action(tool)
        if action is not None:
            action = replace(action, agent=agent, framework=FRAMEWORK, span_id=span_id)
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
