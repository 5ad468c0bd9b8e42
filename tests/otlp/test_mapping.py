"""Spans of other instrumentations in lgov's names: on what they really sent (samples/README.md), and on what they used to."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lgov_core.trace import semconv
from lgov_core.trace.attribute_table import ROWS
from lgov_core.trace.canonical import FORMS, canonical, states_result
from lgov_core.trace.otlp_http import decode_traces
from lgov_core.types import Span, SpanEvent

SAMPLES = Path(__file__).parent / "samples"
PAGE = Path(__file__).parents[2] / "lgov_core/trace/MAPPING.md"
NAMES = sorted(path.stem for path in SAMPLES.glob("*.jsonl"))
QUESTION = "What is the weather in Oslo?"


def sample(name: str) -> list[Span]:
    lines = (SAMPLES / f"{name}.jsonl").read_bytes().splitlines()
    return [span for line in lines for span in decode_traces(line)]


def of(spans: list[Span], operation: str) -> list[Span]:
    found = [canonical(span) for span in spans]
    return sorted(
        (span for span in found if span.attributes.get(semconv.OPERATION) == operation),
        key=lambda span: span.started_at,
    )


def said(span: Span, *names: str) -> list[Any]:
    return [span.attributes.get(name) for name in names]


CHATS = [name for name in NAMES if name != "agentlightning_rewards"]


@pytest.mark.parametrize("name", CHATS)
def test_both_model_calls_are_there_with_what_was_said(name: str) -> None:
    first, second = of(sample(name), semconv.CHAT)
    for call in (first, second):
        assert said(call, semconv.REQUEST_MODEL) == ["scripted"]
        assert said(call, semconv.PROVIDER)[0] in ("openai", None)
        assert all(type(count) is int for count in said(call, semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS))
    messages = json.loads(str(second.attributes[semconv.INPUT_MESSAGES]))
    assert QUESTION in [message.get("content") for message in messages]
    (proposed,) = [call for message in messages for call in message.get("tool_calls", ())]
    assert proposed["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    (answered,) = [message for message in messages if message["role"] == "tool"]
    assert (answered["content"], answered["tool_call_id"]) == ("rain in Oslo", proposed["id"])
    (reply,) = json.loads(str(second.attributes[semconv.OUTPUT_MESSAGES]))
    assert (reply["role"], reply["content"]) == ("assistant", "It is raining in Oslo.")
    if name != "agentops_openai":  # it writes the calls into spans of their own
        assert said(first, semconv.TOOL_CALL_IDS) == [[proposed["id"]]]
    assert said(second, semconv.TOOL_CALL_IDS) == [None]


@pytest.mark.parametrize(
    "name", ["openinference_openai", "openinference_langchain", "openllmetry_openai", "agentops_openai"]
)
def test_the_id_of_the_reply_is_found(name: str) -> None:
    """The others do not send it: such a span cannot be joined with the endpoint's record."""
    ids = [span.attributes.get(semconv.RESPONSE_ID) for span in of(sample(name), semconv.CHAT)]
    raw = (SAMPLES / f"{name}.jsonl").read_text()
    assert len(set(ids)) == 2
    assert all(isinstance(found, str) and found.startswith("chatcmpl_") and found in raw for found in ids)


@pytest.mark.parametrize(
    ("name", "reasons", "temperature"),
    [
        ("openinference_openai", [["tool_calls"], ["stop"]], 0.5),
        ("openinference_langchain", [["tool_calls"], ["stop"]], 0.5),
        ("openllmetry_openai", [["tool_call"], ["stop"]], 0.5),
        ("agentops_openai", [["tool_calls"], ["stop"]], 0.5),
        ("openinference_openai_agents", [None, None], None),
    ],
)
def test_how_the_model_was_asked_and_why_it_stopped(name: str, reasons: list[Any], temperature: float | None) -> None:
    found = [said(span, semconv.FINISH_REASONS, semconv.REQUEST_TEMPERATURE) for span in of(sample(name), semconv.CHAT)]
    assert found == [[reason, temperature] for reason in reasons]


