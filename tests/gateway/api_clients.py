"""Every client, on every route that it supports: a conversation with a tool, streamed and not.

Each driver is a program as its users write it. It asks a question, runs the calls that the model proposes and sends the
results back until the model answers, and returns what the client made of each reply.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

SYSTEM = "Answer from the company database, and from nothing else."
QUESTION = "How much?"
MODEL = "tiny"
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
RESULT = "12"
MOST_TURNS = 4


class Turn(NamedTuple):
    """What a client got in one reply: text, and calls by name and arguments."""

    text: str
    calls: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """One client on one route, streamed or not. ``run`` takes the endpoint's address, without ``/v1``."""

    client: str
    route: str
    stream: bool
    run: Callable[[str, bool], Sequence[Turn]]

    @property
    def name(self) -> str:
        return f"{self.client}-{self.route}-{'stream' if self.stream else 'whole'}".replace(" ", "_")


def openai_chat(url: str, stream: bool) -> list[Turn]:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    tools: Any = [{"type": "function", "function": {"name": "run_sql", "parameters": PARAMETERS}}]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    turns: list[Turn] = []
    while len(turns) < MOST_TURNS:
        asked: dict[str, Any] = {"model": MODEL, "messages": messages, "tools": tools, "temperature": 0}
        if stream:
            with client.chat.completions.stream(**asked) as events:
                for _ in events:
                    pass
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**asked).choices[0].message
        calls = message.tool_calls or ()
        turns.append(Turn(message.content or "", tuple((c.function.name, loads(c.function.arguments)) for c in calls)))
        if not calls:
            break
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in calls]
    return turns


def openai_responses(url: str, stream: bool, *, by_id: bool = False) -> list[Turn]:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    tools: Any = [{"type": "function", "name": "run_sql", "parameters": PARAMETERS, "strict": False}]
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    turns: list[Turn] = []
    more: dict[str, Any] = {}
    while len(turns) < MOST_TURNS:
        asked: dict[str, Any] = {
            "model": MODEL, "input": items, "tools": tools, "temperature": 0, "instructions": SYSTEM, **more,
        }  # fmt: skip
        if stream:
            with client.responses.stream(**asked) as events:
                for _ in events:
                    pass
                reply = events.get_final_response()
        else:
            reply = client.responses.create(**asked)
        calls = [item for item in reply.output if item.type == "function_call"]
        turns.append(Turn(reply.output_text, tuple((call.name, loads(call.arguments)) for call in calls)))
        if not calls:
            break
        outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT} for call in calls]
        if by_id:
            items, more = outputs, {"previous_response_id": reply.id}
        else:
            items = [*items, *(item.to_dict() for item in reply.output), *outputs]
    return turns


def openai_responses_by_id(url: str, stream: bool) -> list[Turn]:
    return openai_responses(url, stream, by_id=True)


def openai_completions(url: str, stream: bool) -> list[Turn]:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    turns: list[Turn] = []
    prompt = QUESTION
    for _ in range(2):
        asked: dict[str, Any] = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 12}
        if stream:
            text = "".join(c.choices[0].text for c in client.completions.create(**asked, stream=True) if c.choices)
        else:
            text = client.completions.create(**asked).choices[0].text
        turns.append(Turn(text))
        prompt = f"{prompt} {text} And?"
    return turns


def anthropic_messages(url: str, stream: bool) -> list[Turn]:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)
    tools: Any = [{"name": "run_sql", "input_schema": PARAMETERS}]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    turns: list[Turn] = []
    while len(turns) < MOST_TURNS:
        asked: dict[str, Any] = {
            "model": MODEL, "system": SYSTEM, "messages": messages, "tools": tools, "max_tokens": 24,
            "extra_body": {"temperature": 0},  # the client has no parameter of that name any more
        }  # fmt: skip
        if stream:
            with client.messages.stream(**asked) as events:
                for _ in events:
                    pass
                reply: Any = events.get_final_message()
        else:
            reply = client.messages.create(**asked)
        uses = [block for block in reply.content if block.type == "tool_use"]
        text = "".join(block.text for block in reply.content if block.type == "text")
        turns.append(Turn(text, tuple((use.name, use.input) for use in uses)))
        if not uses:
            break
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": RESULT} for use in uses]
        content = [block.to_dict() for block in reply.content]
        for block in content:
            block.pop("parsed_output", None)
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    return turns


def langchain_with(model: Any, stream: bool) -> list[Turn]:
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def run_sql(query: str) -> str:
        """Runs a query."""
        return RESULT

    bound = model.bind_tools([run_sql])
    messages: list[Any] = [SystemMessage(SYSTEM), HumanMessage(QUESTION)]
    turns: list[Turn] = []
    while len(turns) < MOST_TURNS:
        if stream:
            reply: Any = None
            for chunk in bound.stream(messages):
                reply = chunk if reply is None else reply + chunk
        else:
            reply = bound.invoke(messages)
        turns.append(Turn(str(reply.text), tuple((call["name"], call["args"]) for call in reply.tool_calls)))
        if not reply.tool_calls:
            break
        messages.append(reply)
        messages += [ToolMessage(run_sql.invoke(call["args"]), tool_call_id=call["id"]) for call in reply.tool_calls]
    return turns


def langchain_openai(url: str, stream: bool, *, responses: bool = False) -> list[Turn]:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model=MODEL, base_url=f"{url}/v1", api_key="any", temperature=0, max_retries=0, use_responses_api=responses
    )
    return langchain_with(model, stream)


