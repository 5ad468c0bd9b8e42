"""EgressPolicy, and the connections it guards over real sockets."""

from __future__ import annotations

import http.server
import ipaddress
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from lgov_core.errors import PolicyDenied, PolicyError
from lgov_core.policies import EgressPolicy, guarded_connect, guarded_opener, load_policies
from lgov_core.policies.confinement import made_for_box
from lgov_core.policies.network.egress import why_closed
from lgov_core.types import Action, Point


@dataclass
class Names:
    """A resolver that gives out its answers one after the other, and then the last one again."""

    answers: list[Sequence[str]]
    asked: list[str] = field(default_factory=list)

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@dataclass
class Server:
    """A real HTTP server: what it was asked, with which headers."""

    host: str
    port: int
    location: str = ""
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)


@pytest.fixture
def two_servers() -> Iterator[tuple[Server, Server]]:
    running: list[http.server.ThreadingHTTPServer] = []

    def start(address: str) -> Server:
        found = Server(address, 0)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found.asked.append((self.command, self.path, dict(self.headers)))
                if self.path == "/go":
                    self.send_response(302)
                    self.send_header("Location", found.location)
                    self.end_headers()
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"hello")

            def log_message(self, format: str, *args: object) -> None: ...

        server = http.server.ThreadingHTTPServer((address, 0), Handler)
        found.port = server.server_address[1]
        running.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return found

    yield start("127.0.0.1"), start("127.0.0.2")
    for server in running:
        server.shutdown()
        server.server_close()


def opening(names: Names, *ports: int, domains: Sequence[str] = ("good.example", "127.0.0.1/32")) -> EgressPolicy:
    return EgressPolicy(domains=domains, schemes=["http"], ports=ports, resolver=names)


def test_a_fetch_goes_to_the_address_that_was_judged(two_servers: tuple[Server, Server]) -> None:
    good, _ = two_servers
    names = Names([["127.0.0.1"]])
    with guarded_opener(opening(names, good.port)).open(f"http://good.example:{good.port}/x") as reply:
        assert reply.read() == b"hello"
    assert names.asked == ["good.example"], "looked up once: what was judged is what was contacted"
    assert good.asked[0][2]["Host"] == f"good.example:{good.port}"


def test_a_redirect_to_a_private_address_is_denied_before_anything_is_sent(two_servers: tuple[Server, Server]) -> None:
    good, bad = two_servers
    good.location = f"http://{bad.host}:{bad.port}/internal"
    policy = opening(Names([["127.0.0.1"]]), good.port, bad.port)
    with pytest.raises(PolicyDenied, match="loopback"):
        guarded_opener(policy).open(f"http://good.example:{good.port}/go")
    assert len(good.asked) == 1
    assert bad.asked == []


def test_a_name_that_leads_elsewhere_the_second_time_is_denied(two_servers: tuple[Server, Server]) -> None:
    good, bad = two_servers
    good.location = f"http://good.example:{bad.port}/again"
    names = Names([["127.0.0.1"], ["127.0.0.2"]])
    with pytest.raises(PolicyDenied, match=r"127\.0\.0\.2"):
        guarded_opener(opening(names, good.port, bad.port)).open(f"http://good.example:{good.port}/go")
    assert len(names.asked) == 2
    assert bad.asked == []


def test_a_redirect_to_another_scheme_or_host_is_denied(two_servers: tuple[Server, Server]) -> None:
    good, _ = two_servers
    for location in ("file:///etc/passwd", "http://evil.example/", "ftp://good.example/", "http://user@good.example/"):
        good.location = location
        with pytest.raises((PolicyDenied, urllib.error.HTTPError, urllib.error.URLError)):
            guarded_opener(opening(Names([["127.0.0.1"]]), good.port)).open(f"http://good.example:{good.port}/go")
    assert {path for _, path, _ in good.asked} == {"/go"}


