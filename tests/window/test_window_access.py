"""Who may use the window: over HTTP, as a browser or a hostile page would ask."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from lgov_core.gateway.access import AdminKeyFile, KeyRing
from lgov_core.gateway.limits import Busy
from lgov_core.policies.approvals.requests import KEY_PREFIX
from lgov_core.store import RolloutQueue, open_store
from lgov_core.views.web.app import ANSWERS
from lgov_core.views.web.protocol import WindowAccess, error_answer
from tests.window.conftest import Opened
from tests.window.recorded_rollouts import record

PATHS = [
    *(re.sub(r"\{\w+:path\}", "x", path) for path in ANSWERS),
    "changes",
    "approvals",
]


@pytest.fixture(autouse=True)
def recorded(store: RolloutQueue) -> None:
    record(store)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_answered_without_a_session(served: Opened, tmp_path: Path, path: str) -> None:
    assert served(tmp_path, session=False).error(path, 401) == "unauthorized"


def test_the_token_opens_once_and_becomes_a_cookie(served: Opened, tmp_path: Path) -> None:
    browser = served(tmp_path, session=False)
    answer = browser.client.get(browser.address)
    assert (answer.status_code, answer.headers["location"]) == (303, "/view/")
    cookie = answer.headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", "path=/view/"} <= set(cookie.split("; "))
    assert browser.get("session")["authenticated"]
    with httpx.Client(base_url=browser.client.base_url) as other:
        assert "set-cookie" not in other.get(browser.address).headers
        assert other.get("api/sources").status_code == 401
        assert "set-cookie" in other.get(browser.lines[-1].split()[-1]).headers  # the new one that was printed


def test_a_session_of_another_window_opens_nothing(served: Opened, tmp_path: Path) -> None:
    first, second = served(tmp_path), served(tmp_path, session=False)
    second.client.cookies.update(first.client.cookies)
    assert second.client.get("api/sources").status_code == 401


def test_only_approvals_can_be_posted_and_only_by_the_window(served: Opened, tmp_path: Path) -> None:
    browser = served(tmp_path)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert browser.client.request(method, "api/sources", headers={"origin": browser.url}).status_code == 405
    body = {"answer": "approve", "by": "me", "digest": "x"}
    assert (
        browser.client.post("api/approvals/x", json=body, headers={"origin": "http://127.0.0.1:1"}).status_code == 403
    )
    assert browser.client.post("api/approvals/x", json=body, headers={"origin": browser.url}).status_code == 404


def test_every_answer_forbids_what_is_inline_or_from_elsewhere(served: Opened, tmp_path: Path) -> None:
    browser = served(tmp_path)
    for path in ("./", "api/sources", "api/nothing", "static/nothing.js", "api/rollouts?limit=x"):
        headers = browser.client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert not {"unsafe", "http", "*"} & set(policy.replace("-", " ").replace(":", " ").split())
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert browser.client.get("api/sources").headers["cache-control"] == "no-store"


def test_no_file_outside_of_static_is_served(served: Opened, tmp_path: Path) -> None:
    browser = served(tmp_path)
    for path in ("static/../app.py", "static/%2e%2e/app.py", "static/..%2f..%2fapp.py", "static//etc/passwd"):
        assert browser.client.get(path).status_code == 404


async def _status(access: WindowAccess, key: str) -> bool:
    from starlette.requests import Request

    headers = [(b"authorization", f"Bearer {key}".encode()), (b"host", b"localhost")]
    return access.is_open(Request({"type": "http", "headers": headers, "method": "GET", "path": "/"}))


@pytest.mark.parametrize("required", [True, False])
async def test_an_admin_key_opens_and_the_key_of_a_rollout_does_not(required: bool) -> None:
    keys = KeyRing(required=required)
    access = WindowAccess(keys=keys)
    assert await _status(access, keys.admin)
    for key in (
        keys.issue("ro_1"),
        keys.issue("ro_1", 1, final_reward=True),
        "sk-anything",
        "",
        "lgov_admin_" + "x" * 43,
    ):
        assert not await _status(access, key)


async def test_an_admin_key_that_cannot_be_checked_is_not_called_wrong(tmp_path: Path) -> None:
    path = tmp_path / "admins"
    path.write_text("first-key-of-an-operator\n")
    path.chmod(0o600)
    access = WindowAccess(keys=KeyRing(b"0" * 16, admin_keys=AdminKeyFile(path)))
    assert await _status(access, "first-key-of-an-operator")
    path.unlink()
    with pytest.raises(Busy, match="keys cannot be checked now") as refused:
        await _status(access, "first-key-of-an-operator")
    assert error_answer(refused.value).status_code == 503
    assert not await _status(access, f"{KEY_PREFIX}ada"), "the key of an approver needs no admin keys"


def test_view_logs_its_requests_and_failures_without_tokens_and_keys(tmp_path: Path) -> None:
    """``lgov view`` in a process of its own."""
    open_store(tmp_path / "traces.db").close()
    log = tmp_path / "view.log"
    environ = {**os.environ, "LGOV_LOG_LEVEL": "info", "LGOV_LOG_FILE": str(log), "LGOV_LOG_JSON": "true"}
    command = [
        sys.executable,
        "-m",
        "lgov_core",
        "view",
        str(tmp_path / "traces.db"),
        "--port",
        "0",
        "--no-open",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        about = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        try:
            address, token = about["address"].split("?token=")
            with httpx.Client(follow_redirects=True) as browser:
                assert browser.get(f"{address}api/sources").status_code == 401
                assert browser.get(about["address"]).status_code == 200
                assert browser.get(f"{address}api/sources").status_code == 200
                assert browser.get(f"{address}lgov_a_key_in_a_path").status_code == 404
                cookie = next(iter(browser.cookies.values()))
        finally:
            process.send_signal(signal.SIGTERM)
    assert not {token, cookie} & set(re.split(r"\W", log.read_text()))
    assert "lgov_a_key_in_a_path" not in log.read_text()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    requests = [(line.get("route"), line["status"]) for line in lines if line["event"] == "request"]
    asked = ["/view/api/sources", "/view/", "/view/", "/view/api/sources", None]
    assert requests == list(zip(asked, [401, 303, 200, 200, 404], strict=True))
    (failed,) = (line for line in lines if line["event"] == "request failed")
    assert (failed["level"], failed["code"]) == ("warning", "unauthorized")
