"""Known gaps: what this adapter does not evaluate."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lgov_core.governor import Governor
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.types import Action, Decision
from lgov_openai import instrument, uninstrument
from lgov_openai.instrumentor import INSTRUMENTOR
from tests.cells import NoErasing, Seen, asks
from tests.openai import openai_programs as programs
from tests.openai.rules import USER, chat

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "erase_file", "arguments": "{}"}


class NoCalls(NoErasing):
    """Denies everything."""

    def judge(self, action: Action) -> Decision | None:
        return self.deny("nothing", "nothing is allowed here")


@pytest.fixture
def all_denied() -> Iterator[Seen]:
    """What is judged in an instrumented process in which everything is denied."""
    found = Seen()
    governor = Governor([NoCalls([])], plugins=[found])
    instrument(governor)
    yield found
    uninstrument()
    governor.close()


@contextmanager
def answering(body: dict[str, Any]) -> Iterator[str]:
    """A server that has this answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            text = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = answer

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.gap("openai", "replies that are fetched later")
def test_a_reply_fetched_later_is_not_evaluated(all_denied: Seen) -> None:
    body = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [CALL],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    with answering(body) as url, programs.client(url) as client:
        response = client.responses.retrieve("resp_1")
    assert [item.name for item in response.output if item.type == "function_call"] == ["erase_file"]
    assert all_denied.events == []


@pytest.mark.gap("openai", "runs on the server")
def test_a_batch_on_the_server_is_not_evaluated(all_denied: Seen) -> None:
    body = {"id": "batch_1", "object": "batch", "endpoint": "/v1/chat/completions", "input_file_id": "f", "status":
            "validating", "completion_window": "24h", "created_at": 1}  # fmt: skip
    with answering(body) as url, programs.client(url) as client:
        batch = client.batches.create(input_file_id="f", endpoint="/v1/chat/completions", completion_window="24h")
    assert batch.status == "validating"
    assert all_denied.events == []


@pytest.mark.gap("openai", "other kinds of requests")
def test_a_completion_of_a_prompt_is_not_evaluated(all_denied: Seen) -> None:
    body = {"id": "cmpl_1", "object": "text_completion", "created": 1, "model": "m", "choices":
            [{"index": 0, "text": "once", "finish_reason": "stop", "logprobs": None}]}  # fmt: skip
    with answering(body) as url, programs.client(url) as client:
        assert client.completions.create(model="m", prompt="tell").choices[0].text == "once"
    assert all_denied.events == []


@pytest.mark.gap("openai", "connections that stay open")
def test_a_websocket_is_not_evaluated(all_denied: Seen) -> None:
    pytest.importorskip("websockets")
    from websockets.sync.server import serve

    heard: list[Any] = []

    def talk(connection: Any) -> None:
        heard.append(json.loads(connection.recv()))
        done = {
            "type": "response.output_item.done",
            "event_id": "e",
            "response_id": "r",
            "output_index": 0,
            "item": CALL,
        }
        connection.send(json.dumps(done))

    with serve(talk, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.socket.getsockname()[1]
            with (
                programs.client(
                    f"http://127.0.0.1:{port}/v1", websocket_base_url=f"ws://127.0.0.1:{port}/v1"
                ) as client,
                client.realtime.connect(model="m") as connection,
            ):
                connection.response.create()
                event: Any = connection.recv()
        finally:
            server.shutdown()
            thread.join()
    assert [one["type"] for one in heard] == ["response.create"]
    assert event.item.name == "erase_file"
    assert all_denied.events == []


@pytest.mark.gap("openai", "calls the model did not propose")
def test_a_call_of_the_program_itself_is_not_evaluated(instrumented, seen, tmp_path):
    """The gap: the loop erases other files than the model asked for. Nobody judges that."""
    file = tmp_path / "precious.txt"
    file.write_text("precious")
    with ScriptedModelServer([asks(("c1", "look", {"path": str(file)}))]) as server:
        for _ in chat(programs.client(server.base_url)).tool_calls:
            file.unlink()
    assert not file.exists()
    assert [one.action.name for one in seen.decisions()] == ["look"]
    assert INSTRUMENTOR.gaps[0].name == "calls the model did not propose"


@pytest.mark.gap("openai", "other ways to a model")
def test_a_request_without_the_client_is_not_evaluated(instrumented, seen):
    import httpx

    with ScriptedModelServer([asks(("c1", "erase_file", {}))]) as server:
        reply = httpx.post(f"{server.base_url}/chat/completions", json={"model": "m", "messages": [USER]}).json()
    assert reply["choices"][0]["message"]["tool_calls"]
    assert seen.events == []


@pytest.mark.gap("openai", "hosted tools")
def test_a_hosted_tool_has_run_when_the_reply_comes(instrumented, seen):
    item = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
    body = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [item],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    with ScriptedModelServer([ScriptedReply(body=json.dumps(body).encode())]) as server:
        response = programs.client(server.base_url).responses.create(model="m", input="go")
    assert [one.type for one in response.output] == ["web_search_call"]
    assert seen.decisions() == []
