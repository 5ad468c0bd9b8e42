"""A request counts as it is in memory: small in bytes and large when it is parsed is refused before it is parsed."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from lgov_core.errors import EndpointError
from lgov_core.gateway.limits import Limits
from lgov_core.wire.fields import count_values

UNITS = (b"[],", b'"",', b'{"a":1},', b'{"":{}},', b"1,", b'"\\"",')
HEAD = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stop": '


def test_hostile_bodies_are_refused_and_other_requests_answered(serve) -> None:
    serving = serve([])
    slowest, done = [0.0], threading.Event()

    def watch() -> None:
        with httpx.Client(base_url=serving.url) as client:
            while not done.wait(0.01):
                began = time.monotonic()
                assert client.get("/healthz").status_code == 200
                slowest[0] = max(slowest[0], time.monotonic() - began)

    watching = threading.Thread(target=watch)
    watching.start()
    bodies = [HEAD + b"[" + unit * (7_000_000 // len(unit)) + b"0]}" for unit in UNITS]
    with ThreadPoolExecutor(6) as pool:
        post = lambda body: httpx.post(f"{serving.base_url}/chat/completions", content=body, timeout=60)  # noqa: E731
        replies = list(pool.map(post, bodies))
    done.set()
    watching.join()
    assert {(reply.status_code, "320000 JSON values" in reply.text) for reply in replies} == {(413, True)}
    assert slowest[0] < 2
    assert serving.endpoint.app.state.endpoint.bodies.bytes == 0


def test_a_long_text_is_one_value(serve) -> None:
    serving = serve(["ok"])
    asked = {"model": "m", "messages": [{"role": "user", "content": 'a, [b], {"c"}, ' * 200_000}]}
    assert httpx.post(f"{serving.base_url}/chat/completions", json=asked, timeout=60).status_code == 200
    assert serving.model.requests[0].body["messages"] == asked["messages"]


def test_parsed_values_count_as_memory_that_is_held(serve) -> None:
    serving = serve(["ok"], limits=Limits(max_body=100_000, max_held=1_000_000))
    url = f"{serving.base_url}/chat/completions"
    assert httpx.post(url, content=HEAD + b"[" + b"[]," * 20_000 + b"0]}").status_code == 503
    assert httpx.post(url, json={"model": "m", "messages": [{"role": "user", "content": "x"}]}).status_code == 200


@pytest.mark.parametrize("raw", [b'"' + b'\\"' * 500_000 + b",", b'"' + b"\\" * 999_999, b'",' * 500_000])
def test_counting_takes_linear_time(raw: bytes) -> None:
    began = time.monotonic()
    with suppress(EndpointError):
        count_values(raw + b",,,,,,,,,,", 5)
    assert time.monotonic() - began < 2
