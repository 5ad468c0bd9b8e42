"""Who may use which route: every route of the application is walked with every kind of key."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from lgov_core.errors import EndpointError
from lgov_core.gateway.access import Access, AdminKeyFile, KeyRing, RuledRoute
from lgov_core.gateway.app import create_app
from lgov_core.gateway.upstream import UpstreamEngine
from tests.gateway.conftest import SECRET, until

RING = KeyRing(SECRET)
BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "input": "x", "prompt": "x", "max_tokens": 5}


def routes(app) -> list[RuledRoute]:
    """The application's routes; one without a rule fails here."""
    assert all(isinstance(route, RuledRoute) for route in app.routes), app.routes
    return list(app.routes)


def path_of(route: RuledRoute, rollout_id: str, attempt: str) -> str:
    known = {"rollout_id": rollout_id, "attempt": attempt, "attempt_id": attempt, "mode": "train"}
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: known.get(found[1], "x"), route.path)


CLIENT = httpx.Client()  # making one takes longer than asking


def ask(serving, route: RuledRoute, key: str | None, rollout_id="r2", **headers) -> list[int]:
    """The status of each of the route's methods, for rollout ``rollout_id``."""
    sent = {"x-lgov-rollout-id": rollout_id, "x-lgov-attempt": "1", **headers}
    if key is not None:
        sent["x-api-key"] = key
    url = serving.url + path_of(route, rollout_id, "1")
    methods = sorted(route.methods - {"HEAD"})
    return [
        CLIENT.request(method, url, headers=sent, json=None if method in ("GET", "DELETE") else BODY).status_code
        for method in methods
    ]


@pytest.mark.parametrize("required", [True, False])
def test_a_rollout_key_opens_only_its_own_rollout(serve, required):
    serving = serve(lambda body: "x", models=["m"], keys=KeyRing(SECRET, required=required))
    found = routes(serving.endpoint.app)
    kinds = {route.access for route in found}
    assert kinds == set(Access)
    for route in found:
        if route.access is Access.OPEN:
            continue
        for key in (RING.issue("r1", 1), RING.issue("r1", 1, final_reward=True), RING.issue("r1")):
            assert set(ask(serving, route, key)) == {403}, route
        assert set(ask(serving, route, KeyRing().issue("r1", 1))) == {401}, route
        assert set(ask(serving, route, RING.issue("r2", 1, expires_at=time.time() - 1))) == {401}, route
        if required:
            assert set(ask(serving, route, None)) == {401}, route
            assert set(ask(serving, route, "some key")) == {401}, route


def test_a_route_without_a_rule_is_not_mounted():
    app = create_app([UpstreamEngine("http://127.0.0.1:9/v1")], None, keys=RING)
    assert len(routes(app)) > 5


def test_an_admin_key_opens_admin_routes_and_any_rollout(serve, store):
    serving = serve(lambda body: "x", keys=RING)
    admin = {"x-api-key": RING.admin}
    assert httpx.get(f"{serving.url}/admin/state", headers=admin).json()["running"] == 0
    for name in ("r1", "r2"):
        url = f"{serving.url}/rollout/{name}/attempt/1/v1/chat/completions"
        assert httpx.post(url, json=BODY, headers=admin).status_code == 200
    assert [call.rollout_id for call in store.calls()] == ["r1", "r2"]


def test_both_headers_hold_a_key_and_two_keys_are_refused(serve, store):
    serving = serve(lambda body: "x", keys=RING)
    key = RING.issue("r1", 1)
    url = f"{serving.base_url}/chat/completions"
    for headers in (
        {"x-api-key": key},
        {"authorization": f"Bearer {key}"},
        {"x-api-key": key, "authorization": f"bearer {key}"},
    ):
        assert httpx.post(url, json=BODY, headers=headers).status_code == 200
    two = httpx.post(url, json=BODY, headers={"x-api-key": key, "authorization": f"Bearer {RING.admin}"})
    assert (two.status_code, "different keys" in two.text) == (400, True)
    assert len(list(store.calls())) == 3


def expired(key: str) -> bool:
    try:
        RING.check(key)
    except EndpointError as error:
        return "expired" in str(error)
    return False


