"""An address counts as the user's if the user said it, not if one agent wrote it to another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import Agent, function_tool
from cells import Seen, asks, says
from cells_agents import chat_model, instrumented, run

from lgov_core.governor import Governor
from lgov_core.policies import ProvenancePolicy
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedModelServer


@pytest.mark.parametrize("mode", ["sync", "async", "streaming"])
@pytest.mark.parametrize(("address", "sent"), [("ann@firma.de", True), ("mallory@evil.net", False)])
def test_only_an_address_that_the_user_said_may_be_used(mode: str, address: str, sent: bool) -> None:
    mails: list[str] = []

    @function_tool
    def send_mail(to: str) -> str:
        """Sends."""
        mails.append(to)
        return "sent"

    script = [
        asks(("c1", "helper", {"input": f"Write to {address}."})),
        asks(("c2", "send_mail", {"to": address})),
        says("done"),
        says("done"),
    ]
    seen = Seen()
    policy = ProvenancePolicy(arguments=["to"])
    governor = Governor([policy], plugins=[seen])
    with ScriptedModelServer(script) as server, instrumented(governor), enter_scope(RolloutScope("r1")):
        model: Any = chat_model(server)
        inner = Agent(name="inner", model=model, tools=[send_mail])
        outer = Agent(name="outer", model=model, tools=[inner.as_tool("helper", "Helps.")])
        run(mode, outer, "Tell ann@firma.de that it is done.")
        bodies = json.dumps([request.body for request in server.requests])
    assert mails == ([address] if sent else [])
    assert ("was not given by the user" in bodies) is not sent
    governor.close()