@pytest.mark.parametrize(
    ("name", "call_ids", "arguments"),
    [
        ("openinference_langchain", 1, "Oslo"),
        ("openinference_openai_agents", 0, '{"city": "Oslo"}'),
        ("openinference_autogen", 1, '{"city": "Oslo"}'),
        ("agentops_openai", 0, '{"args": ["Oslo"], "kwargs": {}}'),
    ],
)
def test_the_tool_call(name: str, call_ids: int, arguments: str) -> None:
    tools = of(sample(name), semconv.EXECUTE_TOOL)
    assert {span.attributes[semconv.TOOL_NAME] for span in tools} == {"get_weather"}
    assert arguments in [span.attributes.get(semconv.TOOL_ARGUMENTS) for span in tools]
    assert "rain in Oslo" in [span.attributes.get(semconv.TOOL_RESULT) for span in tools]
    ids = [found for span in tools if (found := span.attributes.get(semconv.TOOL_CALL_ID))]
    assert len(ids) == call_ids
    if ids and name != "openinference_autogen":
        assert ids == of(sample(name), semconv.CHAT)[0].attributes[semconv.TOOL_CALL_IDS]


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("openinference_langchain", semconv.CHAT),
        ("openinference_openai_agents", semconv.INVOKE_AGENT),
        ("openinference_autogen", semconv.INVOKE_AGENT),
        ("agentops_openai", semconv.INVOKE_AGENT),
    ],
)
def test_the_agent_is_named(name: str, where: str) -> None:
    assert "forecaster" in [span.attributes.get(semconv.AGENT_NAME) for span in of(sample(name), where)]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_span_said_itself_stays(name: str) -> None:
    for span in sample(name):
        found = canonical(span)
        assert (found.span_id, found.claimed) == (span.span_id, True)
        changed = {key for key, value in span.attributes.items() if found.attributes[key] != value}
        assert changed <= {semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES}
        assert canonical(found) == found


def test_the_conversation() -> None:
    found = {canonical(span).attributes.get(semconv.CONVERSATION_ID) for span in sample("openinference_langchain")}
    assert found == {"session-1"}


# ---------------------------------------------------------------------- names that samples cannot show any more


def claim(attributes: dict[str, Any], *events: SpanEvent, name: str = "s") -> Span:
    return Span(name, "00000000000000a1", 1.0, 2.0, attributes, "r", 1, events=events, claimed=True)


def test_the_first_gen_ai_conventions_with_messages_in_events() -> None:
    span = claim(
        {"gen_ai.system": "OpenAI", "gen_ai.operation.name": "chat", "gen_ai.usage.prompt_tokens": "7"},
        SpanEvent("gen_ai.content.prompt", 1.0, {"gen_ai.prompt": '[{"role": "user", "content": "hello"}]'}),
        SpanEvent("gen_ai.content.completion", 2.0, {"gen_ai.completion": '{"role": "assistant", "content": "hi"}'}),
    )
    found = canonical(span).attributes
    assert (found[semconv.PROVIDER], found[semconv.INPUT_TOKENS]) == ("openai", 7)
    assert json.loads(str(found[semconv.INPUT_MESSAGES])) == [{"role": "user", "content": "hello"}]
    assert json.loads(str(found[semconv.OUTPUT_MESSAGES])) == [{"role": "assistant", "content": "hi"}]


def test_an_event_for_each_message() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    span = claim(
        {"gen_ai.system": "openai"},
        SpanEvent("gen_ai.system.message", 1.0, {"content": "be brief"}),
        SpanEvent("gen_ai.user.message", 1.0, {"content": "hello"}),
        SpanEvent(
            "gen_ai.choice",
            2.0,
            {
                "index": 0,
                "finish_reason": "length",
                "message": json.dumps({"role": "assistant", "tool_calls": [call]}),
            },
        ),
    )
    found = canonical(span).attributes
    assert found[semconv.FINISH_REASONS] == ["length"]
    roles = [message["role"] for message in json.loads(str(found[semconv.INPUT_MESSAGES]))]
    assert roles == ["system", "user"]
    assert found[semconv.TOOL_CALL_IDS] == ["c1"]


