"""What becomes of calls that still run when the time to end is over, or when their client leaves."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from lgov_core.audit import make_key
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.limits import Limits
from lgov_core.gateway.operation import logging_by
from lgov_core.gateway.policy_gate import open_gate
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.governance import Governance
from lgov_core.settings import load_settings
from lgov_core.store import open_store
from lgov_core.testing import ScriptedModelServer
from lgov_core.trace import semconv
from tests.gateway.conftest import SECRET, until

BUDGET = """
version: 1
rules:
  - {name: budget, use: cost, with: {max_tokens: 1000000, per: global, ledger: "LEDGER"}}
  - {name: read, tools: [read_order], use: allow}
"""


@dataclass
class Stopped:
    """An endpoint with a budget whose upstream does not answer before `stop`."""

    folder: Path
    server: EndpointServer
    model: ScriptedModelServer
    key: str
    goes_on: threading.Event = field(default_factory=threading.Event)

    def cut(self, path: str, body: dict[str, Any], **more: str) -> httpx.Response:
        """The answer to a call that is cut."""
        headers = {"x-api-key": self.key, **more}
        with ThreadPoolExecutor() as thread:
            url = f"{self.server.base_url}{path}"
            asked = thread.submit(httpx.post, url, json=body, headers=headers, timeout=60)
            until(lambda: bool(self.model.requests))
            self.server.stop()
            return asked.result()

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "serve.log").read_text().splitlines()]

    def ledger(self, query: str) -> list[Any]:
        return sqlite3.connect(self.folder / "ledger.db").execute(query).fetchall()


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Stopped]:
    with running(tmp_path) as endpoint:
        yield endpoint


@contextmanager
def running(folder: Path) -> Iterator[Stopped]:
    make_key(folder / "audit.key")
    (folder / "policy.yaml").write_text(BUDGET.replace("LEDGER", str(folder / "ledger.db")))
    paths = {"policy": "policy.yaml", "audit": "audit.db", "audit_key": "audit.key", "log_file": "serve.log"}
    flags = {**{name: folder / path for name, path in paths.items()}, "log_level": "info", "log_json": True}
    settings = load_settings(flags, folder=folder, environ={})
    store, keys, goes_on = open_store(folder / "calls.db"), KeyRing(SECRET), threading.Event()

    def reply(body: object) -> str:
        assert goes_on.wait(60)
        return "Hello."

    with logging_by(settings), ScriptedModelServer(reply) as model:
        gate = open_gate(Governance.from_settings(settings), store=store)
        engine, limits = UpstreamEngine(model.base_url), Limits(drain_s=1)
        with EndpointServer([engine], store, keys=keys, gate=gate, limits=limits) as server:
            yield Stopped(folder, server, model, keys.issue("ada", 1), goes_on)
        goes_on.set()
        gate.close()
    store.close()


TURN = [{"role": "user", "content": "Hi"}]
CALLS = {
    "/chat/completions": {"model": "m", "messages": TURN},
    "/messages": {"model": "m", "max_tokens": 9, "messages": TURN},
    "/responses": {"model": "m", "input": "Hi"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CALLS)
def test_a_call_that_is_cut_is_a_503_of_its_api_that_can_be_sent_again(
    stopped: Stopped, path: str, stream: bool
) -> None:
    answer = stopped.cut(path, {**CALLS[path], "stream": stream})
    stopped.goes_on.set()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "the endpoint stopped before the reply was complete" in answer.json()["error"]["message"]
    log = stopped.log()
    (cut,) = [line for line in log if "drain_s" in line["event"]]
    assert (cut["level"], cut["requests"], cut["of"]) == ("warning", 1, "ada (1)")
    (answered,) = [line for line in log if line["event"] == "request"]
    assert (answered["status"], answered["key_of"], answered["rollout"]) == (503, "ada", "ada")
    # The upstream may charge it, so it is spent; nothing stays set aside for good.
    assert stopped.ledger("SELECT reserved_calls, calls FROM budgets") == [(0, 1)]
    assert stopped.ledger("SELECT * FROM reservations") == []
    with open_store(stopped.folder / "calls.db") as store:
        (failed,) = [span for span in store.spans(["ada"]) if span.name == "chat m"]
    assert failed.attributes[semconv.ERROR_TYPE] == "CancelledError"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CALLS)
def test_a_call_whose_client_leaves_ends_and_is_spent(stopped: Stopped, path: str, stream: bool) -> None:
    body, headers = {**CALLS[path], "stream": stream}, {"x-api-key": stopped.key}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{stopped.server.base_url}{path}", json=body, headers=headers, timeout=1)
    until(lambda: any(line["event"] == "request" for line in stopped.log()))  # while the upstream still does not answer
    (left,) = [line for line in stopped.log() if line["event"] == "request"]
    assert (left["status"], left["key_of"]) == (499, "ada")
    assert left.get("ended") == ("left by its client" if stream else None)
    assert stopped.ledger("SELECT reserved_calls, calls FROM budgets") == [(0, 1)]
    assert stopped.ledger("SELECT * FROM reservations") == []
    with open_store(stopped.folder / "calls.db") as store:
        assert list(store.calls()) == [], "a reply that no agent got is none to train on"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_was_answered_and_cannot_be_recorded_is_spent(stopped: Stopped, stream: bool) -> None:
    stopped.goes_on.set()
    with contextlib.closing(sqlite3.connect(stopped.folder / "calls.db")) as store, store:
        store.execute("DROP TABLE calls")
    body, headers = {**CALLS["/chat/completions"], "stream": stream}, {"x-api-key": stopped.key}
    answer = httpx.post(f"{stopped.server.base_url}/chat/completions", json=body, headers=headers, timeout=60)
    assert "could not be recorded" in answer.text or "cannot be recorded" in answer.text
    assert stopped.ledger("SELECT reserved_calls, calls FROM budgets") == [(0, 1)]
    assert stopped.ledger("SELECT * FROM reservations") == []


def test_a_stream_that_is_cut_ends_with_an_error_and_what_came_is_recorded(tmp_path: Path) -> None:
    goes_on, log = threading.Event(), tmp_path / "serve.log"

    def pieces() -> Iterator[bytes]:
        piece = {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hel"}}]}
        yield f"data: {json.dumps(piece)}\n\n".encode()
        assert goes_on.wait(60)

    async def upstream(request: Request) -> Response:
        return StreamingResponse(pieces(), media_type="text/event-stream")

    settings = load_settings({"log_file": log, "log_json": True, "log_level": "info"}, folder=tmp_path, environ={})
    app = Starlette(routes=[Route("/v1/chat/completions", upstream, methods=["POST"])])
    with (
        logging_by(settings),
        EndpointServer(app, limits=Limits(drain_s=0)) as model,
        open_store(tmp_path / "calls.db") as store,
        EndpointServer([UpstreamEngine(model.base_url)], store, limits=Limits(drain_s=1)) as server,
    ):
        url, body = f"{server.base_url}/chat/completions", {**CALLS["/chat/completions"], "stream": True}
        with httpx.stream("POST", url, json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            assert "Hel" in next(lines)
            server.stop()
            rest = [json.loads(line[6:]) for line in lines if line]
        goes_on.set()
        assert answer.status_code == 200
        assert [event["error"]["message"] for event in rest] == [
            "the endpoint stopped before the reply was complete (send the call again later)"
        ]
        (call,) = store.calls()
        assert (call.response_id, call.finish_reason) == ("c1", "cancelled")
    (answered,) = [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "request"]
    assert (answered["status"], answered["ended"]) == (200, "cut, since the server stopped")
