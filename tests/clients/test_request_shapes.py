"""Requests as coding agents send them are answered, whatever stands behind the endpoint, and nothing is left out unseen."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import anthropic
import httpx
import openai
import pytest
from anthropic.types.beta import BetaOutputConfigParam, BetaToolParam
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaMessageParams
from anthropic.types.message_create_params import MessageCreateParamsBase as MessageParams
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.responses import FunctionToolParam, ResponseTextConfigParam
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams
from openai.types.shared_params import Reasoning

from lgov_core.gateway.engine.reply_codec import Generated, ReplyCodec
from lgov_core.gateway.limits import Limits
from lgov_core.gateway.policy_gate import open_gate
from lgov_core.governance import Governance
from lgov_core.testing import ScriptedReply
from lgov_core.wire.chat import read_chat_request
from lgov_core.wire.fields import FIELDS, Use, fields_below
from tests.clients.request_shapes import ASK, CLAUDE_CODE, CLAUDE_CODE_NEXT, CODEX, CODEX_NEXT, FURTHER, SHAPES
from tests.gateway.conftest import embedded_url, error_in, model, serve, store  # noqa: F401
from tests.gateway.taught import TOOLS, tiny

POLICY = """version: 1
rules:
  - {name: tools, use: tool, with: {allow: [exec_command]}}
  - {name: keys, use: secrets, with: {action: deny}}
