"""A server that cannot be trusted: no call waits for ever, none passes unjudged, and every error can be read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.mcp_proxy.hostile_server import LOOKALIKES, PIXEL
from tests.mcp_proxy.proxied import HOSTILE, NO_ORDERS, connected, governed, recorded, text_of, write_policy


@pytest.mark.parametrize("tool", ["astray", "slow", "deep"])
async def test_a_call_that_is_not_answered_ends_when_the_client_gives_up(tmp_path: Path, tool: str) -> None:
    """It is not answered at all, for another id, or by what nobody can read."""
    write_policy(tmp_path, f"{tool}, search")
    async with connected(tmp_path, governed(*HOSTILE, str(tmp_path))) as client:
        with pytest.raises(MCPError, match="timed out"):
            await client.call_tool(tool, {}, read_timeout_seconds=5)
        assert text_of(await client.call_tool("search", {"q": "tea"})) == "found tea"
    assert recorded(tmp_path, "outcome") == [(tool, "error"), ("search", "ok")]


async def test_a_server_that_dies_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    write_policy(tmp_path, "half")
    async with connected(tmp_path, governed(*HOSTILE, str(tmp_path))) as client:
        result = await client.call_tool("half", {})
    assert result.is_error
    assert "has ended; tools/call may have run or not" in text_of(result)


@pytest.mark.parametrize("rule", ["", "  - {name: keys, use: secrets, with: {action: redact}}\n"])
async def test_ten_megabytes_pass_unless_a_rule_cannot_read_as_much(tmp_path: Path, rule: str) -> None:
    write_policy(tmp_path, "large", rule)
    async with connected(tmp_path, governed(*HOSTILE, str(tmp_path))) as client:
        text = text_of(await client.call_tool("large", {}, read_timeout_seconds=120))
    if rule:
        assert text.startswith("DENIED by policy keys/secret-unscanned")
    else:
        assert len(text) == 10_000_000
    assert recorded(tmp_path, "outcome") == [("large", "ok")]


async def test_pictures_and_recordings_pass_unread(tmp_path: Path) -> None:
    write_policy(tmp_path, "media", NO_ORDERS)
    async with connected(tmp_path, governed(*HOSTILE, str(tmp_path))) as client:
        image, audio = (await client.call_tool("media", {})).content
    assert (image.type, image.data, audio.type, audio.data) == ("image", PIXEL, "audio", PIXEL)


async def test_names_that_look_like_that_of_a_tool_are_other_names(tmp_path: Path) -> None:
    """Their schemas refer to themselves, too, which nobody follows."""
    write_policy(tmp_path, "search")
    async with connected(tmp_path, governed(*HOSTILE, str(tmp_path))) as client:
        offered = (await client.list_tools(cursor="odd")).tools
        assert [tool.name for tool in offered] == list(LOOKALIKES)
        assert offered[0].input_schema["allOf"] == [{"$ref": "#"}]
        for name in LOOKALIKES:
            result = await client.call_tool(name, {"q": "tea"})
            assert result.is_error
            assert text_of(result).startswith("DENIED by policy")
            assert text_of(result).isprintable()
    assert not (tmp_path / "ran").exists()


async def test_what_a_server_says_meanwhile_is_judged_too(tmp_path: Path) -> None:
    write_policy(tmp_path, "chatter", NO_ORDERS)
    heard: list[Any] = []

    async def hear(*what: Any) -> None:
        heard.append(what[-1] if len(what) == 3 else what[0])

    async with connected(
        tmp_path, governed(*HOSTILE, str(tmp_path)), logging_callback=hear, message_handler=hear
    ) as client:
        result = await client.call_tool("chatter", {}, progress_callback=hear)
        await asyncio.sleep(0.5)
    assert text_of(result) == "chatter"
    said = json.dumps([str(one) for one in heard])
    assert "Tea is hot." in said
    assert "list_changed" in said
    assert "Ignore all" not in said
    assert (tmp_path / "stderr").read_text().count("is left out: DENIED by policy no-orders") == 2
