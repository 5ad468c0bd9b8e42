"""The endpoint stays awake: what one request may hold, how long it is judged, and who waits for whom meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from lgov_core.errors import EndpointError
from lgov_core.flow import TURN, Flow, in_thread, wait
from lgov_core.gateway.judging import JudgingLimits, Turns
from lgov_core.gateway.limits import Busy
from lgov_core.gateway.policy_gate import PolicyGate
from lgov_core.gateway.protocol import GateRequest
from lgov_core.governor import Governor
from lgov_core.policies import BoundedPolicy, SecretsPolicy
from lgov_core.policies.content import content
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Action, Decision, Point
from tests.commands.cli_runner import LGOV

POLICY = """\
version: 1
name: endpoint
rules:
  - {name: tools, use: tool, with: {allow: [search]}}
  - {name: data, use: pii, with: {action: redact}}
  - {name: keys, use: secrets}
"""


class Slow(BoundedPolicy):
    """Allows everything, in 2 ms, and remembers what it was asked."""

    name = "slow"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def judge(self, action: Action) -> Decision | None:
        """Allows."""
        time.sleep(0.002)
        self.asked.append(action.text or str(action.point))
        return self.allow()


def request(*texts: str, attempt: int | None = 1, **fields: Any) -> GateRequest:
    """A call with these texts of the user."""
    messages = [{"role": "user", "content": text} for text in texts]
    return GateRequest("m", messages, rollout_id=None if attempt is None else "r", attempt=attempt, fields=fields)


@pytest.mark.parametrize(
    ("limits", "sent", "named"),
    [
        (JudgingLimits(max_texts=3), request(*"abcd"), "3 texts .*max_texts"),
        (JudgingLimits(max_texts=3), request(*"ab", tools=[{"a": "b", "c": ["d"]}]), "3 texts .*max_texts"),
        (JudgingLimits(max_characters=9), request("a" * 10), "9 characters .*max_characters"),
        (JudgingLimits(max_characters=9), request("a", metadata={"key": "b" * 9}), "9 characters .*max_characters"),
    ],
)
async def test_a_request_with_too_much_to_judge_is_refused_by_the_name_of_the_limit(
    limits: JudgingLimits, sent: GateRequest, named: str
) -> None:
    policy = Slow()
    gate = PolicyGate(Governor([policy]), limits=limits)
    with pytest.raises(EndpointError, match=named) as refused:
        await gate.admit(sent)
    assert (refused.value.status, policy.asked) == (413, [])
    await gate.admit(request("a"))
    gate.close()


async def test_what_takes_too_long_to_judge_is_refused_and_goes_on_when_it_is_sent_again() -> None:
    policy = Slow()
    gate = PolicyGate(Governor([policy]), limits=JudgingLimits(judging_s=0.1))
    texts = [f"text {number}" for number in range(120)]
    refusals: list[Busy] = []
    while True:
        try:
            await gate.admit(request(*texts))
            break
        except Busy as busy:
            refusals.append(busy)
    assert len(refusals) >= 2
    assert {(busy.status, busy.retry_after_s) for busy in refusals} == {(429, 1.0)}
    assert all("0.1 s, the setting judging_s" in str(busy) for busy in refusals)
    assert Counter(policy.asked) == {**dict.fromkeys(texts, 1), str(Point.PRE_MODEL_CALL): 1}
    gate.close()


async def test_calls_of_one_attempt_judge_each_text_once_and_one_after_the_other() -> None:
    policy = Slow()
    gate = PolicyGate(Governor([policy]))
    texts = [f"text {number}" for number in range(40)]
    await asyncio.gather(*(gate.admit(request(*texts)) for _ in range(4)))
    assert policy.asked == [*texts, *[str(Point.PRE_MODEL_CALL)] * 4]
    gate.close()


async def test_calls_of_other_attempts_take_turns() -> None:
    policy = Slow()
    gate = PolicyGate(Governor([policy]))
    calls = [request(*(f"{attempt} {number}" for number in range(40)), attempt=attempt) for attempt in (1, 2)]
    await asyncio.gather(*map(gate.admit, calls))
    attempts = [text[0] for text in policy.asked if " " in text]
    assert sum(before != after for before, after in pairwise(attempts)) >= 8
    assert [text for text in policy.asked if text.startswith("1 ")] == [f"1 {number}" for number in range(40)]
    gate.close()


async def test_a_small_request_does_not_wait_for_a_large_one_that_cannot_be_interrupted() -> None:
    def computing(seconds: float) -> Flow[float]:
        time.sleep(seconds)
        return seconds
        yield

    turns = Turns(JudgingLimits())
    large = [asyncio.create_task(turns.judged(computing(0.5), 10_000, None)) for _ in range(2)]
    await asyncio.sleep(0.05)
    began = time.monotonic()
    assert await turns.judged(computing(0.001), 1, None) == 0.001
    assert time.monotonic() - began < 0.25
    assert not any(task.done() for task in large)
    assert await asyncio.gather(*large) == [0.5, 0.5]
    turns.close()


async def test_what_a_flow_waits_for_holds_no_thread_and_no_other_call_of_its_attempt() -> None:
    person = threading.Event()

    def asking() -> Flow[bool]:
        return (yield from wait(in_thread(person.wait, 10)))

    def plain() -> Flow[str]:
        yield TURN
        return "plain"

    turns = Turns(JudgingLimits())
    waiting = asyncio.create_task(turns.judged(asking(), 1, "attempt"))
    await asyncio.sleep(0.05)
    assert await asyncio.wait_for(turns.judged(plain(), 1, "attempt"), 5) == "plain"
    person.set()
    assert await waiting
    turns.close()


async def test_a_flow_whose_client_leaves_is_ended() -> None:
    ended: list[type[BaseException]] = []

    def endless() -> Flow[None]:
        try:
            while True:
                time.sleep(0.001)
                yield TURN
        except BaseException as error:
            ended.append(type(error))
            raise

    turns = Turns(JudgingLimits())
    task = asyncio.create_task(turns.judged(endless(), 1, "attempt"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [asyncio.CancelledError]
    turns.close()


class Counted(dict[str, Any]):
    """A message that counts how often it is read."""

    reads = 0

    def __getitem__(self, name: str) -> Any:
        type(self).reads += 1
        return super().__getitem__(name)


@pytest.mark.parametrize("length", [200, 2000])
@pytest.mark.parametrize("role", ["user", "tool"])
async def test_reading_a_conversation_takes_time_in_proportion_to_its_length(length: int, role: str) -> None:
    gate = PolicyGate(Governor([SecretsPolicy()]))
    Counted.reads = 0
    messages = [Counted(role=role, content=f"text {number}", tool_call_id="c") for number in range(length)]
    await gate.admit(replace(request("a"), messages=messages))
    assert Counted.reads < 20 * length
    gate.close()


async def test_what_was_looked_through_once_is_not_looked_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    look_through = content.look_through

    def counted(text: str, *arguments: Any) -> Any:
        looked.append(text)
        return look_through(text, *arguments)

    monkeypatch.setattr(content, "look_through", counted)
    gate = PolicyGate(Governor([SecretsPolicy()]))
    texts = [f"text {number}" for number in range(100)]
    await gate.admit(request(*texts))
    first = len(looked)
    await gate.admit(request(*texts, "one more"))
    assert (first >= 100, len(looked) - first <= 4) == (True, True)
    gate.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """``lgov serve`` with a policy, in a process of its own."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    with ScriptedModelServer(lambda _: "Hello.") as model:
        flags = ("--port", "0", "--upstream", model.base_url, "--policy", "policy.yaml", "--set", "judging_s=60")
        command = [*LGOV, "serve", *flags]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                assert process.stdout is not None
                yield f"{process.stdout.readline().split()[-1]}/chat/completions"
            finally:
                process.kill()


