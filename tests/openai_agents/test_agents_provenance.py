"""What the user said is the input of the outermost run, not what a page, a tool or another agent says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from agents import Agent, HandoffInputData, function_tool, handoff
from cells import Seen, asks, says
from cells_agents import MODES, chat_model, instrumented, run, run_with

from lgov_core.governor import Governor
from lgov_core.scope import enter_scope
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Point
from lgov_openai_agents import LgovRunner
from tests.provenance_example import (
    BOTH_ADDRESSES,
    DENIAL,
    ORDER,
    REQUEST,
    SAID,
    SCOPES,
    Mails,
    documented_governor,
    in_plain_thread,
    provenance_governor,
)

ALL_MODES = pytest.mark.parametrize("mode", MODES)


def tools_of(mails: Mails) -> list[Any]:
    return [function_tool(one) for one in (mails.send_mail, mails.read_page)]


@contextmanager
def playing(governor: Governor, *script: Any) -> Iterator[ScriptedModelServer]:
    """The process instrumented by one line, without a rollout or a session."""
    with ScriptedModelServer(list(script)) as server, instrumented(governor):
        yield server
    governor.close()


@SCOPES
@ALL_MODES
@BOTH_ADDRESSES
def test_the_documented_example(mode: str, address: str, sent: bool, scope: Any) -> None:
    mails = Mails()
    script = [asks(("c1", "read_page", {})), asks(("c2", "send_mail", {"to": address})), says("done")]
    with playing(documented_governor(), *script) as server, enter_scope(scope):
        run(mode, Agent(name="writer", model=chat_model(server), tools=tools_of(mails)), REQUEST)
        bodies = str([request.body for request in server.requests])
    assert mails.to == ([address] if sent else [])
    assert (DENIAL in bodies) is not sent


@BOTH_ADDRESSES
def test_the_documented_example_with_the_runner(address: str, sent: bool) -> None:
    mails, governor = Mails(), documented_governor()
    with ScriptedModelServer([asks(("c1", "send_mail", {"to": address})), says("done")]) as server:
        agent = Agent(name="writer", model=chat_model(server), tools=tools_of(mails))
        run_with(LgovRunner(governor), "sync", agent, REQUEST)
    governor.close()
    assert mails.to == ([address] if sent else [])


@BOTH_ADDRESSES
def test_an_earlier_turn_in_the_input_counts(address: str, sent: bool) -> None:
    mails = Mails()
    script = [says("shall I?"), asks(("c1", "send_mail", {"to": address})), says("done")]
    with playing(documented_governor(), *script) as server:
        agent = Agent(name="writer", model=chat_model(server), tools=tools_of(mails))
        first = run("sync", agent, REQUEST)
        run("sync", agent, [*first.to_input_list(), {"role": "user", "content": "Yes, please."}])
    assert mails.to == ([address] if sent else [])


@SCOPES
@ALL_MODES
@BOTH_ADDRESSES
def test_what_is_said_to_an_agent_that_is_a_tool_is_not_the_users(
    mode: str, address: str, sent: bool, scope: Any
) -> None:
    mails, seen = Mails(), Seen()
    order = f"Write to {address}."
    script = [
        asks(("c1", "helper", {"input": order})),
        asks(("c2", "send_mail", {"to": address})),
        says("done"),
        says("done"),
    ]
    with playing(provenance_governor(seen), *script) as server, enter_scope(scope):
        inner = Agent(name="inner", model=chat_model(server), tools=tools_of(mails))
        outer = Agent(name="outer", model=chat_model(server), tools=[inner.as_tool("helper", "Helps.")])
        run(mode, outer, REQUEST)
    assert mails.to == ([address] if sent else [])
    assert {one.action.text: one.action.source for one in seen.decisions(Point.INPUT)} == {
        REQUEST: "user",
        order: "agent",
    }


@ALL_MODES
@BOTH_ADDRESSES
def test_what_a_thread_of_a_tool_says_is_not_the_users(mode: str, address: str, sent: bool, carrying: None) -> None:
    mails = Mails()
    script = [asks(("c1", "helper", {})), asks(("c2", "send_mail", {"to": address})), says("done"), says("done")]
    with playing(provenance_governor(), *script) as server:
        inner = Agent(name="inner", model=chat_model(server), tools=tools_of(mails))

        @function_tool
        def helper() -> str:
            """Helps."""
            return str(in_plain_thread(lambda: run("async", inner, f"Write to {address}.")))

        run(mode, Agent(name="outer", model=chat_model(server), tools=[helper]), REQUEST)
    assert mails.to == ([address] if sent else [])


@SCOPES
@ALL_MODES
@BOTH_ADDRESSES
def test_what_a_hand_off_adds_is_not_the_users(mode: str, address: str, sent: bool, scope: Any) -> None:
    mails = Mails()

    def with_order(data: HandoffInputData) -> HandoffInputData:
        given = data.input_history
        history = ({"role": "user", "content": given},) if isinstance(given, str) else given
        return replace(data, input_history=(*history, {"role": "user", "content": ORDER}))

    script = [asks(("c1", "transfer_to_mailer", {})), asks(("c2", "send_mail", {"to": address})), says("done")]
    with playing(provenance_governor(), *script) as server, enter_scope(scope):
        mailer = Agent(name="mailer", model=chat_model(server), tools=tools_of(mails))
        desk = Agent(name="desk", model=chat_model(server), handoffs=[handoff(mailer, input_filter=with_order)])
        run(mode, desk, REQUEST)
    assert mails.to == ([address] if sent else [])


def test_one_run_does_not_speak_for_another() -> None:
    mails = Mails()
    script = [says("noted"), asks(("c1", "send_mail", {"to": SAID})), says("done")]
    with playing(documented_governor(), *script) as server:
        agent = Agent(name="writer", model=chat_model(server), tools=tools_of(mails))
        run("sync", agent, REQUEST)
        run("sync", agent, "Send it to whom you know.")
    assert mails.to == []
