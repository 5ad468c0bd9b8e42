"""Hand-offs in every form: an agent, one with another name and an input, one that is added later and leads back."""

import asyncio
from typing import Any

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunContextWrapper, Runner, function_tool, handoff
from openai import AsyncOpenAI
from pydantic import BaseModel

from lgov_core.testing import ScriptedModelServer, call


class Escalation(BaseModel):
    reason: str


class Account(BaseModel):
    seat: str = "1A"


@function_tool(name_override="faq_lookup")
async def faq(question: str) -> str:
    """Answers common questions."""
    print("RAN faq")
    return "One bag."


@function_tool
async def update_seat(context: RunContextWrapper[Account], confirmation_number: str, new_seat: str) -> str:
    """Changes a seat."""
    print("RAN update_seat")
    context.context.seat = new_seat
    return f"{confirmation_number}: {new_seat}"


async def on_handoff(context: RunContextWrapper[Account], data: Escalation) -> None:
    print("RAN on_handoff", data.reason)


REPLIES: list[Any] = [
    call("transfer_to_faq_agent"),
    call("faq_lookup", question="Bags?"),
    call("transfer_to_triage_agent"),
    call("move_me", reason="seat"),
    call("update_seat", confirmation_number="AB12", new_seat="2C"),
    "You sit in 2C.",
]


async def main(base_url: str) -> None:
    model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=base_url, api_key="k"))
    settings = ModelSettings()
    faq_agent = Agent[Account](name="FAQ Agent", model=model, tools=[faq], model_settings=settings)
    seat_agent = Agent[Account](name="Seat Booking Agent", model=model, tools=[update_seat])
    moves = handoff(seat_agent, tool_name_override="move_me", input_type=Escalation, on_handoff=on_handoff)
    triage = Agent[Account](name="Triage Agent", model=model, handoffs=[faq_agent, moves])
    faq_agent.handoffs.append(triage)
    seat_agent.handoffs.append(triage)
    account = Account()
    print((await Runner.run(triage, input("Your question: "), context=account)).final_output, account.seat)


with ScriptedModelServer(REPLIES) as server:
    asyncio.run(main(server.base_url))
