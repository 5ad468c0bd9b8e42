"""``lgov serve`` in a process of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from lgov_core.commands.group import Exit
from lgov_core.settings import Settings
from lgov_core.store import open_store
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from tests.commands.cli_runner import LGOV, lgov
from tests.gateway.conftest import until
from tests.otlp.test_export import CollectorServer, collector, said  # noqa: F401 - a fixture


class Serving:
    """``lgov serve`` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*LGOV, "serve", "--port", "0", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Serving:
        assert self.process.stdout is not None
        text = ""
        while line := self.process.stdout.readline():
            text += line
            if line == "}\n":
                break
        self.about = json.loads(text)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, model: str = "scripted", **headers: str) -> dict[str, Any]:
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi"}]}).encode()
        request = urllib.request.Request(
            f"{self.about['base_url']}/chat/completions",
            data=body,
            headers={"content-type": "application/json", **{name.replace("_", "-"): v for name, v in headers.items()}},
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_serve_records_calls_and_closes_its_store_on_a_signal(folder: Path, how: signal.Signals, status: int) -> None:
    with (
        ScriptedModelServer(["Hello."]) as model,
        Serving("--upstream", model.base_url, "--store", "calls.sqlite") as serving,
    ):
        reply = serving.ask(x_lgov_rollout_id="rol_1", x_lgov_attempt="1")
        assert serving.end(how) == status
    store = open_store(folder / "calls.sqlite")
    try:
        (call,) = store.calls()
    finally:
        store.close()
    assert (call.response_id, call.rollout_id) == (reply["id"], "rol_1")


def test_how_long_an_upstream_may_take_is_a_setting() -> None:
    assert Settings().upstream_timeout_s == openai.DEFAULT_TIMEOUT.read, "a client that waits longer does not ask twice"
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Serving(
            "--upstream", f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "--set", "upstream_timeout_s=0.3"
        ) as serving,
        pytest.raises(urllib.error.HTTPError) as late,
    ):
        serving.ask()
    assert late.value.code == 504
    said = json.load(late.value)["error"]["message"]
    assert "did not answer within 0.3 s" in said
    assert "upstream_timeout_s" in said


DENYING = """\
version: 1
name: desk
default: deny
rules:
  - {name: read, tools: [read_order], use: allow}
"""


def ids_and_attributes(receiver: CollectorServer) -> dict[tuple[bytes, bytes], dict[str, Any]]:
    """What a collector got: by trace and span the name and the attributes."""
    return {(span.trace_id, span.span_id): {"name": span.name, **said(span)} for span in receiver.spans()}