def test_credentials_stay_with_the_host_they_are_for(two_servers: tuple[Server, Server]) -> None:
    good, other = two_servers
    good.location = f"http://127.0.0.2:{other.port}/x"
    policy = opening(Names([["127.0.0.1"]]), good.port, other.port, domains=("good.example", "127.0.0.0/30"))
    request = urllib.request.Request(f"http://good.example:{good.port}/go", headers={"Authorization": "Bearer s"})
    with guarded_opener(policy).open(request) as reply:
        assert reply.read() == b"hello"
    assert good.asked[0][2]["Authorization"] == "Bearer s"
    assert "Authorization" not in other.asked[0][2]


def test_proxies_of_the_environment_are_not_used(
    two_servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = two_servers
    monkeypatch.setenv("http_proxy", f"http://127.0.0.2:{bad.port}")
    with guarded_opener(opening(Names([["127.0.0.1"]]), good.port)).open(f"http://good.example:{good.port}/") as reply:
        assert reply.read() == b"hello"
    request = urllib.request.Request(f"http://good.example:{good.port}/")
    request.set_proxy(f"127.0.0.2:{bad.port}", "http")
    with pytest.raises(PolicyDenied):
        guarded_opener(opening(Names([["127.0.0.1"]]), good.port)).open(request)
    assert bad.asked == []


def test_other_schemes_have_no_handler() -> None:
    opener = guarded_opener(EgressPolicy(domains=["*"]))
    for url in ("file:///etc/hostname", "ftp://example.com/", "data:text/plain,hi"):
        with pytest.raises(urllib.error.URLError):
            opener.open(url)


def test_guarded_connect_reaches_the_judged_address_only(two_servers: tuple[Server, Server]) -> None:
    good, bad = two_servers
    policy = opening(Names([["127.0.0.1"]]), good.port, bad.port)
    with guarded_connect(policy, f"http://good.example:{good.port}/") as connection:
        assert connection.getpeername() == ("127.0.0.1", good.port)
    with pytest.raises(PolicyDenied):
        guarded_connect(policy, f"http://127.0.0.2:{bad.port}/")


def test_every_address_of_a_name_is_judged() -> None:
    policy = EgressPolicy(domains=["good.example"], resolver=Names([["93.184.216.34", "10.0.0.1"]]))
    with pytest.raises(PolicyDenied, match=r"10\.0\.0\.1, which is private"):
        policy.check_url("https://good.example/")
    pinned = EgressPolicy(domains=["good.example"], resolver=Names([["93.184.216.34", "2606:4700::1111"]]))
    assert pinned.check_url("https://good.example/x").addresses == ("93.184.216.34", "2606:4700::1111")


@pytest.mark.parametrize("answer", [[], ["no address"], ["127.0.0.1"], ["::ffff:10.0.0.1"], ["fe80::1%eth0"]])
def test_a_name_without_a_good_address_is_denied(answer: list[str]) -> None:
    policy = EgressPolicy(domains=["*"], resolver=Names([answer]))
    assert policy.judge_url("https://good.example/").blocks


def test_a_resolver_that_fails_denies() -> None:
    def failing(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror("no name server")

    policy = EgressPolicy(domains=["*"], resolver=failing)
    assert policy.judge_url("https://good.example/").rule == "url-unresolved"
    with made_for_box():  # no name can be looked up there; the box's proxy does
        boxed = EgressPolicy(domains=["*"], resolver=failing)
    assert not boxed.judge_url("https://good.example/").blocks
    assert boxed.judge_url("https://169.254.169.254/").rule == "url-address"
    with pytest.raises(PolicyDenied):
        policy.check_url("https://good.example/")


def test_judging_by_name_looks_nothing_up_unless_told() -> None:
    names = Names([["10.0.0.1"]])
    listed = EgressPolicy(domains=["good.example"], resolver=names)
    assert listed.bounded
    assert not listed.judge_url("https://good.example/").blocks
    assert names.asked == []
    told = EgressPolicy(domains=["good.example"], resolve=True, resolver=names)
    assert not told.bounded
    assert told.judge_url("https://good.example/").rule == "url-address"


@pytest.mark.parametrize(
    "url",
    [
        "https://localhost/",
        "https://printer.local/",
        "https://metadata.google.internal/",
        "https://intranet/",
        "https://10.1.2.3/",
    ],
)
def test_every_public_host_is_no_inner_one(url: str) -> None:
    assert EgressPolicy(domains=["*"], resolver=Names([["93.184.216.34"]])).judge_url(url).blocks


def test_addresses_networks_and_ports_may_be_named() -> None:
    policy = EgressPolicy(domains=["10.2.0.0/16", "localhost:8080", "[2606:4700::1111]:444"], schemes=["http", "https"])
    for url in (
        "https://10.2.3.4/",
        "http://localhost:8080/",
        "https://[2606:4700::1111]:444/",
        "https://[::ffff:10.2.3.4]/",
    ):
        assert not policy.judge_url(url).blocks, policy.judge_url(url).reason
    for url in ("https://10.3.0.1/", "http://localhost/", "https://[2606:4700::1111]/", "https://10.2.3.4:8443/"):
        assert policy.judge_url(url).blocks, url


CLOSED = """
0.0.0.0 10.0.0.1 100.64.0.1 127.0.0.1 169.254.169.254 168.63.129.16 172.16.0.1 192.0.0.192 192.168.0.1 198.18.0.1
224.0.0.1 240.0.0.1 255.255.255.255 :: ::1 ::ffff:127.0.0.1 ::7f00:1 64:ff9b::7f00:1 64:ff9b:1::1 2001::1 2002:7f00:1::
fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 2001:db8::1 100::1 fe80::1%eth0 2600::200:5efe:7f00:1 5f00::1
"""


@pytest.mark.parametrize("address", CLOSED.split())
def test_closed_addresses(address: str) -> None:
    assert why_closed(ipaddress.ip_address(address)) is not None


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]
)
def test_open_addresses(address: str) -> None:
    assert why_closed(ipaddress.ip_address(address)) is None


