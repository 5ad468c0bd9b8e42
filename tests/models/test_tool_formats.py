from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lgov_core.errors import EndpointError
from lgov_core.models.tool_formats import TOOL_FORMATS, ParsedCall, tool_format

RUN_SQL = {
    "type": "function",
    "function": {
        "name": "run_sql",
        "description": "Queries the database.",
        "parameters": {
            "type": "object",
            "properties": {"limit": {"type": "integer"}, "query": {"type": "string"}},
            "required": ["query"],
        },
    },
}
LIST_TABLES = {"type": "function", "function": {"name": "list_tables"}}
TOOLS = [RUN_SQL, LIST_TABLES]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.sampled_from(["query", "limit", "input"]) | st.text(), json_values, max_size=3)
sql_only = st.fixed_dictionaries({"query": st.text()})
tricky = st.sampled_from(
    [
        {"query": "</tool_call>"},
        {"query": "<tool_call>"},
        {"query": "{"},
        {"query": "a\nb"},
        {"query": "\u2028@run_sql"},
        {"input": " x "},
        {"query": '"}'},
    ]
)


@pytest.mark.parametrize("format_name", TOOL_FORMATS)
@given(
    name=st.sampled_from(["run_sql", "list_tables", "unknown-tool", "a.b"]),
    value=arguments | sql_only | tricky,
    ascii_only=st.booleans(),
    indent=st.none() | st.integers(0, 2),
    offered=st.booleans(),
)
def test_a_rendered_call_parses_to_the_same_call(format_name, name, value, ascii_only, indent, offered):
    format_ = tool_format(format_name)
    tools = TOOLS if offered else ()
    text = format_.render_call(name, json.dumps(value, ensure_ascii=ascii_only, indent=indent), tools)
    reply = format_.parse(text, tools)
    assert reply.content is None
    assert [(call.name, json.loads(call.arguments_text)) for call in reply.calls] == [(name, value)]


@pytest.mark.parametrize("format_name", TOOL_FORMATS)
@given(text=st.text() | st.text(alphabet='@<>/{}[]"ab: ,\n'))
def test_parse_never_raises_and_loses_nothing_without_calls(format_name, text):
    reply = tool_format(format_name).parse(text, TOOLS)
    if not reply.calls:
        assert reply.content == text


@pytest.mark.parametrize("format_name", ["hermes", "compact", "json"])
def test_broken_json_arguments_are_handed_on_as_written(format_name):
    format_ = tool_format(format_name)
    broken = '{"query": "SELECT 1, "limit": 2}'
    reply = format_.parse(format_.render_call("run_sql", broken, TOOLS), TOOLS)
    assert reply.calls == (ParsedCall("run_sql", broken),)


def test_hermes_cut_off_in_the_middle_stays_broken():
    reply = tool_format("hermes").parse('<tool_call>\n{"name": "run_sql", "arguments": {"query": "SEL', TOOLS)
    assert reply.calls == (ParsedCall("run_sql", '{"query": "SEL'),)
    # A missing last brace is not put back.
    (call,) = tool_format("hermes").parse('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>').calls
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(call.arguments_text)


def test_hermes_without_a_name_stays_content():
    text = "Let me see. <tool_call>SELECT 1</tool_call>"
    assert tool_format("hermes").parse(text).content == text
    assert tool_format("hermes").parse(text).calls == ()


def test_hermes_two_calls_and_text():
    text = (
        'Both.\n<tool_call>{"name": "run_sql", "arguments": {"query":"SELECT 1"}}</tool_call>\n'
        '<tool_call>{"arguments": {"b": [1, 2]}, "name": "g"}</tool_call> <tool_call>oops</tool_call>'
    )
    reply = tool_format("hermes").parse(text)
    assert reply.calls == (ParsedCall("run_sql", '{"query":"SELECT 1"}'), ParsedCall("g", '{"b": [1, 2]}'))
    assert reply.content == "Both.\n\n <tool_call>oops</tool_call>"


