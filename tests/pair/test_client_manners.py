"""How a client treats its server: it is patient with a busy one, sends much in parts, and hands back what it leaves."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lgov_core import Client
from lgov_core.client.wire import ServerConnection
from lgov_core.errors import ClientError
from lgov_core.server.training import TrainingServer
from lgov_core.types import Outcome
from tests.pair import pair_agents as agents

Serve = Callable[..., TrainingServer]


@contextmanager
def answering(*statuses: int) -> Generator[tuple[str, list[str]]]:
    """The address of a server that answers with these statuses, the last of them for ever, and what it was asked."""
    left, asked = list(statuses), list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status = left.pop(0) if len(left) > 1 else left[0]
            body = b'{"fine": true}' if status == 200 else b'{"error": {"message": "come back"}}'
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("busy", [429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again_as_long_as_there_is_patience(busy: int) -> None:
    with answering(busy, busy, 200) as (url, asked):
        assert ServerConnection(url, patience_s=60.0).get("/train/progress") == {"fine": True}
        assert len(asked) == 3
    with answering(busy) as (url, asked), pytest.raises(ClientError, match="come back"):
        ServerConnection(url, patience_s=0.0).get("/train/progress")
    assert len(asked) == 1


@pytest.mark.parametrize("refused", [401, 404, 409, 422])
def test_what_is_refused_is_not_asked_again(refused: int) -> None:
    with answering(refused, 200) as (url, asked), pytest.raises(ClientError, match="come back"):
        ServerConnection(url, patience_s=60.0).get("/train/progress")
    assert len(asked) == 1


def test_more_tasks_than_go_into_one_request_are_uploaded(serve: Serve) -> None:
    server = serve()
    tasks = [{"number": number, "question": "long " * 200_000} for number in range(12)]
    assert Client(server.url, quiet=True).upload_data(tasks) == {"train": 12, "test": 0}
    assert server.coordinator.tasks.of("train") == tasks


def test_an_interrupted_client_hands_back_what_it_had(serve: Serve) -> None:
    server = serve()
    client = Client(server.url, quiet=True)
    client.upload_data([{"question": "a"}, {"question": "b"}])
    begun, go = threading.Event(), threading.Event()

    def agent(resource: Any, task: Any) -> float:
        if not begun.is_set():
            begun.set()
            _thread.interrupt_main()  # as Ctrl-C
        go.wait()
        return 1.0

    try:
        with pytest.raises(KeyboardInterrupt):
            client.train(agent, nworkers=2, auto_instrumentation=False)
        given = [one for one in server.store.attempts() if one.error == "the client was interrupted"]
        assert given, "without it they would be lost only when their lease ends"
        assert {one.outcome for one in given} == {Outcome.INFRASTRUCTURE}
        assert all(one.outcome is not None for one in server.store.attempts())
    finally:
        go.set()
    # The same work is done by the next client.
    assert Client(server.url, quiet=True).train(agents.digits, nworkers=4).updates == 2
