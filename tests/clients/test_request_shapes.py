"""Requests as coding agents send them are answered, whatever stands behind the endpoint, and nothing is left out unseen."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from lgov_core.gateway.limits import Limits
from lgov_core.gateway.policy_gate import open_gate
from lgov_core.governance import Governance
from lgov_core.testing import ScriptedReply
from lgov_core.wire.fields import FIELDS, Use
from tests.clients.request_shapes import ASK, CLAUDE_CODE, CLAUDE_CODE_NEXT, CODEX, CODEX_NEXT, SHAPES
from tests.gateway.conftest import embedded_url, error_in, model, serve, store  # noqa: F401

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