def test_old_openllmetry() -> None:
    found = canonical(
        claim(
            {
                "llm.request.type": "chat",
                "gen_ai.prompt.0.role": "user",
                "gen_ai.prompt.0.content": "hello",
                "gen_ai.prompt.10.role": "user",
                "gen_ai.prompt.10.content": "last",
                "gen_ai.prompt.2.role": "tool",
                "gen_ai.prompt.2.content": "r",
                "gen_ai.completion.0.role": "assistant",
                "gen_ai.completion.0.finish_reason": "tool_calls",
                "gen_ai.completion.0.tool_calls.0.id": "c1",
                "gen_ai.completion.0.tool_calls.0.name": "f",
                "gen_ai.completion.0.tool_calls.0.arguments": '{"a": 1}',
                "traceloop.association.properties.session_id": "conversation",
            }
        )
    ).attributes
    assert found[semconv.OPERATION] == semconv.CHAT
    assert [message["content"] for message in json.loads(str(found[semconv.INPUT_MESSAGES]))] == ["hello", "r", "last"]
    assert (found[semconv.TOOL_CALL_IDS], found[semconv.FINISH_REASONS]) == (["c1"], ["tool_calls"])
    assert found[semconv.CONVERSATION_ID] == "conversation"
    tool = canonical(
        claim({"traceloop.span.kind": "tool", "traceloop.entity.name": "f", "traceloop.entity.input": "{}"})
    )
    assert said(tool, semconv.OPERATION, semconv.TOOL_NAME, semconv.TOOL_ARGUMENTS) == ["execute_tool", "f", "{}"]


def test_token_ids_as_agent_lightning_and_vllm_write_them() -> None:
    span = claim(
        {
            "prompt_token_ids": [1, 2],
            "response_token_ids": [3],
            "logprobs.content": '[{"token": "a", "logprob": -0.5}]',
        }
    )
    names = (semconv.PROMPT_TOKEN_IDS, semconv.RESPONSE_TOKEN_IDS, semconv.RESPONSE_LOGPROBS)
    assert said(canonical(span), *names) == [[1, 2], [3], [-0.5]]
    span = claim({"llm.hosted_vllm.prompt_token_ids": "[1, 2]", "llm.hosted_vllm.response_token_ids": "[[3, 4], [5]]"})
    assert said(canonical(span), *names) == [[1, 2], [3, 4], None]
    raw = {
        "id": "r",
        "prompt_token_ids": [1],
        "choices": [{"token_ids": [2], "logprobs": {"content": [{"logprob": -1}]}}],
    }
    span = claim({"openinference.span.kind": "LLM", "output.value": json.dumps(raw)})
    assert said(canonical(span), semconv.RESPONSE_ID, *names) == ["r", [1], [2], [-1]]
    assert said(canonical(claim({"prompt_token_ids": ["x"], "response_token_ids": "no"})), *names) == [None, None, None]


def test_names_of_lgov_count_before_others() -> None:
    found = canonical(claim({semconv.RESPONSE_ID: "ours", "gen_ai.completion.0.id": "theirs"}))
    assert found.attributes[semconv.RESPONSE_ID] == "ours"


def test_what_failed_says_why() -> None:
    raised = SpanEvent("exception", 1.5, {"exception.type": "TimeoutError", "exception.message": "m"})
    assert said(canonical(claim({"otel.status_code": "ERROR"}, raised)), semconv.ERROR_TYPE) == ["TimeoutError"]
    assert said(canonical(claim({"otel.status_code": "ERROR"})), semconv.ERROR_TYPE) == ["_OTHER"]
    assert said(canonical(claim({}, raised)), semconv.ERROR_TYPE) == [None]  # it was handled


