"""Which model calls carry the headers that attribute them to a rollout."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from lc_agents import ask
from scripted import ModelServer, Witness, at, make_governor, says

from lgov_core.errors import SettingsError
from lgov_core.governor import Governor
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Point
from lgov_langchain import LgovMiddleware


@pytest.fixture
def governor(witness: Witness) -> Governor:
    return make_governor(at(Point.PRE_TOOL_CALL, lambda action: None), witness=witness)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_calls_to_our_endpoint_carry_the_rollout(
    how: str, model_server: ModelServer, chat: Any, governor: Governor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LGOV_ENDPOINT", model_server.url)
    model_server.play(says("one"), says("two"))
    agent = create_agent(chat, [], name="clérk", middleware=[LgovMiddleware(governor, endpoint_headers=True)])
    with enter_scope(RolloutScope("rollout-7", attempt=2)):
        ask(agent, how)
    ask(agent, how)
    inside, outside = model_server.headers
    assert (inside["x-lgov-rollout-id"], inside["x-lgov-attempt"]) == ("rollout-7", "2")
    assert inside["x-lgov-agent"] == "cl%C3%A9rk"
    assert not any(name.startswith("x-lgov-") for name in outside)


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:1", "https://{host}", "http://{host}0", "http://{host}/v"])
def test_no_other_host_learns_of_rollouts(
    endpoint: str, model_server: ModelServer, chat: Any, governor: Governor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LGOV_ENDPOINT", endpoint.format(host=model_server.url.removeprefix("http://")))
    model_server.play(says("one"))
    with enter_scope(RolloutScope("rollout-7")):
        ask(create_agent(chat, [], middleware=[LgovMiddleware(governor)]), "invoke")
    assert not any(name.startswith("x-lgov-") for name in model_server.headers[0])


def test_demanding_headers_needs_an_endpoint(governor: Governor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LGOV_ENDPOINT", raising=False)
    with pytest.raises(SettingsError, match="LGOV_ENDPOINT"):
        LgovMiddleware(governor, endpoint_headers=True)