def test_keys_for_a_whole_rollout_that_expire_and_with_a_right(serve, store):
    whole = RING.check(RING.issue("r1"))
    assert (whole.rollout_id, whole.attempt, whole.may_judge, whole.expires_at) == ("r1", None, False, None)
    judge = RING.check(RING.issue("r1", 2, final_reward=True, expires_at=time.time() + 60))
    assert (judge.attempt, judge.may_judge) == (2, True)
    assert RING.check(RING.admin).may_judge
    soon = RING.issue("r1", 1, expires_at=time.time() + 1)
    assert RING.check(soon).rollout_id == "r1"
    until(lambda: expired(soon))  # also when it is known already
    signature = RING.issue("r1", 1, expires_at=1.0).split(".")[1]
    with pytest.raises(EndpointError, match="not one of"):  # a right cannot be written in afterwards
        RING.check(f"{RING.issue('r1', 1, final_reward=True).split('.')[0]}.{signature}")
    serving = serve(lambda body: "x", keys=RING)
    url = f"{serving.url}/rollout/r1/attempt/{{}}/v1/chat/completions"
    for attempt in (1, 2):
        reply = httpx.post(url.format(attempt), json=BODY, headers={"x-api-key": RING.issue("r1")})
        assert reply.status_code == 200
    assert [call.attempt for call in store.calls()] == [1, 2]


def test_the_admin_key_file_is_read_while_running(serve, tmp_path: Path):
    path = tmp_path / "admin-keys"
    path.write_text("# one a line\nfirst-key-of-an-operator\n\nsecond-key-of-an-operator\n")
    path.chmod(0o600)
    ring = KeyRing(SECRET, admin_keys=AdminKeyFile(path))
    serving = serve([], keys=ring)

    def status(key: str) -> int:
        return httpx.get(f"{serving.url}/admin/state", headers={"x-api-key": key}).status_code

    assert ring.admin == "first-key-of-an-operator"
    assert [status("first-key-of-an-operator"), status("second-key-of-an-operator"), status(RING.admin)] == [
        200,
        200,
        401,
    ]
    path.write_text("third-key-of-an-operator\n")
    assert [status("first-key-of-an-operator"), status("third-key-of-an-operator")] == [401, 200]
    path.chmod(0o644)  # anybody may have read them by now
    assert status("third-key-of-an-operator") == 503
    path.unlink()
    assert status("third-key-of-an-operator") == 503


def test_admin_keys_that_will_not_do(tmp_path: Path):
    path = tmp_path / "admin-keys"
    with pytest.raises(EndpointError, match="cannot be read"):
        AdminKeyFile(path)
    path.touch(0o600)
    with pytest.raises(EndpointError, match="no line of it holds a key"):
        AdminKeyFile(path)
    path.write_text("short\n")
    path.chmod(0o600)
    with pytest.raises(EndpointError, match="too short"):
        AdminKeyFile(path)
    path.chmod(0o640)
    with pytest.raises(EndpointError, match="other users"):
        AdminKeyFile(path)
    with pytest.raises(EndpointError, match="too short"):
        KeyRing(SECRET, admin_keys=["lgov_key_that-is-long-enough"])


def test_keys_are_issued_over_the_admin_route(serve):
    serving = serve([], keys=RING)
    asked = {"rollout_id": "r1", "attempt": 1, "final_reward": True, "expires_at": 4e9}
    reply = httpx.post(f"{serving.url}/admin/keys", json=asked, headers={"x-api-key": RING.admin})
    assert reply.json() == {"key": RING.issue("r1", 1, final_reward=True, expires_at=4e9)}
    of_a = ({"attempt": "1"}, {"attempt": True}, {"expires_at": -1}, {"expires": 1})
    for bad in ({}, {"rollout_id": "a/b"}, *({"rollout_id": "a", **one} for one in of_a)):
        assert httpx.post(f"{serving.url}/admin/keys", json=bad, headers={"x-api-key": RING.admin}).status_code == 400


def test_serve_needs_keys_on_a_public_address(tmp_path: Path):
    command = [sys.executable, "-m", "lgov_core", "serve", "--upstream", "http://127.0.0.1:9/v1"]
    done = subprocess.run(
        [*command, "--host", "0.0.0.0", "--port", "0"], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode != 0
    assert "no keys were given" in done.stderr


def test_errors_and_metrics_name_no_key_and_no_content(serve):
    serving = serve(lambda body: "the secret answer", keys=RING)
    key = RING.issue("r1", 1)
    httpx.post(f"{serving.base_url}/chat/completions", json=BODY, headers={"x-api-key": key})
    httpx.post(f"{serving.base_url}/chat/completions", json=BODY, headers={"x-api-key": key + "x"})
    text = httpx.get(f"{serving.url}/metrics", headers={"x-api-key": RING.admin}).text
    assert 'lgov_requests_total{route="/v1/chat/completions",status="200"} 1.0' in text
    assert 'lgov_requests_total{route="/v1/chat/completions",status="401"} 1.0' in text
    assert 'lgov_calls_total{what="recorded"} 1.0' in text
    assert 'lgov_request_seconds_bucket{le="+Inf",route="/v1/chat/completions"} 2.0' in text
    assert 'lgov_requests_in_flight{route="/v1/chat/completions"} 0.0' in text
    for secret in ("secret answer", key, "r1", json.dumps(BODY["messages"])[2:10], os.fspath(Path.home())):
        assert secret not in text
