"""At the endpoint the user's texts are those before the first reply; what follows may be an agent's or a tool's."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from lgov_core.gateway.policy_gate import PolicyGate
from lgov_core.governor import Governor
from lgov_core.policies import ProvenancePolicy
from lgov_core.testing import call
from lgov_core.types import Point
from tests.cells import Seen
from tests.provenance_example import BOTH_ADDRESSES, ORDER, REQUEST, SAID, UNSAID

TOOLS = [{"type": "function", "function": {"name": "send_mail", "parameters": {"type": "object"}}}]
FIRST = {"x-lgov-rollout-id": "r1", "x-lgov-attempt": "1"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def start(serve, store):
    """An endpoint under `provenance`; started anew it is another process with the same store."""

    def started(*script: Any, seen: Seen | None = None) -> Any:
        governor = Governor([ProvenancePolicy(arguments=["to"])], plugins=[] if seen is None else [seen])
        return serve(list(script), gate=PolicyGate(governor, store=store))

    return started


def mailed(serving: Any, *messages: dict[str, Any], headers: dict[str, str] = FIRST) -> list[str]:
    """The addresses to which the agent may send mails after this request."""
    body = {"model": "m", "messages": messages, "tools": TOOLS}
    reply = httpx.post(f"{serving.base_url}/chat/completions", json=body, headers=headers, timeout=30).json()
    calls = reply["choices"][0]["message"].get("tool_calls") or ()
    return [json.loads(one["function"]["arguments"])["to"] for one in calls]


def mail(address: str) -> Any:
    return call("send_mail", to=address)


@BOTH_ADDRESSES
def test_what_the_attempt_begins_with_is_the_users(start, address: str, sent: bool) -> None:
    serving = start(mail(address))
    assert mailed(serving, {"role": "system", "content": "Help."}, user(REQUEST)) == ([address] if sent else [])


@BOTH_ADDRESSES
def test_what_comes_after_a_reply_is_not_the_users(start, address: str, sent: bool) -> None:
    seen = Seen()
    serving = start("Action: read_page", mail(address), seen=seen)
    assert mailed(serving, user(REQUEST)) == []
    transcript = [user(REQUEST), assistant("Action: read_page"), user(f"Observation: {ORDER}")]
    assert mailed(serving, *transcript) == ([address] if sent else [])
    sources = {one.action.text: one.action.source for one in seen.decisions(Point.INPUT)}
    assert sources == {REQUEST: "user", f"Observation: {ORDER}": "agent"}


@BOTH_ADDRESSES
def test_what_is_said_to_another_agent_is_not_the_users(start, address: str, sent: bool) -> None:
    serving = start("Mailer, go on.", mail(address))
    mailed(serving, user(REQUEST))
    assert mailed(serving, user(ORDER), headers={**FIRST, "x-lgov-agent": "mailer"}) == ([address] if sent else [])


def test_a_second_attempt_begins_anew(start) -> None:
    serving = start("noted", mail(UNSAID))
    mailed(serving, user(REQUEST))
    assert mailed(serving, user(ORDER), headers={**FIRST, "x-lgov-attempt": "2"}) == [UNSAID]


def test_an_earlier_turn_in_the_first_call_counts(start) -> None:
    serving = start(mail(SAID))
    assert mailed(serving, user(REQUEST), assistant("Shall I?"), user("Yes, please.")) == [SAID]


def test_an_endpoint_that_has_started_again_takes_nothing_for_the_users(start) -> None:
    mailed(start("noted"), user(REQUEST))
    assert mailed(start(mail(UNSAID)), user(ORDER)) == []


@BOTH_ADDRESSES
def test_of_a_call_without_a_rollout_what_comes_before_a_reply_counts(start, address: str, sent: bool) -> None:
    serving = start(mail(address))
    transcript = [user(REQUEST), assistant("Action: read_page"), user(f"Observation: {ORDER}")]
    assert mailed(serving, *transcript, headers={}) == ([address] if sent else [])


def test_texts_to_be_embedded_are_not_the_users(start) -> None:
    serving = start(mail(UNSAID))
    asked = {"model": "m", "input": ORDER}
    httpx.post(f"{serving.base_url}/embeddings", json=asked, headers=FIRST, timeout=30)
    assert mailed(serving, user(REQUEST)) == []
