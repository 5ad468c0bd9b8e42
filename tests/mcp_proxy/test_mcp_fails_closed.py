"""What cannot be judged or recorded does not reach the server, and what the server says then does not reach the client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lgov_core.governance import Governance, OpenGovernance
from lgov_core.hookspecs import hookimpl
from lgov_core.process.mcp_flow import GovernedMCPServer, GovernedMCPSession
from lgov_core.scope import RolloutScope
from lgov_core.types import Action, Decision, Effect
from tests.mcp_proxy.proxied import write_policy

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": {"q": "tea"}}}
RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "found"}]}}


def opened(folder: Path, *plugins: object) -> OpenGovernance:
    write_policy(folder, "search")
    return Governance(policy=folder / "policy.yaml", audit=folder / "audit.db").open(plugins=plugins, rewards=False)


async def answered(session: GovernedMCPSession, request: dict[str, Any], response: dict[str, Any]) -> tuple[Any, str]:
    """The request that was sent (None: none was), and the text that the client reads."""
    call = session.begin(request)
    sent = await call.permitted()
    if sent is not None:
        session.take(response)
    answer = await call.response()
    assert answer is not None
    assert answer["result"]["isError"] is True
    return sent, answer["result"]["content"][0]["text"]


async def test_no_record_no_call(tmp_path: Path) -> None:
    with opened(tmp_path) as parts:
        session = GovernedMCPSession(GovernedMCPServer(parts, "search"), RolloutScope("r"))
        assert parts.audit is not None
        parts.audit.close()
        sent, text = await answered(session, CALL, RESULT)
    assert sent is None
    assert "audit-failed" in text


class Broken:
    """Raises when it judges at one point."""

    def __init__(self, point: str) -> None:
        self.point = point

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Decision | None:
        return self.judge(action)

    @hookimpl
    def lgov_post_tool_call(self, action: Action) -> Decision | None:
        return self.judge(action)

    def judge(self, action: Action) -> Decision | None:
        if action.point == self.point and action.name == "search":
            raise ValueError("broken")
        return None


@pytest.mark.parametrize("point", ["pre_tool_call", "post_tool_call"])
async def test_a_policy_that_raises_denies(tmp_path: Path, point: str) -> None:
    with opened(tmp_path, Broken(point)) as parts:
        session = GovernedMCPSession(GovernedMCPServer(parts, "search"), RolloutScope("r"))
        sent, text = await answered(session, CALL, RESULT)
    assert (sent is None) == (point == "pre_tool_call")
    assert text.startswith("DENIED by policy")
    assert "found" not in text


async def test_what_cannot_be_read_is_denied(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with opened(tmp_path) as parts:
        session = GovernedMCPSession(GovernedMCPServer(parts, "search"), RolloutScope("r"))
        hostile = {**RESULT, "result": {"content": [], "structuredContent": {"x": deep}}}
        _, text = await answered(session, CALL, hostile)
        assert "could not judge" in text
        named = {**CALL, "params": {"name": "resources/read", "arguments": {}}}
        sent, text = await answered(session, named, RESULT)
        assert (sent, "is the name of a method" in text) == (None, True)
        for params in ({"name": 3}, {"name": "search", "arguments": [1]}, {"arguments": {}}, None):
            call = session.begin({**CALL, "params": params})
            assert await call.permitted() is None
            answer = await call.response()
            assert answer is not None
            assert answer["error"]["code"] == -32602


async def test_an_id_in_use_is_refused_and_the_first_call_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as parts:
        session = GovernedMCPSession(GovernedMCPServer(parts, "search"), RolloutScope("r"))
        first = session.begin(CALL)
        assert await first.permitted() is not None
        again = await session.begin(CALL).response()
        assert again is not None
        assert "in progress already" in again["error"]["message"]
        assert session.take({**RESULT, "id": "1"}) is None  # not the number 1
        session.take(RESULT)
        assert await first.response() == RESULT
        assert await session.answer(RESULT) == RESULT  # asked for again after a lost connection
        assert await session.answer({**RESULT, "id": 99}) is None


class Ends:
    """Ends the run at the first call of ``search``."""

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Decision | None:
        return Decision(Effect.DENY, "ends", "stop", "enough", abort=True) if action.name == "search" else None


async def test_a_policy_that_ends_the_run_ends_the_session(tmp_path: Path) -> None:
    with opened(tmp_path, Ends()) as parts:
        session = GovernedMCPSession(GovernedMCPServer(parts, "search"), RolloutScope("r"))
        sent, text = await answered(session, CALL, RESULT)
        assert (sent, "enough" in text) == (None, True)
        sent, text = await answered(session, {**CALL, "params": {"name": "other"}}, RESULT)
        assert (sent, "ended this session: enough" in text) == (None, True)


async def test_a_call_that_the_server_asks_more_for_is_one_call(tmp_path: Path) -> None:
    """Since 2026 a server asks by a result; the client makes the call again, with the answers."""
    operations: list[str | None] = []

    class Watch:
        @hookimpl
        def lgov_pre_tool_call(self, action: Action) -> Decision | None:
            operations.append(action.operation_id)
            return None

    with opened(tmp_path, Watch()) as parts:
        session = GovernedMCPSession(GovernedMCPServer(parts, "search"), RolloutScope("r"))
        first = session.begin(CALL)
        await first.permitted()
        asks = {"resultType": "input_required", "requestState": "s", "inputRequests": {"a": {"method": "roots/list"}}}
        session.take({**RESULT, "result": asks})
        assert await first.response() == {**RESULT, "result": asks}
        second = session.begin(
            {**CALL, "id": 2, "params": {**CALL["params"], "requestState": "s", "inputResponses": {}}}
        )
        await second.permitted()
        session.take({**RESULT, "id": 2})
        assert await second.response() == {**RESULT, "id": 2}
    assert operations[0] == operations[1] is not None


async def test_a_call_cancelled_before_it_is_sent_is_never_sent(tmp_path: Path) -> None:
    released = asyncio.Event()

    class Slow:
        @hookimpl
        async def lgov_pre_tool_call(self, action: Action) -> Decision | None:
            await released.wait()
            return None

    with opened(tmp_path, Slow()) as parts:
        session = GovernedMCPSession(GovernedMCPServer(parts, "search"), RolloutScope("r"))
        call = session.begin(CALL)
        await asyncio.sleep(0.05)
        assert session.cancels({"method": "notifications/cancelled", "params": {"requestId": 1}})
        assert await call.response() is None
        assert await call.permitted() is None
        assert session.calls == {}