def call(**arguments: object) -> Action:
    return Action(Point.PRE_TOOL_CALL, "fetch", arguments=arguments)


def test_every_named_argument_is_judged_and_one_must_be_there() -> None:
    policy = EgressPolicy(domains=["good.example"], argument=["url", "proxy"])
    assert policy.judge(call(url="https://good.example/", proxy="https://evil.example/")).blocks  # type: ignore[union-attr]
    assert policy.judge(call(address="https://good.example/")).rule == "url-missing"  # type: ignore[union-attr]
    usual = EgressPolicy(domains=["good.example"])
    assert usual.judge(call(callback_url="https://evil.example/", url="https://good.example/")).blocks  # type: ignore[union-attr]
    assert usual.judge(call(proxy="http://10.0.0.1:8080", url="https://good.example/")).blocks  # type: ignore[union-attr]
    assert not usual.judge(call(baseUrl="https://good.example/", text="https://evil.example")).blocks  # type: ignore[union-attr]
    assert usual.judge(call(text="x")).rule == "url-missing"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "options",
    [
        {"domains": ["https://example.com"]},
        {"domains": ["exa mple.com"]},
        {"domains": ["*evil.com"]},
        {"domains": "example.com"},
        {"domains": ["example.com:0"]},
        {"domains": ["example.com"], "schemes": ["gopher"]},
        {"domains": ["example.com"], "ports": ["443"]},
        {"domains": ["example.com"], "argument": ""},
    ],
)
def test_settings_without_meaning_are_errors(options: dict[str, object]) -> None:
    with pytest.raises(PolicyError):
        EgressPolicy(**options)  # type: ignore[arg-type]


def test_a_url_in_place_of_its_host_is_an_error_that_says_so() -> None:
    with pytest.raises(PolicyError, match="which is a URL") as raised:
        EgressPolicy(domains=["https://a.example"])
    assert "host alone" in str(raised.value.hint)


def test_it_loads_from_a_document() -> None:
    options = {"argument": "url", "domains": ["a.example"], "schemes": ["https"]}
    made = load_policies({"version": 1, "rules": [{"use": "egress", "with": options}]})
    assert not made.judge(call(url="https://a.example/")).blocks
    assert made.judge(call(url="http://a.example/")).blocks
