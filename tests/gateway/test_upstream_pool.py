"""Several upstreams for one model, real servers that come and go."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from lgov_core.errors import EndpointError
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.gateway.upstream_pool import UpstreamPool
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from tests.gateway.conftest import until

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


class Pool:
    """An endpoint before several upstreams."""

    def __init__(self, stack: ExitStack, urls: list[str], store=None, **options) -> None:
        self.engine = UpstreamEngine(urls, timeout_s=options.pop("timeout_s", 20), **options)
        self.server = stack.enter_context(
            EndpointServer(create_app([self.engine], store, keys=KeyRing(required=False)))
        )
        self.client = stack.enter_context(httpx.Client(timeout=30))

    def ask(self, rollout: str | None = None, **more) -> httpx.Response:
        prefix = "" if rollout is None else f"/rollout/{rollout}/attempt/1"
        return self.client.post(f"{self.server.url}{prefix}/v1/chat/completions", json={**BODY, **more})


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def model(stack: ExitStack, script, port: int = 0) -> ScriptedModelServer:
    return stack.enter_context(ScriptedModelServer(script, port=port))


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def port_of(server: ScriptedModelServer) -> int:
    return int(server.base_url.split(":")[2].split("/")[0])


def test_rollouts_stick_to_one_upstream_and_spread(stack):
    servers = [model(stack, lambda body, n=n: str(n)) for n in range(3)]
    pool = Pool(stack, [server.base_url for server in servers])
    homes = {}
    for name in [f"r{n}" for n in range(24)]:
        said = {pool.ask(name).json()["choices"][0]["message"]["content"] for _ in range(3)}
        assert len(said) == 1
        homes[name] = said.pop()
    assert set(homes.values()) == {"0", "1", "2"}
    # Another pool of the same servers, in another order, knows the same homes.
    other = UpstreamPool([server.base_url for server in reversed(servers)])
    assert {name: servers[int(home)].base_url for name, home in homes.items()} == {
        name: other.order(name)[0].url for name in homes
    }
    # Without one of them only its own rollouts move.
    fewer = UpstreamPool([server.base_url for server in servers[:2]])
    assert all(fewer.order(name)[0].url == servers[int(home)].base_url for name, home in homes.items() if home != "2")


def test_a_server_that_is_down_is_skipped_until_it_is_back(stack):
    port = closed_port()
    up = model(stack, lambda body: "up")
    urls = [f"http://127.0.0.1:{port}/v1", up.base_url]
    moved = next(name for name in (f"r{n}" for n in range(100)) if UpstreamPool(urls).order(name)[0].url == urls[0])
    pool = Pool(stack, urls, check_s=0.05)
    assert [pool.ask(moved).json()["choices"][0]["message"]["content"] for _ in range(3)] == ["up"] * 3
    until(lambda: not pool.engine.pool.replicas[0].reachable)
    text = pool.client.get(f"{pool.server.url}/metrics").text
    assert f'lgov_upstream_up{{upstream="127.0.0.1:{port}"}} 0.0' in text
    back = model(stack, lambda body: "back", port=port)
    until(lambda: pool.engine.pool.replicas[0].reachable)
    assert pool.ask(moved).json()["choices"][0]["message"]["content"] == "back"
    assert len(back.requests) == 1


@pytest.mark.parametrize("status", [429, 502, 503])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_says_come_back_is_asked_of_the_next(stack, store, status, stream):
    first = model(stack, lambda body: ScriptedReply("busy", status=status))
    second = model(stack, lambda body: "fine")
    pool = Pool(stack, [first.base_url, second.base_url], store=store)
    name = next(name for name in (f"r{n}" for n in range(100)) if pool.engine.pool.order(name)[0].url == first.base_url)
    assert "fine" in pool.ask(name, stream=stream).text
    assert (len(first.requests), len(second.requests)) == (1, 1)
    assert len(list(store.calls())) == 1


def test_when_all_say_so_the_last_answer_is_handed_on(stack):
    servers = [model(stack, lambda body: ScriptedReply("slow down", status=429)) for _ in range(2)]
    pool = Pool(stack, [server.base_url for server in servers])
    reply = pool.ask("r1")
    assert (reply.status_code, reply.json()["error"]["message"]) == (429, "slow down")
    assert [len(server.requests) for server in servers] == [1, 1]


def test_other_errors_and_broken_streams_are_not_repeated(stack, store):
    replies = {
        "error": ScriptedReply("broken", status=500),
        "bad": ScriptedReply("bad", status=400),
        "cut": ScriptedReply("one two three", cut_at=2),
    }
    servers = [model(stack, lambda body: replies[body["user"]]) for _ in range(2)]
    pool = Pool(stack, [server.base_url for server in servers], store=store)
    statuses = [pool.ask("r1", user=user, stream=user == "cut").status_code for user in ("error", "bad", "cut")]
    assert statuses == [502, 400, 200]
    assert sum(len(server.requests) for server in servers) == 3
    assert [call.finish_reason for call in store.calls()] == ["cancelled"], "what came of the broken stream"


def test_a_connection_that_breaks_is_not_repeated(stack):
    asked = Counter()

    def hang_up(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                asked[connection.recv(65_536)[:5]] += 1

    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    threading.Thread(target=hang_up, args=(listener,), daemon=True).start()
    other = model(stack, lambda body: "fine")
    pool = Pool(stack, [f"http://127.0.0.1:{listener.getsockname()[1]}/v1", other.base_url], check_s=1000)
    name = next(name for name in (f"r{n}" for n in range(100)) if pool.engine.pool.order(name)[0].url != other.base_url)
    assert pool.ask(name).status_code == 502  # it may have run: the client decides
    assert (asked[b"POST "], len(other.requests)) == (1, 0)
    for _ in range(2):
        pool.ask(name)
    assert pool.ask(name).status_code == 200  # after three failures in a row it is left out
    assert asked[b"POST "] == 3


def test_calls_of_no_rollout_go_where_least_is_to_do(stack):
    gate = threading.Event()
    slow = model(stack, lambda body: ScriptedReply("slow", gate=gate))
    fast = model(stack, lambda body: "fast")
    pool = Pool(stack, [slow.base_url, fast.base_url])
    waiting = threading.Thread(target=pool.ask)
    waiting.start()
    until(lambda: pool.engine.pool.replicas[0].running == 1)
    assert [pool.ask().json()["choices"][0]["message"]["content"] for _ in range(3)] == ["fast"] * 3
    gate.set()
    waiting.join(30)


def test_a_pool_is_made_of_servers():
    for urls in ([], ["http://a/v1", "http://a/v1"]):
        with pytest.raises(EndpointError, match="at least one upstream"):
            UpstreamEngine(urls)
    with pytest.raises(EndpointError, match="is not a URL"):
        UpstreamEngine(["http://a/v1", "nonsense"])
