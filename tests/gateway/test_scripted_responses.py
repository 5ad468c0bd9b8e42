"""The scripted model behind the Responses API, asked by the real client and by the real Agents SDK."""

from __future__ import annotations

import json

import httpx
import openai
import pytest
from pydantic import BaseModel

from lgov_core.testing import ScriptedModelServer, ScriptedReply, call

BOTH = ScriptedReply("I will look.", tool_calls=call("look", where="Lyon").tool_calls)

ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    *["response.output_text.delta"] * 3,
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.output_item.added",
    *["response.function_call_arguments.delta"] * 2,
    "response.function_call_arguments.done",
    "response.output_item.done",
    "response.completed",
]


class City(BaseModel):
    name: str
    people: int


def client(server: ScriptedModelServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="secret", max_retries=0)


def test_a_response_has_its_text_its_calls_and_its_usage():
    with ScriptedModelServer([BOTH, "done"]) as server:
        first = client(server).responses.create(model="m", input="hi", store=False)
        outputs = [{"type": "function_call_output", "call_id": first.output[1].call_id, "output": "rain"}]
        second = client(server).responses.create(model="m", input=outputs, previous_response_id=first.id)
    assert first.id.startswith("resp_")
    assert first.id != second.id
    assert (first.status, first.output_text, second.output_text) == ("completed", "I will look.", "done")
    assert (first.output[1].name, json.loads(first.output[1].arguments)) == ("look", {"where": "Lyon"})
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens > 0
    assert second.previous_response_id == first.id
    assert server.requests[0].path == "/v1/responses"
    assert server.requests[1].body["input"] == outputs


def test_the_stream_has_the_events_of_the_api_in_their_order():
    with ScriptedModelServer([BOTH]) as server:
        events = list(client(server).responses.create(model="m", input="hi", stream=True))
    assert [event.type for event in events] == ORDER
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == "I will look."
    parts = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    last = events[-1].response
    assert "".join(parts) == last.output[1].arguments == '{"where": "Lyon"}'
    assert events[0].response.id == last.id
    assert (events[0].response.status, events[0].response.usage, last.status) == ("in_progress", None, "completed")


def test_the_helpers_of_the_client_read_it():
    answer = '{"name": "Lyon", "people": 520000}'
    with ScriptedModelServer([BOTH, answer]) as server:
        with client(server).responses.stream(model="m", input="hi") as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_response()
        parsed = client(server).responses.parse(model="m", input="hi", text_format=City)
    assert kinds == set(ORDER)
    assert final.output[1].parsed_arguments is None
    assert (final.output_text, final.output[1].name) == ("I will look.", "look")
    assert parsed.output_parsed == City(name="Lyon", people=520000)


def test_errors_and_what_is_cut_off():
    replies = [
        ScriptedReply("too much", status=429, headers={"x-should-retry": "false"}),
        ScriptedReply("cut short", finish_reason="length"),
        ScriptedReply("one two three", cut_at=5),
    ]
    with ScriptedModelServer(replies) as server:
        with pytest.raises(openai.RateLimitError, match="too much"):
            client(server).responses.create(model="m", input="hi")
        short = client(server).responses.create(model="m", input="hi")
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream("POST", f"{server.base_url}/responses", json={"input": "hi", "stream": True}) as broken,
        ):
            list(broken.iter_lines())
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_script_that_ran_out_says_what_was_asked():
    def run() -> None:
        with ScriptedModelServer([]) as server, pytest.raises(openai.BadRequestError):
            client(server).responses.create(model="m", input="the question")

    with pytest.raises(Exception, match="the question"):
        run()


async def test_the_agents_sdk_reads_it_whole_and_streamed():
    agents = pytest.importorskip("agents")
    looked: list[str] = []

    @agents.function_tool
    def look(where: str) -> str:
        """Looks."""
        looked.append(where)
        return "rain"

    config = agents.RunConfig(tracing_disabled=True)
    with ScriptedModelServer([BOTH, "It rains.", BOTH, "It still rains."]) as server:
        asks = openai.AsyncOpenAI(base_url=server.base_url, api_key="secret", max_retries=0)
        model = agents.OpenAIResponsesModel(model="m", openai_client=asks)
        agent = agents.Agent(name="weather", model=model, tools=[look])
        whole = await agents.Runner.run(agent, "hi", run_config=config)
        streamed = agents.Runner.run_streamed(agent, "hi", run_config=config)
        kinds = [event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"]
        await asks.close()
    assert (whole.final_output, streamed.final_output) == ("It rains.", "It still rains.")
    assert looked == ["Lyon", "Lyon"]
    assert kinds[: len(ORDER)] == ORDER
    assert server.requests[1].body["input"][-1]["output"] == "rain"