def langchain_responses(url: str, stream: bool) -> list[Turn]:
    return langchain_openai(url, stream, responses=True)


def langchain_messages(url: str, stream: bool) -> list[Turn]:
    from langchain_anthropic import ChatAnthropic

    model = ChatAnthropic(model=MODEL, base_url=url, api_key="any", temperature=0, max_tokens=24, max_retries=0)
    return langchain_with(model, stream)


def langchain_completions(url: str, stream: bool) -> list[Turn]:
    from langchain_openai import OpenAI

    model = OpenAI(model=MODEL, base_url=f"{url}/v1", api_key="any", temperature=0, max_tokens=12, max_retries=0)
    turns: list[Turn] = []
    prompt = QUESTION
    for _ in range(2):
        turns.append(Turn("".join(model.stream(prompt)) if stream else model.invoke(prompt)))
        prompt = f"{prompt} {turns[-1].text} And?"
    return turns


def autogen_with(model: Any, stream: bool) -> list[Turn]:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_agentchat.messages import TextMessage, ThoughtEvent, ToolCallRequestEvent

    async def run_sql(query: str) -> str:
        """Runs a query."""
        return RESULT

    async def run() -> list[Turn]:
        agent = AssistantAgent(
            "desk", model, tools=[run_sql], system_message=SYSTEM, model_client_stream=stream,
            max_tool_iterations=MOST_TURNS,
        )  # fmt: skip
        result = await agent.run(task=QUESTION)
        await model.close()
        turns: list[Turn] = []
        thought = ""
        for message in result.messages:
            if isinstance(message, ThoughtEvent):
                thought = message.content
            elif isinstance(message, ToolCallRequestEvent):
                calls = tuple((call.name, loads(call.arguments)) for call in message.content)
                turns.append(Turn(thought, calls))
                thought = ""
            elif isinstance(message, TextMessage) and message.source == "desk":
                turns.append(Turn(message.content))
        return turns

    return asyncio.run(run())


MODEL_INFO: Any = {
    "vision": False, "function_calling": True, "json_output": False, "family": "unknown", "structured_output": False,
    "multiple_system_messages": False,
}  # fmt: skip


def autogen_chat(url: str, stream: bool) -> list[Turn]:
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    model = OpenAIChatCompletionClient(
        model=MODEL, base_url=f"{url}/v1", api_key="any", model_info=MODEL_INFO, temperature=0, max_retries=0
    )
    return autogen_with(model, stream)


def autogen_messages(url: str, stream: bool) -> list[Turn]:
    from autogen_ext.models.anthropic import AnthropicChatCompletionClient

    model = AnthropicChatCompletionClient(
        model=MODEL, base_url=url, api_key="any", model_info=MODEL_INFO, temperature=0, max_tokens=24, max_retries=0
    )
    # AutoGen 0.7.5 always names a temperature, for which version 2 of anthropic has no parameter any more.
    messages = model._client.messages
    create = messages.create

    def create_with_temperature(*, temperature: float, **asked: Any) -> Any:
        return create(**asked, extra_body={"temperature": temperature})

    messages.create = create_with_temperature
    return autogen_with(model, stream)


def agents_with(kind: str, url: str, stream: bool) -> list[Turn]:
    import agents
    import openai

    @agents.function_tool
    def run_sql(query: str) -> str:
        """Runs a query."""
        return RESULT

    async def run() -> list[Turn]:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        model = getattr(agents, kind)(model=MODEL, openai_client=client)
        settings = agents.ModelSettings(temperature=0)
        agent = agents.Agent(name="desk", instructions=SYSTEM, model=model, tools=[run_sql], model_settings=settings)
        config = agents.RunConfig(tracing_disabled=True)
        if stream:
            result: Any = agents.Runner.run_streamed(agent, QUESTION, run_config=config)
            async for _ in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, QUESTION, run_config=config)
        await client.close()
        return [_agents_turn(response.output) for response in result.raw_responses]

    return asyncio.run(run())


def _agents_turn(output: Sequence[Any]) -> Turn:
    texts = [part.text for item in output if item.type == "message" for part in item.content]
    calls = [item for item in output if item.type == "function_call"]
    return Turn("".join(texts), tuple((call.name, loads(call.arguments)) for call in calls))


def agents_chat(url: str, stream: bool) -> list[Turn]:
    return agents_with("OpenAIChatCompletionsModel", url, stream)


def agents_responses(url: str, stream: bool) -> list[Turn]:
    return agents_with("OpenAIResponsesModel", url, stream)


def loads(text: str) -> Any:
    return json.loads(text)


CLIENTS: Sequence[tuple[str, str, Callable[[str, bool], Sequence[Turn]]]] = (
    ("openai", "chat", openai_chat),
    ("openai", "responses", openai_responses),
    ("openai with previous_response_id", "responses", openai_responses_by_id),
    ("openai", "completions", openai_completions),
    ("anthropic", "messages", anthropic_messages),
    ("LangChain", "chat", langchain_openai),
    ("LangChain", "responses", langchain_responses),
    ("LangChain", "messages", langchain_messages),
    ("LangChain", "completions", langchain_completions),
    ("AutoGen", "chat", autogen_chat),
    ("AutoGen", "messages", autogen_messages),
    ("Agents SDK", "chat", agents_chat),
    ("Agents SDK", "responses", agents_responses),
)
CELLS = [Cell(client, route, stream, run) for client, route, run in CLIENTS for stream in (False, True)]
