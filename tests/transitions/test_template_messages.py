"""Records for fine-tuning, through a chat template of transformers that writes tool calls as those of real models do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lgov_core.models.tiny import train_tokenizer
from lgov_core.transitions import assign_credit
from lgov_core.transitions.messages import UnreadableArguments, preference_pairs, sft_records, template_messages
from tests.transitions.test_export_messages import ASK, called, data_of, final, result

#: Reads what the templates of Qwen 2.5 and Llama 3 read: arguments for ``tojson``, and content only where there is some.
TEMPLATE = """
{%- for message in messages %}<{{ message.role }}>
{%- if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}{% set function = call.function -%}
{"name": "{{ function.name }}", "arguments": {{ function.arguments | tojson }}}
{%- endfor %}{% endfor %}"""


def asks(arguments: Any, call: str = "c1") -> dict[str, Any]:
    function = {"name": "look_up", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call, "type": "function", "function": function}],
    }


def test_a_template_writes_the_arguments_as_the_model_wrote_them() -> None:
    first = asks('{"who": "Ada \\u00e9", "deep": {"in": [1, null]}}')
    calls = [
        called("a1", ASK, first),
        called("a2", [*ASK, first, result("c1", "found")], {"role": "assistant", "content": "Ada."}, at=1.0),
    ]
    data, _, _ = data_of(calls, [final(1.0)])
    (record,) = sft_records(data, calls).records
    assert "content" not in record["messages"][2]
    tokenizer = train_tokenizer(["Who?"], vocab_size=300, max_positions=512)
    stored = json.loads(json.dumps(record))
    written = tokenizer.apply_chat_template(stored["messages"], chat_template=TEMPLATE, tokenize=False)
    assert written == (
        '<system>Be brief.<user>Who?<assistant>{"name": "look_up", "arguments": {"who": "Ada é", "deep": {"in": [1, null]}}}'
        "<tool>found<assistant>Ada."
    )


def test_a_conversation_whose_arguments_cannot_be_read_is_left_out_and_counted() -> None:
    broken = asks('{"who": "Ada')
    calls = [
        called("a1", ASK, broken),
        called("a2", [*ASK, broken, result("c1", "what?")], {"role": "assistant", "content": "Ada."}, at=1.0),
    ]
    data, _, _ = data_of(calls, [final(1.0)])
    found = sft_records(data, calls)
    assert (found.records, dict(found.left_out)) == ([], {"unreadable_arguments": 1})


def test_pairs_have_objects_too_and_none_with_arguments_that_cannot_be_read() -> None:
    def pairs(worse: str) -> Any:
        calls = [
            called("g1", ASK, asks('{"who": "Ada"}'), rollout="r1", said=(7,)),
            called("b1", ASK, asks(worse), rollout="r2", said=(8,)),
        ]
        data, _, _ = data_of(calls, [final(1.0, "r1"), final(0.0, "r2")])
        return preference_pairs(assign_credit(data), calls)

    (pair,) = pairs("").records
    assert pair["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"who": "Ada"}
    assert pair["rejected"][0]["tool_calls"][0]["function"]["arguments"] == {}
    assert pair["prompt"] == ASK
    assert dict(pairs("[1]").left_out) == {"unreadable_arguments": 1}


@pytest.mark.parametrize("arguments", ["nonsense", "1", "null", "[]", None, 3])
def test_what_is_no_object_is_no_arguments(arguments: Any) -> None:
    with pytest.raises(UnreadableArguments):
        template_messages([asks(arguments)])


def test_other_messages_stay_as_they_are_without_what_is_none() -> None:
    empty = {"role": "assistant", "content": None, "refusal": None}
    custom = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "custom", "custom": {"input": "x"}}],
    }
    assert template_messages([empty, custom, asks({"a": 1})]) == [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"input": "x"}}]},
        {"role": "assistant", "tool_calls": asks({"a": 1})["tool_calls"]},
    ]