"""
#: What a request asks for that no model is offered.
SERVED = {
    "codex": ["tools[1] namespace multi_agent_v1", "tools[2] web_search"],
    "codex, next turn": ["tools[1] namespace multi_agent_v1", "tools[2] web_search", "input[3] reasoning"],
    "claude code": ["tools[2] web_search_20250305 web_search"],
    "claude code, next turn": ["tools[2] web_search_20250305 web_search", "messages[1] redacted_thinking"],
    "opencode": [],
    "qwen code": [],
}
NATIVE = ("chat", "responses", "messages")


def left_out(reply: httpx.Response) -> list[str]:
    return [name for name in reply.headers.get("x-lgov-left-out", "").split("; ") if name]


@pytest.fixture
def gate(tmp_path: Path, store):  # noqa: F811
    (tmp_path / "policy.yaml").write_text(POLICY)
    governance = Governance(policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db")
    with closing(open_gate(governance, store=store)) as gate:
        yield gate


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_translated_request_is_answered_and_says_what_was_left_out(serve, store, gate, name, judged, whole):  # noqa: F811
    path, body = SHAPES[name]
    serving = serve(["All done."], speaks=["chat"], gate=gate if judged else None)
    reply = httpx.post(f"{serving.url}{path}", json={**body, "stream": not whole})
    assert reply.status_code == 200, reply.text
    assert "done" in reply.text
    assert left_out(reply) == SERVED[name]
    (call,) = store.calls()
    assert call.response.get("lgov", {}).get("left_out", []) == SERVED[name]
    (asked,) = serving.model.requests
    assert ASK in json.dumps(asked.body).replace('\\"', '"')
    assert {tool["type"] for tool in asked.body["tools"]} == {"function"}
    assert not {"client_metadata", "context_management", "thinking", "prompt_cache_key"} & set(asked.body)
    assert serving.counters.left_out == bool(SERVED[name])


@pytest.mark.parametrize("name", SHAPES)
def test_the_embedded_engine_answers_and_names_the_dials_that_its_model_lacks(embedded_url, name):  # noqa: F811
    path, body = SHAPES[name]
    reply = httpx.post(f"{embedded_url}{path}", json={**body, "model": "tiny"}, timeout=60)
    assert reply.status_code == 200, reply.text
    dials = {"/v1/responses": ["reasoning.effort", "text.verbosity"], "/v1/messages": ["output_config.effort"]}
    lacking = dials.get(path, ["reasoning_effort"] if "reasoning_effort" in body else [])
    assert left_out(reply) == [*lacking, *SERVED[name]]


@pytest.mark.parametrize("name", SHAPES)
def test_a_server_that_speaks_the_api_gets_everything(serve, name):  # noqa: F811
    path, body = SHAPES[name]
    serving = serve(["All done."], speaks=NATIVE)
    reply = httpx.post(f"{serving.url}{path}", json=body)
    assert reply.status_code == 200
    assert left_out(reply) == []
    (asked,) = serving.model.requests
    assert {field: asked.body[field] for field in body} == body


@pytest.mark.parametrize("name", SHAPES)
def test_with_a_policy_it_gets_everything_but_tools_that_policies_could_not_judge(serve, gate, name):  # noqa: F811
    path, body = SHAPES[name]
    serving = serve(["All done."], speaks=NATIVE, gate=gate)
    reply = httpx.post(f"{serving.url}{path}", json=body)
    assert reply.status_code == 200, reply.text
    assert left_out(reply) == [entry for entry in SERVED[name] if entry.startswith("tools")]
    (asked,) = serving.model.requests
    kept = [tool for tool in body["tools"] if tool.get("type") in (None, "function")]
    assert asked.body["tools"] == kept
    # Thoughts and signatures of the server before pass unchanged.
    items = "input" if path == "/v1/responses" else "messages"
    assert asked.body[items] == body[items]


@pytest.mark.parametrize("name", FURTHER)
def test_further_requests_are_answered_by_every_engine(serve, gate, embedded_url, name):  # noqa: F811
    path, body, missing = FURTHER[name]
    reply = httpx.post(f"{embedded_url}{path}", json={**body, "model": "tiny"}, timeout=60)
    assert reply.status_code == 200, reply.text
    assert left_out(reply) == missing
    reply = httpx.post(f"{serve(['ok'], speaks=['chat'], gate=gate).url}{path}", json=body)
    assert reply.status_code == 200, reply.text
    assert left_out(reply) == missing
    native = serve(["ok"], speaks=NATIVE, gate=gate)
    reply = httpx.post(f"{native.url}{path}", json=body)
    assert reply.status_code == 200, reply.text
    (asked,) = native.model.requests
    items = "input" if path == "/v1/responses" else "messages"
    assert asked.body[items] == body[items]


@pytest.mark.parametrize(
    ("name", "tool", "arguments", "result"),
    [
        ("a patch before", "apply_patch", {"input": "*** Begin"}, "Done"),
        ("a shell before", "local_shell", {"action": {"type": "exec", "command": ["ls"]}}, "a"),
        ("shells before", "shell", {"action": {"commands": ["ls"]}}, '"stdout":"a"'),
    ],
)
def test_a_call_of_another_kind_is_said_as_a_function_call(serve, name, tool, arguments, result):  # noqa: F811
    serving = serve(["ok"], speaks=["chat"])
    path, body, _ = FURTHER[name]
    httpx.post(f"{serving.url}{path}", json=body)
    _, called, told = serving.model.requests[0].body["messages"]
    (call,) = called["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("call_1", tool)
    assert json.loads(call["function"]["arguments"]) == arguments
    assert (told["role"], told["tool_call_id"]) == ("tool", "call_1")
    assert result in told["content"].replace(" ", "")


def test_what_is_read_of_a_call_of_another_kind_is_judged(serve, gate):  # noqa: F811
    key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    for name in ("a patch before", "a shell before", "a search before", "a found page before", "a text as a document"):
        path, body, _ = FURTHER[name]
        text = json.dumps(body)
        for old, new in (
            ("*** Begin", key),
            ('"ls"', f'"{key}"'),
            ('": "x"', f'": "{key}"'),
            ('": "a"', f'": "{key}"'),
        ):
            text = text.replace(old, new)
        assert key in text, name
        for speaks in (["chat"], NATIVE):
            serving = serve([], speaks=speaks, gate=gate)
            reply = httpx.post(f"{serving.url}{path}", content=text.encode())
            assert "DENIED" in reply.text, (name, reply.text)


def test_the_first_call_is_given_where_one_was_asked_for():
    written = tiny(3)
    codec = ReplyCodec(written, name="tiny", context=256)
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "go"}], "tools": list(TOOLS)}
    ids = (*written.text.encode("@run_sql SELECT 1\n@run_sql SELECT 2"), written.end_id)
    for alone, count in ((None, 2), (True, 2), (False, 1)):
        request = read_chat_request({**asked, "parallel_tool_calls": alone})
        completion = codec.completion(request, codec.prompt(request), [Generated(ids, None, 0)])
        assert len(completion.tool_calls) == count
        assert completion.response_ids == ids


def fields_of(params: Any) -> set[str]:
    """The fields of a request as the SDK declares them."""
    parts = get_args(params)
    return set().union(*map(fields_of, parts)) if parts else set(params.__annotations__)


@pytest.mark.parametrize(
    ("api", "params", "others"),
    [
        # Audio has a modality of its own; policies cannot read the first form of tools; moderation is the server's.
        ("chat", ChatParams, {"audio", "function_call", "functions", "moderation"}),
        ("completions", CompletionParams, set()),
        ("responses", ResponseParams, set()),
        ("messages", MessageParams, set()),
        ("messages", BetaMessageParams, {"betas"}),  # a header
    ],
)
def test_the_table_has_the_fields_of_the_sdks(api, params, others):
    assert fields_of(params) - set(FIELDS[api]) == others


@pytest.mark.parametrize(
    ("api", "name", "params"),
    [
        ("responses", "reasoning", Reasoning),
        ("responses", "tools", FunctionToolParam),
        ("responses", "text", ResponseTextConfigParam),
        ("messages", "tools", BetaToolParam),
        ("messages", "output_config", BetaOutputConfigParam),
    ],
)
def test_so_it_has_the_fields_below_them(api, name, params):
    assert fields_of(params) <= set(fields_below(api, name))


def test_one_model_is_described_as_in_the_list(embedded_url, serve):  # noqa: F811
    client = openai.OpenAI(base_url=f"{embedded_url}/v1", api_key="k", max_retries=0)
    assert client.models.retrieve("tiny") == client.models.list().data[0]
    with pytest.raises(openai.NotFoundError, match="there is no model 'huge'"):
        client.models.retrieve("huge")
    elsewhere = anthropic.Anthropic(base_url=serve([]).url, api_key="k", max_retries=0)
    assert elsewhere.models.retrieve("scripted").id == "scripted"


def test_a_secret_in_a_field_that_changes_nothing_is_judged(serve, gate):  # noqa: F811
    serving = serve([], speaks=["chat"], gate=gate)
    key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    for path, body in (
        ("/v1/responses", {**CODEX, "client_metadata": {"note": f"my key {key}"}}),
        ("/v1/messages", {**CLAUDE_CODE, "metadata": {"user_id": f"key {key}"}}),
        ("/v1/messages", {**CLAUDE_CODE_NEXT, "context_management": {"note": key}}),
    ):
        reply = httpx.post(f"{serving.url}{path}", json=body)
        assert "DENIED" in reply.text, reply.text
    assert serving.model.requests == []


@pytest.mark.parametrize("name", [name for name, served in SERVED.items() if served])
def test_strict_fields_refuse_what_cannot_be_offered(serve, name):  # noqa: F811
    path, body = SHAPES[name]
    serving = serve([], speaks=["chat"], limits=Limits(strict_fields=True))
    reply = httpx.post(f"{serving.url}{path}", json=body)
    assert reply.status_code == 400
    assert all(entry in error_in(path, reply) for entry in SERVED[name])
    assert serving.model.requests == []


def test_the_log_names_what_was_left_out_once(serve, caplog):  # noqa: F811
    serving = serve(["a", "b", "c"], speaks=["chat"])
    with caplog.at_level(logging.WARNING, "lgov.gateway"):
        for body in (CODEX, CODEX, CODEX_NEXT):
            httpx.post(f"{serving.url}/v1/responses", json=body)
    lines = [record.getMessage() for record in caplog.records if record.name == "lgov.gateway"]
    assert len(lines) == 2
    assert "web_search" in lines[0]
    assert serving.counters.left_out == 3


def test_a_tool_that_was_left_out_cannot_be_demanded(serve):  # noqa: F811
    serving = serve([], speaks=["chat"])
    reply = httpx.post(f"{serving.url}/v1/responses", json={**CODEX, "tool_choice": {"type": "web_search"}})
    assert reply.status_code == 400
    assert "'tool_choice'" in error_in("/v1/responses", reply)


def test_a_field_of_the_table_is_accepted_or_named(serve):  # noqa: F811
    """Of every API, each field that the table does not refuse."""
    values: dict[str, Any] = {"cache_control": {"type": "ephemeral"}, "metadata": {"a": "b"}, "store": False,
                              "thinking": {"type": "adaptive"}, "context_management": {"edits": []},
                              "truncation": "auto", "max_tool_calls": 3}  # fmt: skip
    plain = {
        "responses": ("/v1/responses", {"model": "m", "input": "hi"}),
        "messages": ("/v1/messages", {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}),
        "completions": ("/v1/completions", {"model": "m", "prompt": "hi"}),
    }
    for api, (path, body) in plain.items():
        serving = serve(lambda _: ScriptedReply("ok"), speaks=["chat"])
        for name, use in FIELDS[api].items():
            if "." in name or name in body or use in (Use.ASKED, Use.REFUSED):
                continue
            reply = httpx.post(f"{serving.url}{path}", json={**body, name: values.get(name, "x")})
            assert reply.status_code == 200, (api, name, reply.text)
            assert left_out(reply) == ([name] if use is Use.LEFT_OUT else [])