def test_compact_lines():
    compact = tool_format("compact")
    assert compact.describe(TOOLS) == "Tools: run_sql(limit, query), list_tables()"
    assert compact.describe([]) == ""
    assert compact.render_call("run_sql", '{"query": "SELECT 1"}', TOOLS) == "@run_sql SELECT 1"
    reply = compact.parse(
        'First:\n@run_sql SELECT 1\n@list_tables\n@run_sql {"query": "x", "limit": 1}\n@other abc', TOOLS
    )
    assert reply.content == "First:"
    assert reply.calls == (
        ParsedCall("run_sql", '{"query": "SELECT 1"}'),
        ParsedCall("list_tables", "{}"),
        ParsedCall("run_sql", '{"query": "x", "limit": 1}'),
        ParsedCall("other", '{"input": "abc"}'),
    )
    for text in ("mail me @ noon", "@", "@ x", "@alice, hello", " @run_sql SELECT 1"):
        assert compact.parse(text, TOOLS).calls == (), text


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city", "days", "unit"],
        },
    },
}
LIST = {"type": "function", "function": {"name": "list_tables"}}


def test_examples_show_calls_that_parse_back():
    format_ = tool_format("examples")
    call = '@weather {"city": "(city)", "days": 1, "unit": "C"}'
    assert format_.describe([WEATHER, LIST]).splitlines() == [
        "Tools, each called by a line that begins with @:", f"{call}   Get the weather.   city: Where", "@list_tables",
    ]  # fmt: skip
    assert format_.describe([]) == ""
    assert format_.parse(call, [WEATHER]).calls == (ParsedCall("weather", call.partition(" ")[2]),)


def test_examples_come_before_the_conversation():
    asked = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Rain?"}]
    system, *turns = tool_format("examples").render_messages(asked, [WEATHER, LIST])
    assert system["content"].startswith("Be short.\n\nTools, each called")
    assert [(turn["role"], turn["content"].split()[0]) for turn in turns] == [
        ("user", "Get"), ("assistant", "@weather"), ("user", "Call"), ("assistant", "@list_tables"), ("user", "Rain?"),
    ]  # fmt: skip
    assert tool_format("examples").render_messages(asked) == asked
    many = tool_format("examples").render_messages(asked, [LIST] * 9)
    assert len(many) == 2 + 2 * 3


def test_json_lists_and_answers_that_are_no_calls():
    json_format = tool_format("json")
    reply = json_format.parse('[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "arguments": {}}]')
    assert reply.calls == (ParsedCall("f", '{"a": 1}'), ParsedCall("g", "{}"))
    for text in ('{"name": "Ada"}', '{"rows": []}', "[1, 2]", "[]", '[{"name": "f", "arguments": {}}', "42"):
        assert json_format.parse(text).calls == (), text
        assert json_format.parse(text).content == text


CONVERSATION = [
    {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "short."}]},
    {"role": "user", "content": "How many?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "run_sql", "arguments": '{"query": "SELECT 1"}'}},
            {"id": "c2", "type": "function", "function": {"name": "list_tables", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "1"},
    {"role": "assistant", "content": "One."},
]


def test_conversations_become_plain_messages():
    compact = tool_format("compact")
    assert compact.render_messages(CONVERSATION, TOOLS) == [
        {"role": "system", "content": "Be short.\nTools: run_sql(limit, query), list_tables()"},
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "@run_sql SELECT 1\n@list_tables"},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "One."},
    ]
    assert compact.render_messages([{"role": "user", "content": "x"}], TOOLS)[0]["role"] == "system"
    hermes = dataclasses.replace(tool_format("hermes"), tool_role="user")
    assert hermes.render_messages(CONVERSATION)[3] == {
        "role": "user",
        "content": "<tool_response>\n1\n</tool_response>",
    }
    as_json = tool_format("json").render_messages(CONVERSATION)[2]["content"]
    assert [call["name"] for call in json.loads(as_json)] == ["run_sql", "list_tables"]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        {"role": "user", "content": 5},
        {"role": "user", "content": [None]},
        {"role": "function", "content": "x"},
    ],
)
def test_messages_that_are_no_text_are_refused(message):
    with pytest.raises(EndpointError) as caught:
        tool_format("compact").render_messages([message])
    assert caught.value.status == 400


def test_unknown_format_names_the_nearest():
    with pytest.raises(EndpointError, match="did you mean hermes"):
        tool_format("hermies")
