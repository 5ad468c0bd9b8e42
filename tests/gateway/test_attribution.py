"""Whose call it is: headers, path, key; and what happens when they disagree."""

from __future__ import annotations

import subprocess
import sys

import httpx
import openai
import pytest

from lgov_core.errors import EndpointError, ScopeError
from lgov_core.gateway.access import KeyRing
from tests.gateway.conftest import SECRET

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
RING = KeyRing(SECRET)


def post(serving, *, prefix="", headers=None, key=None):
    sent = {name: value for name, value in (headers or {}).items()}
    if key is not None:
        sent["authorization"] = f"Bearer {key}"
    return httpx.post(f"{serving.url}{prefix}/v1/chat/completions", json=BODY, headers=sent)


def by(rollout_id, attempt):
    return {"x-lgov-rollout-id": rollout_id, "x-lgov-attempt": str(attempt)}


def test_each_way_alone_and_all_together(serve, store):
    serving = serve(lambda body: "x")
    ways = [
        {"headers": by("r1", 1)},
        {"prefix": "/rollout/r1/attempt/1"},
        {"key": RING.issue("r1", 1)},
        {"headers": by("r1", 1), "prefix": "/rollout/r1/attempt/1", "key": RING.issue("r1", 1)},
        {"headers": by("r1", 1), "key": RING.admin},
        {"headers": by("r1", 1), "key": "someone-elses-key"},
        # The key says the attempt, the header only the rollout: nothing contradicts.
        {"headers": {"x-lgov-rollout-id": "r1"}, "key": RING.issue("r1", 1)},
    ]
    for way in ways:
        assert post(serving, **way).status_code == 200, way
    assert [(call.rollout_id, call.attempt) for call in store.calls()] == [("r1", 1)] * len(ways)


def test_openai_client_with_a_scoped_key(serve, store):
    serving = serve(["x"], models=["m"], keys=RING)
    client = openai.OpenAI(base_url=f"{serving.url}/rollout/r2/attempt/1/v1", api_key=RING.issue("r2", 1))
    assert [model.id for model in client.models.list()] == ["m"]
    client.chat.completions.create(**BODY)
    assert [call.rollout_id for call in store.calls()] == ["r2"]


def test_custom_headers_from_the_environment(serve, store):
    serving = serve(["x"])
    program = f"import openai; openai.OpenAI().chat.completions.create(**{BODY!r})"
    subprocess.run(
        [sys.executable, "-c", program],
        env={
            "OPENAI_BASE_URL": serving.base_url,
            "OPENAI_API_KEY": "any",
            "OPENAI_CUSTOM_HEADERS": "x-lgov-rollout-id: r2\nx-lgov-attempt: 1\nx-lgov-agent: desk",
        },
        check=True,
        timeout=60,
    )
    (captured,) = store.calls()
    assert (captured.rollout_id, captured.attempt, captured.agent) == ("r2", 1, "desk")


CONTRADICTIONS = [
    ({"headers": by("r1", 1), "prefix": "/rollout/r2/attempt/1"}, 400, "the path says rollout 'r2'"),
    ({"headers": by("r1", 1), "prefix": "/rollout/r1/attempt/2"}, 400, "the path says attempt '2'"),
    ({"headers": by("r2", 1), "key": RING.issue("r1", 1)}, 403, "the key is for rollout 'r1', not for 'r2'"),
    (
        {"prefix": "/rollout/r1/attempt/2", "key": RING.issue("r1", 1)},
        403,
        "the key is for attempt '1', not for '2'",
    ),
    ({"headers": {"x-lgov-rollout-id": "r1"}}, 400, "the attempt is missing"),
    ({"headers": {"x-lgov-attempt": "1"}}, 400, "the rollout id is missing"),
    ({"headers": by("r1", 0)}, 400, "x-lgov-attempt"),
    ({"headers": by("r1", "one")}, 400, "x-lgov-attempt"),
    ({"headers": by("r1", "01")}, 400, "x-lgov-attempt"),
    ({"prefix": "/rollout/r1/attempt/-1"}, 400, "the attempt in the path"),
    ({"headers": {**by("r1", 1), "x-lgov-agent": "%0d%0aX:%20y"}}, 400, "cannot be printed"),
    ({"prefix": "/rollout/r%201/attempt/1"}, 400, "the rollout id in the path"),
    ({"headers": by("r" * 201, 1)}, 400, "x-lgov-rollout-id"),
    ({"headers": by("a/b", 1)}, 400, "x-lgov-rollout-id"),
    ({"headers": by("", 1)}, 400, "x-lgov-rollout-id"),
    ({"headers": {**by("r1", 1), "x-lgov-agent": "a" * 201}}, 400, "x-lgov-agent"),
]


