"""ToolPolicy: allowed tools and the shape of their arguments."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import MappingProxyType
from typing import Any

import pytest

from lgov_core.errors import PolicyError
from lgov_core.policies import ToolPolicy
from lgov_core.types import Action, Effect, Point, Severity

SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "maxLength": 10},
        "limit": {"type": "integer", "minimum": 1, "default": 5},
        "filter": {"type": "object", "properties": {"ids": {"type": "array", "items": {"$ref": "#/definitions/id"}}}},
    },
    "required": ["query"],
    "additionalProperties": False,
    "definitions": {"id": {"type": "integer"}},
}


def call(name: str, arguments: Any = MappingProxyType({}), **more: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, name, arguments=arguments, **more)


def test_a_glob_matches_no_name_with_a_line_end() -> None:
    policy = ToolPolicy(allow=["read_*"])
    decisions = [policy.judge(call(name)) for name in ("read_file", "read_file\n", "read_\0file")]
    assert [decision is not None and decision.blocks for decision in decisions] == [False, True, True]


def test_unknown_tools_are_denied_and_the_allowed_are_named() -> None:
    policy = ToolPolicy(allow=["run_sql", "search_*"])
    assert policy.judge(call("run_sql")).effect is Effect.ALLOW
    assert policy.judge(call("search_web", kind="mcp")).effect is Effect.ALLOW
    for unknown in ("rm", "RUN_SQL", "run_sql2", "", "search"):
        decision = policy.judge(call(unknown))
        assert (decision.effect, decision.rule) == (Effect.DENY, "tool-unknown")
        assert "run_sql, search_*" in decision.reason
    assert "t1" not in ToolPolicy(allow=[f"t{i}" for i in range(20)]).judge(call("x")).reason
    assert ToolPolicy(allow=[]).judge(call("run_sql")).blocks


def test_other_points_are_none_of_its_business() -> None:
    assert ToolPolicy(allow=[]).judge(Action(Point.INPUT, "agent", text="hello")) is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "query"),
        ({"query": 1}, "arguments.query must be string"),
        ({"query": "x" * 11}, "arguments.query"),
        ({"query": "x", "limit": 0}, "arguments.limit"),
        ({"query": "x", "limit": True}, "arguments.limit must be integer"),
        ({"query": "x", "other": 1}, "other"),
        ({"query": "x", "filter": {"ids": [1, "2"]}}, "arguments.filter.ids[1] must be integer"),
    ],
)
def test_wrong_arguments_are_denied_with_the_place(arguments: dict[str, Any], expected: str) -> None:
    decision = ToolPolicy(allow=["run_sql"], schemas={"run_sql": SCHEMA}).judge(call("run_sql", arguments))
    assert (decision.effect, decision.rule) == (Effect.DENY, "tool-arguments")
    assert expected in decision.reason


@pytest.mark.parametrize("number", [float("nan"), float("-inf"), float("inf")])
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_is_no_number_in_json_passes_no_limit(number: float, wrapped: bool) -> None:
    schema = {"type": "object", "properties": {"amount": {"type": ["number", "array"], "maximum": 500, "minimum": -1}}}
    policy = ToolPolicy(allow=["pay"], schemas={"pay": schema})
    decision = policy.judge(call("pay", {"amount": [number] if wrapped else number}))
    assert decision is not None
    assert (decision.effect, decision.rule) == (Effect.DENY, "tool-arguments")
    assert str(number) in decision.reason


def test_fitting_arguments_are_let_through_unchanged() -> None:
    arguments = {"query": "x", "filter": MappingProxyType({"ids": (1, 2)})}
    policy = ToolPolicy(allow=["*"], schemas={"run_sql": MappingProxyType(SCHEMA)})
    assert policy.judge(call("run_sql", MappingProxyType(arguments))).effect is Effect.ALLOW
    assert "limit" not in arguments, "the default was written into what the tool will be called with"
    assert policy.judge(call("another", {"anything": 1})).effect is Effect.ALLOW


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strng"},
        {"pattern": "("},
        {"properties": [1]},
        {"properties": {"a": {"$ref": "#/definitions/missing"}}},
        {"$ref": "file:///etc/passwd"},
        {"allOf": [{"$ref": "other.json#/x"}]},
        {"properties": {"a": {"prefixItems": [{}]}}},
        {"dependentRequired": {"a": ["b"]}},
        "object",
    ],
)
def test_wrong_schemas_are_refused_when_made(schema: Any) -> None:
    with pytest.raises(PolicyError, match="schema"):
        ToolPolicy(allow=["t"], schemas={"t": schema})


def test_a_property_may_be_called_like_a_keyword() -> None:
    schema = {"properties": {"$ref": {"type": "string"}, "prefixItems": {}}}
    assert ToolPolicy(allow=["t"], schemas={"t": schema}).judge(call("t", {"$ref": "http://x"})).effect is Effect.ALLOW


def test_nothing_is_fetched() -> None:
    asked: list[str] = []

    class Watching(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    server = HTTPServer(("127.0.0.1", 0), Watching)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        for schema in (
            {"$ref": f"{address}/schema.json"},
            {"$id": f"{address}/root", "properties": {"a": {"$ref": "#/definitions/missing"}}},
            {"$id": f"{address}/root", "properties": {"a": {"$id": "inner", "properties": {"b": {"$ref": "#/x"}}}}},
        ):
            with pytest.raises(PolicyError):
                ToolPolicy(allow=["t"], schemas={"t": schema})
        policy = ToolPolicy(
            allow=["t"], schemas={"t": {"$schema": f"{address}/draft", "properties": {"u": {"format": "uri"}}}}
        )
        assert not policy.judge(call("t", {"u": f"{address}/value"})).blocks
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked == []


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "requierd": ["a"]}, "required"),
        ({"additionalproperties": False}, "additionalProperties"),
        ({"properties": {"a": {"type": "string", "max_length": 4}}}, "maxLength"),
        ({"$ref": "#/components/Pay", "components": {"Pay": {"patern": "^a$"}}}, "pattern"),
        ({"$ref": "#/x-forms/0", "x-forms": [{"patern": "^a$"}]}, "pattern"),
        ({"$ref": "#/x-in~1out", "x-in/out": {"patern": "^a$"}}, "pattern"),
        ({"properties": {"a": {"format": "url"}}}, "uri"),
        ({"properties": {"a": {"format": "emial"}}}, "email"),
        ({"properties": {"a": {"tpye": "string"}}}, "type"),
        ({"properties": {"a": {"format": "datetime"}}}, "date-time"),
        ({"additionalProperties": "false"}, "true or false"),
        ({"properties": {"a": {"minimum": 5, "exclusiveMinimum": True}}}, "exclusiveMinimum"),
        ({"properties": {"a": {"$ref": "#/definitions/x", "maxLength": 2}}, "definitions": {"x": {}}}, "allOf"),
        ({"then": {"required": ["a"]}}, "if"),
        ({"required": [False]}, "quotes"),  # what YAML makes of [no]
        ({"dependencies": {"a": [True]}}, "quotes"),
        ({"properties": {"a": {"type": "string", "enum": [True, False]}}}, "quotes"),
        ({"to": {"type": "string", "pattern": "^[A-Z]+$"}}, "properties"),
    ],
)
def test_an_unchecked_constraint_is_refused(schema: Any, named: str) -> None:
    with pytest.raises(PolicyError) as caught:
        ToolPolicy(allow=["t"], schemas={"t": schema})
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"description": "no arguments"},
        {"dependencies": {"a": ["b"]}},
        {"properties": {"requierd": {"type": "string"}, "items": {"x-order": 1, "example": "a", "nullable": True}}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True},
        {"$defs": {"Node": {"properties": {"kids": {"items": {"$ref": "#/$defs/Node"}}}}}, "$ref": "#/$defs/Node"},
        {"properties": {"a": {"$ref": "#/definitions/x", "title": "A", "default": 1}}, "definitions": {"x": {}}},
        {"properties": {"a": {"format": "uuid4"}, "b": {"format": "int32"}, "c": {"enum": [True, False]}}},
    ],
)
def test_notes_and_own_names_are_not_misspelt_keywords(schema: Any) -> None:
    assert not ToolPolicy(allow=["t"], schemas={"t": schema}).judge(call("t", {})).blocks


def test_a_schema_for_a_tool_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(PolicyError, match="run_sqll"):
        ToolPolicy(allow=["run_sql"], schemas={"run_sqll": SCHEMA})
    with pytest.raises(PolicyError, match="list of strings"):
        ToolPolicy(allow="run_sql")


def test_a_default_is_not_an_argument_that_the_model_gave() -> None:
    schema = {"allOf": [{"properties": {"a": {"default": 1}}}, {"required": ["a"]}]}
    decision = ToolPolicy(allow=["t"], schemas={"t": schema}).judge(call("t", {}))
    assert decision is not None
    assert decision.blocks


def test_a_problem_names_the_argument_that_is_wrong() -> None:
    schema = {"properties": {"data": {"type": "string"}}}
    decision = ToolPolicy(allow=["t"], schemas={"t": schema}).judge(call("t", {"data": 1}))
    assert decision is not None
    assert decision.reason == "The arguments of t are wrong: arguments.data must be string."


def test_arguments_nested_too_deeply_are_wrong_arguments() -> None:
    deep: object = "x"
    for _ in range(100_000):
        deep = [deep]
    policy = ToolPolicy(allow=["t"], schemas={"t": {"type": "object"}})
    decision = policy.judge(Action(Point.PRE_TOOL_CALL, "t", arguments={"a": deep}))
    assert decision is not None
    assert (decision.blocks, decision.rule) == (True, "tool-arguments")


#: What backtracking engines take exponential time for, or a power of the text's length; and what they do not.
PATTERNS = [
    "(a+)+$",
    r"^(\w+\s?)*$",
    "(a|b+)*c",
    "((a*)b?)*",
    "(?:x*)*",
    "([a-z]+){2,50}",
    "(a+?)+",
    r"(\d+|\w+)*$",
    "(a|aa)+$",
    "^(a|ab|b)*$",
    "^(a?a?)+$",
    "([a-z]+){10}$",
    r"^([a-z]+.)+$",
    r"^(\s*,\s*)*$",
    "(?i)^(a|Ab|b)+$",
    r"(?s)^(.|\n)*x",
    "^(?:a(?:x?|y?))*b",
    "^[a-z]+(-[a-z]+)*$",
    r"^(\w+\.)*\w+$",
    "^(a{3})+$",
    "^([a-z]{1,8}-)+x$",
    "^(foo|bar)*$",
    "^(/[^/]+)+$",
    r"^(.|\n)*x",
    "^([a-z0-9]+-|[0-9a-z]+_)+$",
    r"^(-\d{1,3})+$",
    r"^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$",
    "^[a-z]([-a-z0-9]*[a-z0-9])?(\\.[a-z]([-a-z0-9]*[a-z0-9])?)*$",
    "^([0-9a-f]{8}|[0-9a-f]{12}-)*$",
    "^({0})(,({0}))*$".format("|".join(f"code{at}" for at in range(200))),
    ".*.*.*.*.*.*x",
    "^(.*a){20}$",
    "(x+x+)+y",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("near_match", ["a", "a-", "a,", " ", "/", "code1,", "x", "ab"])
def test_no_pattern_takes_longer_than_its_text_is_long(pattern: str, near_match: str) -> None:
    for schema in ({"additionalProperties": {"pattern": pattern}}, {"patternProperties": {pattern: False}}):
        policy = ToolPolicy(allow=["t"], schemas={"t": {"type": "object", **schema}})
        text = near_match * 20_000 + "\0"
        began = time.process_time()
        policy.judge(call("t", {"x": text, text: 1}))
        assert time.process_time() - began < 0.1


@pytest.mark.parametrize("pattern", ["(?=a)b", "(?<!a)b", r"(a)\1", "a++", "(?>a)", "a{1001}"])
def test_a_pattern_without_linear_time_is_refused(pattern: str) -> None:
    for schema in ({"properties": {"x": {"pattern": pattern}}}, {"patternProperties": {pattern: {}}}):
        with pytest.raises(PolicyError, match=r"^tool: the schema of t has the pattern"):
            ToolPolicy(allow=["t"], schemas={"t": {"type": "object", **schema}})


def test_a_pattern_ends_where_the_text_ends() -> None:
    for pattern in (r"^\d{2}\$?$", r"\A\d{2}\\?\Z"):
        policy = ToolPolicy(allow=["t"], schemas={"t": {"properties": {"x": {"pattern": pattern}}}})
        assert not policy.judge(call("t", {"x": "12"})).blocks
        for wrong in ("12\n", "\u0661\u0662", "123", "12Z", "1\ud800"):
            assert policy.judge(call("t", {"x": wrong})).blocks


@pytest.mark.parametrize(
    ("name", "good"),
    [("date", "2026-03-01"), ("time", "10:11:12Z"), ("date-time", "2026-03-01T10:11:12Z"), ("duration", "P1D")],
)
def test_formats_of_dates_are_written_in_ascii(name: str, good: str) -> None:
    policy = ToolPolicy(allow=["t"], schemas={"t": {"properties": {"x": {"format": name}}}})
    assert not policy.judge(call("t", {"x": good})).blocks
    assert policy.judge(call("t", {"x": good.replace("1", "\u0661")})).blocks


def test_numbers_too_long_to_compare_are_denied() -> None:
    schema = {"properties": {"x": {"multipleOf": 0.5}, "y": {"enum": [1, 2]}}}
    policy = ToolPolicy(allow=["t"], schemas={"t": schema})
    for arguments in ({"x": 10**400}, {"x": 10**5000}, {"y": 10**5000}):
        decision = policy.judge(call("t", arguments))
        assert (decision.blocks, decision.rule) == (True, "tool-arguments")


def test_an_email_is_checked_in_the_time_that_its_length_takes() -> None:
    policy = ToolPolicy(allow=["t"], schemas={"t": {"properties": {"x": {"format": "email"}}}})
    for good in ("ann@acme.com", "a.b+c@x.y.de", "a@b.c"):
        assert not policy.judge(call("t", {"x": good})).blocks
    for bad in ("", "ann", "@acme.com", "ann@acme", ".a@b.c", "a.@b.c", "a..b@b.c", "a@b@c.de", "a@.c", "a@b."):
        assert policy.judge(call("t", {"x": bad})).blocks
    began = time.process_time()
    assert policy.judge(call("t", {"x": "." * 400_000})).blocks
    assert time.process_time() - began < 5


def test_a_denial_names_at_most_eight_tools() -> None:
    eight = [f"tool_{number}" for number in range(8)]
    assert "Allowed tools: tool_0, tool_1, tool_2, tool_3, tool_4, tool_5, tool_6, tool_7." in (
        ToolPolicy(allow=eight).judge(call("x")).reason
    )
    more = ToolPolicy(allow=[*eight, "tool_8"]).judge(call("x")).reason
    assert more.endswith("Call one of the tools you were given.")
    assert ToolPolicy(allow=[]).judge(call("x")).reason.endswith("No tool may be called.")


def test_a_denial_says_no_more_of_what_the_model_wrote_than_fits_a_line() -> None:
    policy = ToolPolicy(allow=["run_sql"], schemas={"run_sql": SCHEMA})
    decision = policy.judge(call("run_sql", {"query": "x", "a" * 5000: 1}))
    assert decision.reason.startswith("The arguments of run_sql are wrong: arguments must not contain")
    assert len(decision.reason) == len("The arguments of run_sql are wrong: ") + 300 + len(".")
    assert policy.judge(call("y" * 5000)).reason.count("y") == 80 + "Allowed tools: run_sql".count("y")


def test_what_a_decision_of_the_policy_says() -> None:
    policy = ToolPolicy(allow=["run_sql"], schemas={"run_sql": SCHEMA}, name="mine")
    allowed, unknown, wrong = (
        policy.judge(call(*arguments)) for arguments in (("run_sql", {"query": "x"}), ("rm", {}), ("run_sql", {}))
    )
    assert (allowed.effect, allowed.policy) == (Effect.ALLOW, "mine")
    assert (unknown.policy, unknown.rule, unknown.severity) == ("mine", "tool-unknown", Severity.HIGH)
    assert (wrong.policy, wrong.rule, wrong.severity) == ("mine", "tool-arguments", Severity.LOW)
    assert policy.permits
    assert policy.bounded


def test_what_stands_in_other_mappings_and_sequences_is_checked() -> None:
    policy = ToolPolicy(allow=["run_sql"], schemas={"run_sql": SCHEMA})
    right, wrong = ({"query": "x", "filter": MappingProxyType({"ids": (1, last)})} for last in (2, "2"))
    assert policy.judge(call("run_sql", MappingProxyType(right))).effect is Effect.ALLOW
    assert "arguments.filter.ids[1] must be integer" in policy.judge(call("run_sql", MappingProxyType(wrong))).reason


def test_why_arguments_that_cannot_be_checked_are_denied() -> None:
    policy = ToolPolicy(allow=["run_sql"], schemas={"run_sql": {"properties": {"query": {"pattern": "^a+$"}}}})
    for query, why in ((float("nan"), "nan"), ("a" * 2_000_000, ""), ("\ud800", "a lone surrogate")):
        decision = policy.judge(call("run_sql", {"query": query}))
        assert (decision.rule, decision.blocks) == ("tool-arguments", True)
        assert f"they hold {why}" in decision.reason


@pytest.mark.parametrize(
    "uri", ["http://x.invalid/a", "https://x.invalid/a", "ftp://x.invalid/a", "file:///a", "a.json"]
)
def test_a_reference_to_another_place_is_refused_by_its_name(uri: str) -> None:
    with pytest.raises(PolicyError, match=r"the schema of t refers to .*a"):
        ToolPolicy(allow=["t"], schemas={"t": {"properties": {"x": {"$ref": uri}}}})


@pytest.mark.parametrize("place", ["http://x.invalid/a", "https://x.invalid/a", "ftp://x.invalid/a", "file:///a", "a"])
def test_a_schema_that_calls_itself_by_another_place_is_refused_and_nothing_is_fetched(place: str) -> None:
    """A reference within it is then one to that place, for the validator."""
    inner = {"properties": {"q": {"$ref": "#/definitions/n"}}}
    schema = {"$id": f"{place}#part", **inner, "definitions": {"n": {"type": "integer"}}}
    with pytest.raises(PolicyError, match=r"the schema of t refers to .*a") as raised:
        ToolPolicy(allow=["t"], schemas={"t": schema})
    assert raised.value.hint == "schemas are never fetched; copy it into definitions"