# ---------------------------------------------------------------------- rewards


def test_rewards_as_agent_lightning_really_emits_them() -> None:
    of_call, final = (canonical(span) for span in sample("agentlightning_rewards"))
    assert (of_call.name, final.name) == (semconv.REWARD_SPAN_NAME,) * 2
    names = (semconv.REWARD_VALUE, semconv.REWARD_DIMENSION, semconv.RESPONSE_ID)
    assert said(of_call, *names) == [0.5, None, "chatcmpl-1"]
    assert said(final, *names) == [1.0, "solved", None]
    assert [dict(event.attributes) for event in final.events] == [
        {semconv.EVALUATION_NAME: "speed", semconv.EVALUATION_SCORE: 0.25}
    ]
    assert (final.rollout_id, final.attempt) == ("ro-1", None)
    assert (states_result(of_call), states_result(final)) == (False, True)


def rewarded(**more: Any) -> Span:
    attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5, **more}
    return claim(attributes, name="agentlightning.annotation")


def test_a_reward_of_agent_lightning() -> None:
    found = canonical(rewarded())
    assert found.name == semconv.REWARD_SPAN_NAME
    assert said(found, semconv.REWARD_VALUE, semconv.REWARD_DIMENSION, semconv.RESPONSE_ID) == [0.5, None, None]
    link = {"agentlightning.link.0.key_match": "gen_ai.response.id", "agentlightning.link.0.value_match": "chat-1"}
    assert said(canonical(rewarded(**link)), semconv.RESPONSE_ID) == ["chat-1"]


def test_further_dimensions_are_evaluations_with_the_same_target() -> None:
    more = {
        "agentlightning.reward.0.name": "solved",
        "agentlightning.reward.1.name": "speed",
        "agentlightning.reward.1.value": 0.8,
        "agentlightning.link.0.key_match": "gen_ai.response.id",
        "agentlightning.link.0.value_match": "chat-1",
    }
    found = canonical(rewarded(**more))
    assert said(found, semconv.REWARD_DIMENSION, semconv.REWARD_VALUE) == ["solved", 0.5]
    (event,) = found.events
    assert event.name == semconv.EVALUATION_EVENT
    assert event.attributes == {
        semconv.EVALUATION_NAME: "speed",
        semconv.EVALUATION_SCORE: 0.8,
        semconv.RESPONSE_ID: "chat-1",
    }


def test_a_target_that_cannot_be_told_is_unknown_and_not_the_attempt() -> None:
    link = {"agentlightning.link.0.key_match": "span_id", "agentlightning.link.0.value_match": "abc"}
    assert said(canonical(rewarded(**link)), semconv.RESPONSE_ID) == ["span_id=abc"]


def test_rewards_of_older_versions() -> None:
    output = json.dumps({"type": "reward", "value": 0.25})
    assert said(canonical(claim({"agentops.task.output": output})), semconv.REWARD_VALUE) == [0.25]
    assert canonical(claim({"agentops.task.output": '{"value": 1}'})).name == "s"
    assert canonical(claim({"reward": 1.0})).name == "s"
    assert said(canonical(claim({"reward": 1.0}, name="agentlightning.annotation")), semconv.REWARD_VALUE) == [1.0]


def test_a_reward_that_is_no_number_stays_what_it_is() -> None:
    found = canonical(rewarded(**{"agentlightning.reward.0.value": math.nan}))
    assert math.isnan(found.attributes[semconv.REWARD_VALUE])  # type: ignore[arg-type]