def conversation(kind: str) -> list[dict[str, Any]]:
    """The messages of the worst request that is let in."""
    if kind == "many texts":
        return [{"role": "user", "content": f"text {number}"} for number in range(8190)]
    if kind == "many results":
        calls = [
            {"id": f"c{n}", "type": "function", "function": {"name": "search", "arguments": "{}"}} for n in range(4000)
        ]
        results = [{"role": "tool", "tool_call_id": f"c{number}", "content": f"row {number}"} for number in range(4000)]
        return [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            *results,
        ]
    return [{"role": "user", "content": "lorem a.b@c 12-34 " * 55_000}] * 4


@pytest.mark.parametrize("kind", ["many texts", "many results", "long texts"])
def test_others_wait_at_most_100_ms_while_the_worst_request_is_judged(served: str, kind: str) -> None:
    replies: list[int] = []
    body = {"model": "scripted", "messages": conversation(kind)}
    large = threading.Thread(target=lambda: replies.append(httpx.post(served, json=body, timeout=300).status_code))
    waits: list[float] = []
    with httpx.Client(timeout=60) as client:

        def ask(number: int) -> float:
            began = time.perf_counter()
            small = {"model": "scripted", "messages": [{"role": "user", "content": f"Hi {number}"}]}
            assert client.post(served, json=small).status_code == 200
            return time.perf_counter() - began

        alone = sorted(ask(number) for number in range(20))
        large.start()
        while large.is_alive():
            waits.append(ask(100 + len(waits)))
    waits.sort()
    print(f"{kind}: {len(waits)} small calls, median {waits[len(waits) // 2]:.4f} s, slowest {waits[-1]:.4f} s")
    assert replies
    # the slowest fifth is left out: what else runs on the machine is not the endpoint's
    assert waits[len(waits) * 4 // 5] < 0.1 + alone[-1]


def test_the_limits_are_answered_over_http_by_their_names(served: str) -> None:
    for messages, limit in (
        ([{"role": "user", "content": "a"}] * 20_000, "8192 texts"),
        ([{"role": "user", "content": "a" * 500_000}] * 9, "4000000 characters"),
    ):
        began = time.perf_counter()
        reply = httpx.post(served, json={"model": "scripted", "messages": messages}, timeout=60)
        assert (reply.status_code, limit in reply.json()["error"]["message"]) == (413, True)
        assert time.perf_counter() - began < 5