def test_contradictions_and_malformed_ids_are_refused(serve, store):
    serving = serve([])
    for way, status, says in CONTRADICTIONS:
        reply = post(serving, **way)
        assert reply.status_code == status, way
        assert says in reply.json()["error"]["message"], way
    assert list(store.calls()) == []


@pytest.mark.parametrize("name", ["x-lgov-rollout-id", "x-lgov-attempt", "x-lgov-agent", "x-api-key", "authorization"])
def test_a_header_given_twice_is_refused(name: str, serve, store):
    serving = serve([])
    headers = [*by("r1", 1).items(), ("x-lgov-agent", "a"), ("x-api-key", "k"), ("authorization", "Bearer k")]
    twice = [*headers, next(pair for pair in headers if pair[0] == name)]
    reply = httpx.post(f"{serving.base_url}/chat/completions", json=BODY, headers=twice)
    assert (reply.status_code, f"the header {name} is given 2 times" in reply.text) == (400, True)
    assert list(store.calls()) == []


def test_unattributed_calls_are_recorded_or_refused(serve, store):
    serving = serve(["x"])
    assert post(serving).status_code == 200
    assert [(call.rollout_id, call.attempt) for call in store.calls()] == [(None, None)]
    assert serving.counters.unattributed == 1
    strict = serve([], allow_unattributed=False)
    reply = post(strict)
    assert reply.status_code == 400
    assert "does not name its rollout" in reply.json()["error"]["message"]


def test_keys_when_they_are_required(serve):
    serving = serve(lambda body: "x", keys=RING)
    good = RING.issue("r1", 1)
    other = KeyRing(b"another secret of 16 bytes and more")
    forged = other.issue("r1", 1)
    moved = RING.issue("r2", 1).split(".")[0] + "." + good.split(".")[1]
    for key in (None, "any", forged, moved, good[:-1], good + "A", "lgov_key_", "lgov_key_é.x", other.admin):
        headers = {} if key is None else {"authorization": f"Bearer {key}".encode()}
        reply = httpx.post(f"{serving.base_url}/chat/completions", json=BODY, headers=headers)
        assert reply.status_code == 401, key
        assert reply.json()["error"]["type"] == "authentication_error"
        assert httpx.get(f"{serving.base_url}/models", headers=headers).status_code == 401
    assert post(serving, key=good).status_code == 200
    assert httpx.get(f"{serving.url}/healthz").status_code == 200


def test_a_forged_key_is_refused_even_where_keys_are_optional(serve):
    serving = serve([])
    assert post(serving, key=KeyRing().issue("r1", 1)).status_code == 401


def test_key_rings_share_a_secret_and_nothing_else():
    assert KeyRing(SECRET).check(RING.issue("a b", 7)).rollout_id == "a b"
    assert KeyRing(SECRET).check(RING.issue("a b", 7)).attempt == 7
    assert RING.issue("r1", 1) != RING.issue("r1", 2)
    assert RING.issue("r1", 11) != RING.issue("1r1", 1)
    assert RING.check(RING.admin).admin
    assert SECRET.decode() not in repr(RING)
    with pytest.raises(EndpointError, match="at least 16"):
        KeyRing(b"short")
    with pytest.raises(ScopeError):
        RING.issue("a/b", 1)
    with pytest.raises(ScopeError):
        RING.issue("a", 0)