def evaluated(**target: Any) -> SpanEvent:
    return SpanEvent(
        semconv.EVALUATION_EVENT, 1.0, {semconv.EVALUATION_NAME: "n", semconv.EVALUATION_SCORE: 1.0, **target}
    )


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (claim({semconv.REWARD_VALUE: 1.0}, name="lgov.reward"), True),
        (claim({}, name="lgov.reward"), True),
        (claim({semconv.REWARD_VALUE: 1.0}), True),
        (claim({semconv.REWARD_VALUE: 1.0, semconv.RESPONSE_ID: "c"}, name="lgov.reward"), False),
        (claim({semconv.REWARD_VALUE: 1.0, semconv.TOOL_CALL_ID: "c"}, name="lgov.reward"), False),
        (claim({semconv.REWARD_VALUE: 1.0, semconv.RESPONSE_ID: ""}, name="lgov.reward"), True),
        (claim({semconv.OUTCOME: "succeeded", semconv.RESPONSE_ID: "c"}), True),
        (rewarded(), True),
        (claim({}, evaluated()), True),
        (claim({}, evaluated(**{semconv.RESPONSE_ID: "c"})), False),
        (claim({semconv.OPERATION: "chat"}, evaluated()), False),
        (claim({semconv.OPERATION: "execute_tool"}, evaluated()), False),
        (claim({semconv.OPERATION: "invoke_agent", semconv.RESPONSE_ID: "c"}, evaluated()), True),
        (claim({semconv.REWARD_VALUE: 1.0, semconv.RESPONSE_ID: 5}, name="lgov.reward"), True),
        (claim({semconv.REWARD_VALUE: 1.0, "gen_ai.completion.0.id": "c"}, name="lgov.reward"), True),
        (claim({semconv.OPERATION: "chat"}), False),
    ],
)
def test_what_says_how_the_attempt_went(span: Span, expected: bool) -> None:
    assert states_result(span) is expected


def test_the_table_fits() -> None:
    assert {row.form for row in ROWS} <= set(FORMS)
    assert len({(row.ours, row.theirs, row.path, row.when) for row in ROWS}) == len(ROWS)
    ours = {value for value in vars(semconv).values() if isinstance(value, str)}
    assert {row.ours for row in ROWS} <= ours


def mapping_page() -> str:
    """The table of lgov_core/trace/MAPPING.md."""
    lines = ["| lgov's name | read from |", "|---|---|"]
    for ours in dict.fromkeys(row.ours for row in ROWS):
        places = dict.fromkeys(
            f"`{row.theirs}`" + (f" at `{row.path}`" if row.path else "") for row in ROWS if row.ours == ours
        )
        lines.append(f"| `{ours}` | {', '.join(places)} |")
    return "\n".join(lines)


def test_the_page_has_the_table() -> None:
    """After a change: python -m tests.otlp.test_mapping writes it."""
    said = PAGE.read_text().split("<!-- mapping -->")[1].split("<!-- /mapping -->")[0]
    assert said.strip() == mapping_page()


@pytest.mark.parametrize(
    "attributes",
    [
        {"output.value": "[" * 10_000, "openinference.span.kind": "LLM"},
        {"output.value": '{"id": ', "openinference.span.kind": "LLM"},
        {"llm.input_messages.0.message.role": 5, "llm.input_messages.999999999999.message.role": "x"},
        {"gen_ai.prompt.0": "x", "gen_ai.prompt.0.role": "user", "gen_ai.prompt..": 1, "gen_ai.prompt.": 2},
        {"llm.input_messages." + "0." * 200 + "x": 1},
        {"openinference.span.kind": ["LLM"], "agentlightning.reward.0": 1, "agentlightning.reward.x.value": 1},
        {"gen_ai.input.messages": '[{"parts": 5}, {"parts": [{"type": "text"}, 7, {"type": "tool_call"}]}, 9]'},
        {"logprobs.content": '[{"a": 1}]', "prompt_token_ids": {"a": 1}, "llm.finish_reason": 5},
    ],
)
def test_nonsense_raises_nothing(attributes: dict[str, Any]) -> None:
    found = canonical(claim(attributes))
    assert {**found.attributes, **attributes} == dict(found.attributes)
    assert canonical(found) == found


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition("<!-- mapping -->")
    after = rest.partition("<!-- /mapping -->")[2]
    PAGE.write_text(f"{before}<!-- mapping -->\n{mapping_page()}\n<!-- /mapping -->{after}")
