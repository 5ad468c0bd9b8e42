"""The one check of who sends a request: every server that lgov starts, against every request of a hostile page."""

from __future__ import annotations

import ast
import http.client
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

import lgov_core
from lgov_core.errors import EndpointError
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.limits import Limits
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.server.coordinator import KeyInPath
from lgov_core.server.training import TrainingServer
from lgov_core.store import open_store
from lgov_core.testing import ScriptedModelServer
from lgov_core.train.settings import load_train_settings
from lgov_core.views.web.app import MountedWindow, served_window
from lgov_core.views.web.window import Window

KEYS = KeyRing(b"a secret of sixteen bytes or more")
#: Of each server a route that changes something and one that only reads; every one of them answers a program.
ROUTES = {
    "endpoint": ("/api/models", "/v1/models"),
    "endpoint with keys": ("/admin/keys", "/v1/models"),
    "training server": ("/train/stop", "/train/about"),
    "window": ("/view/api/approvals/x", "/view/"),
    "window at an endpoint": ("/view/api/approvals/x", "/view/api/session"),
    "model of tests": ("/v1/chat/completions", "/v1/models"),
}
JSON = {"content-type": "application/json"}
CLIENT = httpx.Client(timeout=30)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The address of each server, by its name in `ROUTES`."""
    folder = tmp_path_factory.mktemp("doors")
    with ExitStack() as stack:
        model = stack.enter_context(ScriptedModelServer(lambda _: "Hello."))

        def endpoint(keys: KeyRing | None) -> EndpointServer:
            return EndpointServer([UpstreamEngine(model.base_url)], keys=keys)

        store = open_store(folder / "store.sqlite")
        stack.callback(store.close)
        windows = [Window(str(folder / "store.sqlite")) for _ in range(2)]
        for window in windows:
            stack.callback(window.close)
        mounted, at_endpoint = MountedWindow(windows[0], say=lambda _: None), endpoint(KEYS)
        at_endpoint.app.mount(mounted.path, mounted.app(KEYS))
        settings = load_train_settings(None, flags={("model", "name"): "tiny"}, environ={})
        yield {
            "endpoint": stack.enter_context(endpoint(None)).url,
            "endpoint with keys": stack.enter_context(endpoint(KEYS)).url,
            "training server": stack.enter_context(TrainingServer(settings, folder=folder / "run")).url,
            "window": stack.enter_context(served_window(windows[1], host="127.0.0.1", port=0, say=lambda _: None))[
                0
            ].url,
            "window at an endpoint": stack.enter_context(at_endpoint).url,
            "model of tests": model.base_url.removesuffix("/v1"),
        }


def ask(url: str, method: str = "GET", content: bytes | None = None, **headers: str | None) -> httpx.Response:
    """One request with exactly these headers (names with ``_``); the value None leaves out what httpx would send."""
    request = httpx.Request(method, url, content=content)
    for name, value in headers.items():
        request.headers.pop(name.replace("_", "-"), None)
        if value is not None:
            request.headers[name.replace("_", "-")] = value
    return CLIENT.send(request)


HOSTS = [
    "evil.example", "evil.example:8321", "localhost.evil.example", "127.0.0.1.nip.io", "evil.example.", "",
    "localhost@evil.example", "user@localhost", "[fe80::1%25]", "localhost:99999999", "localhost:x", "2130706433",
    "0x7f.1", "xn--lcalhost-d1a",
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", ROUTES)
def test_no_server_takes_a_page_under_a_name_that_leads_here(urls: dict[str, str], name: str, host: str) -> None:
    changes, reads = (urls[name] + path for path in ROUTES[name])
    page = {"origin": f"http://{host}", "sec_fetch_site": "same-origin", "sec_fetch_mode": "cors", "host": host}
    assert ask(changes, "POST", b"{}", **page, **JSON).status_code == 403
    for method in ("GET", "HEAD", "OPTIONS"):
        assert ask(reads, method, host=host, sec_fetch_site="same-origin").status_code == 403
    if "with keys" not in name and "at an endpoint" not in name:  # an old browser, which says nothing
        assert ask(reads, host=host).status_code == 403
        assert "allowed_hosts" in ask(reads, host=host).json()["error"]["message"]


@pytest.mark.parametrize("host", ["0.0.0.0:1", "192.168.1.9", "[fe80::1]", "8.8.8.8"])
def test_without_keys_only_addresses_of_the_loopback_are_names_of_a_server(urls: dict[str, str], host: str) -> None:
    for name in ("endpoint", "training server", "window", "model of tests"):
        assert ask(urls[name] + ROUTES[name][1], host=host).status_code == 403
    assert ask(urls["endpoint with keys"] + "/healthz", host=host).status_code == 200


ORIGINS = [
    "https://evil.example", "null", "", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "http://127.0.0.1", "http://localhost:{port}",
    "http://127.0.0.1:{port}.evil.example", "http://evil.example#127.0.0.1:{port}", "file://", "chrome-extension://abc",
]  # fmt: skip


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("name", ROUTES)
def test_no_server_takes_a_request_of_another_origin(urls: dict[str, str], name: str, origin: str) -> None:
    changes, reads = (urls[name] + path for path in ROUTES[name])
    origin = origin.replace("{port}", urls[name].rpartition(":")[2])
    key = {"authorization": f"Bearer {KEYS.admin}"}
    for sent in ({}, key):
        refused = ask(changes, "POST", b"{}", origin=origin, **sent, **JSON)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "refused")
        assert f"the Origin header is {origin!r}" in refused.json()["error"]["message"]
        assert ask(reads, origin=origin, **sent).status_code == 403
        assert ask(reads, "OPTIONS", origin=origin, access_control_request_method="POST", **sent).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "Same-Origin, cross-site"])
@pytest.mark.parametrize("mode", ["navigate", "no-cors", "websocket"])
@pytest.mark.parametrize("name", ROUTES)
def test_no_server_takes_what_another_site_sends(urls: dict[str, str], name: str, site: str, mode: str) -> None:
    changes, reads = (urls[name] + path for path in ROUTES[name])
    assert ask(changes, "POST", b"", sec_fetch_site=site, sec_fetch_mode=mode).status_code == 403
    assert ask(reads, sec_fetch_site=site, sec_fetch_mode=mode).status_code == 403
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_key": "x", "sec_websocket_version": "13"}
    assert ask(reads, origin="https://evil.example", **upgrade).status_code == 403


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "text/plain;charset=UTF-8",
        "TEXT/PLAIN; application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json, text/plain",
        "application/jsonx",
        "",
    ],
)
@pytest.mark.parametrize("name", ROUTES)
def test_no_server_reads_a_body_that_a_form_can_send(urls: dict[str, str], name: str, kind: str) -> None:
    key = {"authorization": f"Bearer {KEYS.admin}"}
    refused = ask(urls[name] + ROUTES[name][0], "POST", b"{}", content_type=kind, **key)
    assert refused.status_code == 415
    assert "Content-Type: application/json" in refused.json()["error"]["message"]


@pytest.mark.parametrize("name", ROUTES)
def test_a_browser_says_the_type_of_its_body_and_a_program_may_leave_it_out(urls: dict[str, str], name: str) -> None:
    url = urls[name] + ROUTES[name][0]
    assert ask(url, "POST", b"{}", content_type=None, sec_fetch_site="same-origin").status_code == 415
    assert ask(url, "POST", b"{}", content_type=None, origin=urls[name]).status_code == 415
    assert ask(url, "POST", b"{}", content_type=None).status_code not in (403, 415)


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {},  # curl, the openai SDK
        {"sec_fetch_mode": "cors", "user_agent": "node"},  # fetch of Node.js
        {"origin": "http://127.0.0.1:{port}", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none", "sec_fetch_mode": "navigate"},
        {"host": "LOCALHOST:{port}", "origin": "http://localhost:{port}"},
        {"host": "localhost.:{port}"},
        {"host": "[::1]:{port}", "origin": "http://[::1]:{port}"},
        {"host": "127.8.9.1"},
        {"host": "localhost", "origin": "http://localhost:80"},
        {"content_type": "Application/JSON; charset=utf-8"},
    ],
)
def test_programs_and_a_servers_own_pages_pass(urls: dict[str, str], name: str, headers: dict[str, str]) -> None:
    sent = {key: value.replace("{port}", urls[name].rpartition(":")[2]) for key, value in headers.items()}
    changes, reads = (urls[name] + path for path in ROUTES[name])
    assert ask(reads, **sent).status_code not in (403, 415)
    assert ask(changes, "POST", b"{}", **{**JSON, **sent}).status_code not in (403, 415)


@pytest.mark.parametrize("name", ["host", "origin", "sec-fetch-site", "content-type"])
def test_a_header_that_is_given_twice_is_refused(urls: dict[str, str], name: str) -> None:
    own = {
        "host": "localhost",
        "origin": "http://localhost",
        "sec-fetch-site": "none",
        "content-type": "application/json",
    }
    sent = [(each, value) for each, value in own.items() for _ in range(1 + (each == name))]
    connection = http.client.HTTPConnection(urls["endpoint"].removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/api/models", skip_host=True)
    for each, value in [*sent, ("content-length", "2")]:
        connection.putheader(each, value)
    connection.endheaders(b"[]")
    assert connection.getresponse().status in (400, 403)
    connection.close()


def test_a_name_in_allowed_hosts_may_be_that_of_a_proxy_with_tls() -> None:
    with (
        ScriptedModelServer(lambda _: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], limits=Limits(allowed_hosts=("lgov.example.com",))) as server,
    ):
        url = f"{server.url}/v1/models"
        for origin in ("https://lgov.example.com", "http://lgov.example.com"):
            assert ask(url, host="LGOV.example.com", origin=origin, sec_fetch_site="same-origin").status_code == 200
        assert ask(url, host="lgov.example.com", origin="https://lgov.example.com:8443").status_code == 403
        assert ask(url, host="lgov.example.com", origin="https://other.example.com").status_code == 403
        assert ask(url, host="other.example.com").status_code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.9", "example.com"])
@pytest.mark.parametrize("keys", [None, KeyRing(required=False)])
def test_a_server_without_keys_listens_on_the_loopback_only(host: str, keys: KeyRing | None) -> None:
    engine = UpstreamEngine("http://127.0.0.1:9/v1")
    app = create_app([engine], None, keys=keys or KeyRing(required=False))
    for served in ([engine], app, KeyInPath(app)):
        with pytest.raises(EndpointError, match="can be reached from other machines"):
            EndpointServer(served, keys=keys, host=host)  # type: ignore[arg-type]
    EndpointServer(create_app([engine], None, keys=KEYS), host=host)  # not started


def test_an_application_under_another_server_has_its_door() -> None:
    engine = UpstreamEngine("http://127.0.0.1:9/v1")
    app = create_app([engine], None, keys=KeyRing(required=False), limits=Limits(allowed_hosts=("lgov.example.com",)))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/healthz", headers={"host": "lgov.example.com"}).status_code == 200
        assert client.get("/healthz", headers={"host": "evil.example.com"}).status_code == 403
        assert client.get("/healthz", headers={"origin": "https://evil.example.com"}).status_code == 403


def test_no_other_code_of_lgov_serves_http() -> None:
    root = Path(lgov_core.__file__).parents[1]
    serving: dict[str, set[str]] = {}
    for path in root.glob("lgov_*/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                {alias.name for alias in node.names} if isinstance(node, ast.Import | ast.ImportFrom) else set[str]()
            )
            module = getattr(node, "module", None) or ""
            if "uvicorn" in names or module.startswith(("uvicorn", "http.server", "aiohttp.web")) or "web" in names:
                serving.setdefault(path.name, set()).add(module or "uvicorn")
    # the second one is a model without a model, on a loopback port of the process that asks it; the third has the SDK's door
    assert serving == {
        "server.py": {"uvicorn", "uvicorn.protocols.http.httptools_impl", "http.server"},
        "mcp_proxy.py": {"uvicorn"},
    }