def test_serve_sends_each_call_and_denial_to_a_collector_while_it_runs(
    folder: Path,
    collector: CollectorServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=plover%20one")
    (folder / "policy.yaml").write_text(DENYING)
    denied = ScriptedReply("", [ScriptedCall("delete_order", {"order": "17"}, "c1")])
    with (
        ScriptedModelServer(["Hello.", denied]) as model,
        Serving("--upstream", model.base_url, "--store", "calls.sqlite", "--policy", "policy.yaml", "--set",
                f"otlp={collector.url}") as serving,
    ):  # fmt: skip
        for _ in range(2):
            serving.ask(x_lgov_rollout_id="rol_1", x_lgov_attempt="1")
        until(lambda: len({span.span_id for span in collector.spans()}) >= 3)
        assert serving.process.poll() is None, "it still runs"
        live = ids_and_attributes(collector)
        assert serving.end(signal.SIGTERM) == 0
    assert collector.headers[0]["api-key"] == "plover one"
    (chat, _) = (span for span in live.values() if span["name"] == "chat scripted")
    assert chat["gen_ai.operation.name"] == "chat"
    assert chat["gen_ai.usage.output_tokens"] > 0
    assert "Hi" in chat["gen_ai.input.messages"]
    (decision,) = (span for span in live.values() if span["name"] == "lgov.decision")
    assert (decision["lgov.action.name"], decision["lgov.decision.effect"]) == ("delete_order", "deny")
    # What the store sends afterwards are the same spans, below one of the attempt.
    collector.bodies.clear()
    lgov("export", "calls.sqlite", "--format", "otlp", "--to", collector.url)
    exported = ids_and_attributes(collector)
    assert {key: exported[key] for key in live} == live
    assert [span["name"] for key, span in exported.items() if key not in live] == ["lgov.rollout"]


def test_a_collector_that_is_away_costs_no_call_and_is_told_once(folder: Path) -> None:
    with (
        ScriptedModelServer(lambda body: "Hello.") as model,
        Serving("--upstream", model.base_url, "--store", "calls.sqlite", "--set", "otlp=http://127.0.0.1:9/v1/traces",
                "--set", "log_file=log", "--set", "content=false") as serving,
    ):  # fmt: skip
        for number in range(3):
            assert serving.ask(x_lgov_rollout_id=f"rol_{number}", x_lgov_attempt="1")["id"]
        until(lambda: 'lgov_exported_spans_total{what="dropped"} 3.0' in metrics(serving))
        assert serving.end(signal.SIGTERM) == 0
    (line,) = (line for line in (folder / "log").read_text().splitlines() if "collector is down" in line)
    assert "127.0.0.1:9" in line


def test_a_collector_needs_a_store(folder: Path) -> None:
    result = lgov("serve", "--upstream", "http://127.0.0.1:9/v1", "--set", "otlp=http://127.0.0.1:4318/v1/traces")
    assert result.exit_code == Exit.USAGE
    assert "no store is set" in result.output


def metrics(serving: Serving) -> str:
    with urllib.request.urlopen(f"{serving.about['url']}/metrics", timeout=30) as reply:
        return reply.read().decode()


def test_serve_calls_the_apis_of_upstream_speaks(folder: Path) -> None:
    for speaks, asked in (("chat, responses", "responses"), ("chat", "chat/completions")):
        with (
            ScriptedModelServer(["Hello."]) as model,
            Serving("--upstream", model.base_url, "--set", f"upstream_speaks={speaks}") as serving,
        ):
            body = json.dumps({"model": "scripted", "input": "Hi"}).encode()
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(f"{serving.about['base_url']}/responses", body, headers)
            with urllib.request.urlopen(request, timeout=30) as reply:
                assert json.load(reply)["object"] == "response"
            assert [one.path.removeprefix("/v1/") for one in model.requests] == [asked]


def test_serve_with_a_secret_requires_a_key(folder: Path) -> None:
    secret = folder / "secret"
    secret.write_bytes(b"0123456789abcdef\n")
    secret.chmod(0o600)
    with (
        ScriptedModelServer(["Hello."]) as model,
        Serving("--upstream", model.base_url, "--key-secret-file", "secret", "--show-admin-key") as serving,
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            serving.ask()
        refused.value.close()
        assert refused.value.code == 401
        assert serving.ask(authorization=f"Bearer {serving.about['admin_key']}")["choices"]


def test_serve_under_a_policy_and_before_several_upstreams(folder: Path) -> None:
    (folder / "policy.yaml").write_text(
        'version: 1\nrules:\n  - {name: quiet, "on": [pre_model_call], use: deny, with: {reason: Not today.}}\n'
    )
    with (
        ScriptedModelServer(["Hello."]) as model,
        Serving("--upstream", f"http://127.0.0.1:9/v1, {model.base_url}") as free,
        Serving("--upstream", model.base_url, "--policy", "policy.yaml") as governed,
    ):
        assert free.ask(x_lgov_rollout_id="rol_1", x_lgov_attempt="1")["choices"][0]["message"]["content"] == "Hello."
        said = governed.ask()["choices"][0]["message"]["content"]
        assert said.startswith("DENIED by policy quiet")
        assert governed.end(signal.SIGTERM) == 0
    assert lgov("audit", "verify", ".lgov/audit.db").exit_code == Exit.OK
    result = lgov("serve", "--upstream", model.base_url, "--policy", "missing.yaml")
    assert result.exit_code == Exit.USAGE
    assert "missing.yaml" in result.stderr


@pytest.mark.parametrize(
    ("setting", "says"),
    [("metrics_by=agnet", "agent, key"), ("max_running=0", "max_running"), ("tls_cert=cert.pem", "tls_key")],
)
def test_a_value_that_has_no_meaning_is_an_error_of_the_settings(setting: str, says: str) -> None:
    result = lgov("serve", "--upstream", "http://127.0.0.1:9/v1", "--set", setting)
    assert result.exit_code == Exit.USAGE
    assert says in result.stderr


def test_a_secret_that_others_can_read_is_refused(folder: Path) -> None:
    secret = folder / "secret"
    secret.write_bytes(b"0123456789abcdef\n")
    secret.chmod(0o644)
    result = lgov("serve", "--upstream", "http://127.0.0.1:9/v1", "--key-secret-file", "secret")
    assert result.exit_code == Exit.USAGE
    assert "chmod 600" in result.stderr


def test_serve_says_when_the_port_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = lgov("serve", "--upstream", "http://127.0.0.1:9/v1", "--port", str(port))
    assert result.exit_code == Exit.FINDING
    assert f"port {port}" in result.stderr
    assert "hint:" in result.stderr


@pytest.mark.parametrize("arguments", [(), ("--model", "smollm2", "--upstream", "http://127.0.0.1:9/v1")])
def test_serve_requires_one_of_model_and_upstream(arguments: tuple[str, ...]) -> None:
    result = lgov("serve", *arguments)
    assert result.exit_code == Exit.USAGE
    assert "one of model and upstream" in result.stderr
