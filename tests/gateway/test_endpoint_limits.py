"""Sizes, times and places: what a client may take, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time

import httpx
import openai
import pytest

from lgov_core.errors import EndpointError
from lgov_core.gateway.limits import Limits
from lgov_core.testing import ScriptedReply
from tests.gateway.conftest import until

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def talk(serving, sent: bytes, *, then: bytes = b"") -> bytes:
    """What comes back for raw bytes, until the endpoint hangs up."""
    with socket.create_connection(("127.0.0.1", serving.endpoint.port), timeout=30) as connection:
        connection.sendall(sent)
        if then:
            connection.sendall(then)
        found = b""
        try:
            while part := connection.recv(65_536):
                found += part
        except ConnectionResetError:
            pass
        return found


def test_urls_and_headers_that_are_too_long(serve):
    serving = serve([], limits=Limits(max_headers=2000, max_url=1000))
    fine = httpx.get(f"{serving.url}/healthz?{'x' * 900}", headers={"x-a": "y" * 1500})
    assert fine.status_code == 200
    assert b" 414 " in talk(serving, b"GET /healthz?" + b"x" * 1000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b" 431 " in talk(serving, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-a: " + b"y" * 2000 + b"\r\n\r\n")
    many = b"".join(b"x-%d: y\r\n" % number for number in range(500))
    assert b" 431 " in talk(serving, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + many + b"\r\n")
    # One header without an end is refused before it has filled the memory.
    assert b" 431 " in talk(serving, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-a: " + b"y" * 4000)
    assert b" 400 " in talk(serving, b"\x00\x01nonsense\r\n\r\n")
    assert httpx.get(f"{serving.url}/healthz").status_code == 200


def test_clients_that_are_too_slow_lose_their_connection(serve):
    serving = serve([], limits=Limits(header_s=0.2, body_s=0.2, idle_s=1))
    assert talk(serving, b"") == b""
    assert talk(serving, b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n") == b""
    slow = talk(
        serving, b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n", then=b'{"a"'
    )
    assert b" 408 " in slow
    assert b"did not arrive within 0.2 s" in slow
    kept = talk(serving, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b" 200 " in kept  # and then it was hung up, after a second of silence


def test_a_body_is_not_late_while_its_request_waits_for_a_place(serve):
    gate = threading.Event()
    serving = serve(lambda body: ScriptedReply("x", gate=gate), limits=Limits(max_running=1, body_s=0.2, wait_s=30))
    admission = serving.endpoint.app.state.endpoint.admission
    answers: list[httpx.Response] = []
    threads = [asking(serving, answers)]
    until(lambda: admission.running == 1)
    threads.append(asking(serving, answers, user="u" * 2_000_000))  # of which the server reads only a little by then
    until(lambda: admission.waiting == 1)
    time.sleep(0.6)
    gate.set()
    for thread in threads:
        thread.join(30)
    assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel how many packets came")
def test_the_head_and_the_body_of_an_answer_are_one_packet(serve):
    serving = serve([])
    with socket.create_connection(("127.0.0.1", serving.endpoint.port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        data_segs_in = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 156)[152:]
    assert answer.endswith(b'\r\n\r\n{"status":"ok"}')
    assert int.from_bytes(data_segs_in, sys.byteorder) == 1


def test_a_client_that_does_not_read_frees_its_place(serve):
    chunk = '{"id": "c-1", "choices": [{"index": 0, "delta": {"content": "%s"}}]}' % ("w" * 100_000)
    long_stream = f"data: {chunk}\n\n".encode() * 100
    replies = [ScriptedReply(body=long_stream, content_type="text/event-stream"), "short"]
    serving = serve(replies, limits=Limits(max_running=1, write_s=0.3, wait_s=30))
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", serving.endpoint.port))
        body = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "x"}]}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
        deaf.sendall(head % len(body) + body)
        while not serving.model.requests:
            time.sleep(0.01)
        reply = httpx.post(f"{serving.base_url}/chat/completions", json=BODY, timeout=30)
    assert reply.status_code == 200


def asking(serving, answers: list[httpx.Response], **more) -> threading.Thread:
    def ask() -> None:
        answers.append(httpx.post(f"{serving.base_url}/chat/completions", json={**BODY, **more}, timeout=60))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_places_are_bounded_and_so_is_the_queue_before_them(serve, store):
    gate = threading.Event()
    serving = serve(lambda body: ScriptedReply("x", gate=gate), limits=Limits(max_running=2, max_waiting=2, wait_s=60))
    admission = serving.endpoint.app.state.endpoint.admission
    answers: list[httpx.Response] = []
    threads = [asking(serving, answers, stream=number % 2 == 0) for number in range(4)]
    until(lambda: admission.running == 2 and admission.waiting == 2)
    turned_away = httpx.post(f"{serving.base_url}/chat/completions", json=BODY)
    assert turned_away.status_code == 429
    assert turned_away.headers["retry-after"] == "1"
    assert turned_away.json()["error"]["code"] == "busy"
    with pytest.raises(openai.RateLimitError):
        openai.OpenAI(base_url=serving.base_url, api_key="any", max_retries=0).chat.completions.create(**BODY)
    assert httpx.get(f"{serving.url}/healthz").status_code == 200  # what asks no model needs no place
    gate.set()
    for thread in threads:
        thread.join(60)
    assert [answer.status_code for answer in answers] == [200] * 4
    # A client may have its whole answer a moment before the endpoint takes the place back.
    until(lambda: admission.running == admission.waiting == 0)
    assert admission.refused == 2
    assert len(list(store.calls())) == 4


def test_waiting_calls_time_out_or_leave(serve):
    gate = threading.Event()
    serving = serve(lambda body: ScriptedReply("x", gate=gate), limits=Limits(max_running=1, wait_s=0.2))
    admission = serving.endpoint.app.state.endpoint.admission
    answers: list[httpx.Response] = []
    first = asking(serving, answers)
    until(lambda: admission.running == 1)
    late = httpx.post(f"{serving.base_url}/chat/completions", json=BODY)
    assert (late.status_code, late.headers["retry-after"]) == (503, "1")
    assert "waited 0.2 s" in late.json()["error"]["message"]
    gate.set()
    first.join(30)
    until(lambda: admission.running == admission.waiting == 0)


def test_a_pause_holds_new_calls_and_loses_none(serve, store):
    gate = threading.Event()
    serving = serve(lambda body: ScriptedReply("x", gate=gate))
    admission = serving.endpoint.app.state.endpoint.admission
    answers: list[httpx.Response] = []
    before = [asking(serving, answers) for _ in range(3)]
    until(lambda: admission.running == 3)
    early = httpx.post(f"{serving.url}/admin/pause", json={"drain_s": 0, "reason": "weights"}).json()
    assert (early["paused"], early["drained"], early["running"], early["reason"]) == (True, False, 3, "weights")
    not_yet = httpx.post(f"{serving.url}/admin/resume", json={"weights_version": 7})
    assert not_yet.status_code == 409
    assert httpx.get(f"{serving.url}/admin/state").json()["paused"] is True
    after = [asking(serving, answers) for _ in range(2)]
    until(lambda: admission.waiting == 2)
    drained: list[dict] = []
    waiting = threading.Thread(
        target=lambda: drained.append(
            httpx.post(f"{serving.url}/admin/pause", json={"drain_s": 30, "reason": "weights"}, timeout=60).json()
        )
    )
    waiting.start()
    until(lambda: len(serving.model.requests) == 3)
    gate.set()
    waiting.join(30)
    assert (drained[0]["drained"], drained[0]["running"], drained[0]["waiting"]) == (True, 0, 2)
    assert len(serving.model.requests) == 3  # held, not lost
    resumed = httpx.post(f"{serving.url}/admin/resume", json={"weights_version": 7}).json()
    assert (resumed["paused"], resumed["weights_version"]) == (False, 7)
    for thread in [*before, *after]:
        thread.join(30)
    assert [answer.status_code for answer in answers] == [200] * 5
    assert [call.weights_version for call in store.calls()] == [None] * 3 + [7] * 2


def test_a_pause_that_lasts_too_long_is_a_503_with_advice(serve):
    serving = serve(["x"], limits=Limits(wait_s=0.1))
    httpx.post(f"{serving.url}/admin/pause", json={"reason": "an update", "retry_after_s": 9})
    held = httpx.post(f"{serving.base_url}/chat/completions", json=BODY)
    assert (held.status_code, held.headers["retry-after"]) == (503, "9")
    assert "paused: an update" in held.json()["error"]["message"]
    assert serving.model.requests == []
    assert httpx.get(f"{serving.url}/readyz").status_code == 200, "the next calls are held for the end of the pause"
    httpx.post(f"{serving.url}/admin/resume")
    assert httpx.post(f"{serving.base_url}/chat/completions", json=BODY).status_code == 200


@pytest.mark.parametrize(("route", "body"), [("pause", {"drain": 1}), ("resume", {"version": 7})])
def test_a_field_that_is_not_known_is_refused(serve, route, body):
    serving = serve([])
    refused = httpx.post(f"{serving.url}/admin/{route}", json=body)
    assert refused.status_code == 400
    assert f"'{next(iter(body))}' is not a field" in refused.json()["error"]["message"]
    assert httpx.get(f"{serving.url}/admin/state").json()["paused"] is False


async def test_a_cancelled_waiter_passes_its_place_on():
    from lgov_core.gateway.limits import Admission

    admission = Admission(Limits(max_running=1, wait_s=30))
    await admission.enter()
    first, second = (asyncio.create_task(admission.enter()) for _ in range(2))
    await asyncio.sleep(0)
    admission.leave()
    first.cancel()  # it has been given the place and has not seen it yet
    await asyncio.gather(first, return_exceptions=True)
    async with asyncio.timeout(10):
        await second
    assert (admission.running, admission.waiting) == (1, 0)


def test_limits_without_meaning():
    for wrong in ({"max_body": 0}, {"wait_s": -1}, {"max_running": 0}):
        with pytest.raises(EndpointError, match="the limit"):
            Limits(**wrong)
    assert Limits(max_waiting=0).max_waiting == 0


def test_bodies_of_all_requests_together_have_a_limit(serve):
    serving = serve(lambda body: "x", limits=Limits(max_body=60_000, max_held=100_000))
    held = serving.endpoint.app.state.endpoint

    def post(path: str) -> httpx.Response:
        return httpx.post(f"{serving.url}{path}", json={**BODY, "user": "y" * 55_000})

    head = b"POST /v1/%b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 59000\r\n\r\n"
    assert post("/v1/chat/completions").status_code == 200
    with socket.create_connection(("127.0.0.1", serving.endpoint.port), timeout=30) as unfinished:
        unfinished.sendall(head % b"traces" + b"{" * 58_000)
        until(lambda: held.bodies.bytes == 58_000)
        refused = post("/v1/chat/completions")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert post("/v1/traces").status_code == 503
        assert httpx.post(f"{serving.base_url}/chat/completions", json=BODY).status_code == 200
    until(lambda: held.bodies.bytes == 0)
    assert post("/v1/chat/completions").status_code == 200
    # What is thrown away because it is too long takes no room.
    long = httpx.post(f"{serving.base_url}/chat/completions", json={**BODY, "user": "y" * 300_000})
    assert long.status_code == 413
    assert held.bodies.bytes == 0
