"""Which clients and requests are governed."""

from __future__ import annotations

import subprocess
import sys

import httpx2
import openai
import pytest

from lgov_core.errors import InstrumentationError
from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Action, Decision, Point
from lgov_openai import govern_client
from lgov_openai.client import http_client_of
from tests.cells import asks, says
from tests.openai import openai_programs as programs
from tests.openai.rules import USER, chat, denies, served


def test_copies_are_governed_and_other_requests_pass():
    with served(Point.PRE_TOOL_CALL, denies, asks(("c1", "look", {})), says("no")) as one:
        copied = one.client.with_options(timeout=30).copy()
        assert isinstance(copied, openai.OpenAI)
        assert copied.chat.completions.create(model="m", messages=[USER]).choices[0].message.content == "no"
        assert [model.id for model in copied.models.list()] == ["scripted"]
        assert govern_client(one.client, one.governor) is one.client
    assert len(one.judged) == 1


def test_a_client_on_httpx_is_governed():
    import httpx

    with served(Point.PRE_TOOL_CALL, denies, asks(("c1", "look", {})), says("no")) as one, httpx.Client() as http:
        on = govern_client(programs.client(one.server.base_url, http_client=http), one.governor)
        assert on.chat.completions.create(model="m", messages=[USER]).choices[0].message.content == "no"


def test_httpx_need_not_be_installed():
    program = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "httpx":
            raise ModuleNotFoundError("No module named 'httpx'", name="httpx")
sys.meta_path.insert(0, Gone())
import httpx2, openai
from lgov_core.governor import Governor
from lgov_openai import govern_client
class Body(httpx2.SyncByteStream):
    def __iter__(self):
        yield b'data: {"id": "x", "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}\\n\\n'
transport = httpx2.MockTransport(lambda request: httpx2.Response(200, stream=Body()))
plain = openai.OpenAI(api_key="k", base_url="http://model.invalid", http_client=httpx2.Client(transport=transport))
client = govern_client(plain, Governor(observe_only=True))
for chunk in client.chat.completions.create(model="m", messages=[], stream=True):
    print(chunk.choices[0].delta.content)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("hi\n", 0), done.stderr


def test_one_governor_evaluates_once_and_two_both_do(instrumented, seen):
    class Other(BoundedPolicy):
        name = "other"

        def judge(self, action: Action) -> Decision | None:
            if action.point is Point.PRE_TOOL_CALL:
                return self.deny("mine", "not for me") if action.name == "look" else self.allow("fine")
            return None

    other = Governor([Other()])
    script = [asks(("c1", "look", {}), ("c2", "erase_file", {}), ("c3", "add", {})), says("ok")]
    with ScriptedModelServer([*script, script[0]]) as server:
        message = chat(govern_client(programs.client(server.base_url), instrumented))
        assert [call.id for call in message.tool_calls] == ["c1", "c3"]
        assert len(seen.decisions()) == 3
        chat(programs.client(server.base_url), {"role": "user", "content": "other"})
        both = chat(govern_client(programs.client(server.base_url), other), {"role": "user", "content": "more"})
        assert [call.id for call in both.tool_calls] == ["c3"]
    other.close()


def test_a_copy_with_another_http_client_is_governed():
    with (
        served(Point.PRE_TOOL_CALL, denies, asks(("c1", "look", {})), says("no")) as one,
        httpx2.Client() as http,
    ):
        copied = one.client.with_options(http_client=http)
        assert copied.chat.completions.create(model="m", messages=[USER]).choices[0].message.content == "no"


def test_a_shared_http_client_governs_only_the_governed_client():
    script = [asks(("c1", "look", {})), asks(("c2", "look", {})), says("no")]
    with served(Point.PRE_TOOL_CALL, denies, *script) as one, httpx2.Client() as http:
        governed = govern_client(programs.client(one.server.base_url, http_client=http), one.governor)
        assert chat(programs.client(one.server.base_url, http_client=http)).tool_calls
        assert chat(governed).content == "no"


def test_a_client_used_inside_the_request_of_another_is_not_governed():
    with (
        served(Point.PRE_TOOL_CALL, denies, asks(("c1", "look", {})), says("no")) as one,
        ScriptedModelServer(lambda body: asks(("c2", "look", {}))) as other,
    ):
        inside: list[object] = []

        def key() -> str:
            inside.append(chat(programs.client(other.base_url)).tool_calls)
            return "k"

        governed = govern_client(programs.client(one.server.base_url).with_options(api_key=key), one.governor)
        assert chat(governed).content == "no"
    assert inside
    assert all(inside)


async def test_async_copies_are_governed(governor):
    with ScriptedModelServer([asks(("c1", "erase_file", {})), says("no")]) as server:
        async with govern_client(programs.aclient(server.base_url), governor).with_options(timeout=30) as client:
            reply = await client.chat.completions.create(model="m", messages=[USER])
    assert reply.choices[0].message.content == "no"


def test_the_http_client_is_where_openai_keeps_it():
    with httpx2.Client() as http:
        assert http_client_of(programs.client("http://model.invalid/v1", http_client=http)) is http
    with pytest.raises(InstrumentationError, match="HTTP client of this object"):
        http_client_of(object())


def test_a_client_that_cannot_be_wrapped_raises(governor):
    class Fixed(httpx2.Client):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "send":
                raise AttributeError(name)
            super().__setattr__(name, value)

    with Fixed() as http, pytest.raises(InstrumentationError, match=r"Fixed\.send cannot be wrapped"):
        govern_client(programs.client("http://model.invalid/v1", http_client=http), governor)
