"""Agents that are tools of another, a guardrail that is an agent, and a tool with a free form."""

import asyncio
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    input_guardrail,
)
from openai import AsyncOpenAI

from lgov_core.testing import ScriptedModelServer, call


@function_tool(strict_mode=False)
def pack(items: dict[str, int], box: str | None = None) -> str:
    """Packs a parcel."""
    print("RAN pack")
    return f"{items} in {box}"


@input_guardrail
async def polite(context: Any, agent: Any, text: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="!!" in str(text))


REPLIES: list[Any] = [
    call("translate_to_spanish", input="Good morning"),
    "Buenos dias",
    call("italian_agent", input="Good morning"),
    call("pack", items={"cup": 2}),
    "Buon giorno, in a parcel",
    "Both are done.",
]


async def main(base_url: str) -> None:
    model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=base_url, api_key="k"))
    spanish = Agent(name="spanish_agent", instructions="Spanish.", model=model)
    italian = Agent(name="italian agent", instructions="Italian.", model=model, tools=[pack])
    orchestrator = Agent(
        name="orchestrator",
        model=model,
        input_guardrails=[polite],
        tools=[
            spanish.as_tool(tool_name="translate_to_spanish", tool_description="Translates."),
            italian.as_tool(tool_name=None, tool_description="Translates."),
        ],
    )
    print((await Runner.run(orchestrator, "Good morning, in both")).final_output)


with ScriptedModelServer(REPLIES) as server:
    asyncio.run(main(server.base_url))
