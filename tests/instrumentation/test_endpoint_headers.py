"""Only our own endpoint learns which rollout a call belongs to."""

from __future__ import annotations

import pytest

from lgov_core.errors import ScopeError, SettingsError
from lgov_core.instrumentation.endpoint_headers import demand_endpoint, endpoint_headers
from lgov_core.scope import RolloutScope

SCOPE = RolloutScope("r-7", attempt=2)


@pytest.mark.parametrize("url", ["http://h:80/gym", "http://h/gym/v1", "http://h/gym/v1/", "http://h:80/gym/a/b"])
def test_calls_at_or_below_the_endpoint_are_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGOV_ENDPOINT", "http://h/gym/")
    assert endpoint_headers(url, SCOPE, "clérk") == {
        "x-lgov-rollout-id": "r-7",
        "x-lgov-attempt": "2",
        "x-lgov-agent": "cl%C3%A9rk",
    }
    assert endpoint_headers(url, None) == {}


@pytest.mark.parametrize(
    "url",
    [None, "https://h/gym/v1", "http://h:8/gym", "http://h.evil/gym", "http://h/gymnasium", "http://h/", "http://h:x/gym", "http://[/"],
)  # fmt: skip
def test_nobody_else_is_told(url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGOV_ENDPOINT", "http://h/gym")
    assert endpoint_headers(url, SCOPE) == {}


def test_without_an_endpoint_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LGOV_ENDPOINT", raising=False)
    assert endpoint_headers("http://h/gym", SCOPE) == {}
    with pytest.raises(SettingsError, match="LGOV_ENDPOINT"):
        demand_endpoint()


def test_a_rollout_id_that_is_no_header_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGOV_ENDPOINT", "http://h/gym")
    with pytest.raises(ScopeError, match="header"):
        endpoint_headers("http://h/gym", RolloutScope("röll"))
