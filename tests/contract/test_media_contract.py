"""Pictures, recordings and files are content of their own kind: one contract for every adapter and the endpoint."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import openai
import pytest

from lgov_core import Governor, load_policy_file
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.policy_gate import PolicyGate
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.policies.content.pii import PIIPolicy
from lgov_core.policies.content.secrets import SecretsPolicy
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Action, Point
from lgov_core.wire.turns import media_in
from tests.cells import Seen, says

#: A picture whose base64 is longer than policies look at, and holds what looks like a number of a card.
PICTURE = b"\x89PNG\r\n\x1a\n" + base64.b64decode("4111111111111111") * 70_000
SOUND = b"RIFF" + bytes(range(256)) * 8
PAPER = b"%PDF-1.7\n" + bytes(range(256)) * 8
ENCODED = {kind: base64.b64encode(data).decode() for kind, data in (("i", PICTURE), ("a", SOUND), ("f", PAPER))}
URL = f"data:image/png;base64,{ENCODED['i']}"
CHAT = {
    "image": {"type": "image_url", "image_url": {"url": URL}},
    "audio": {"type": "input_audio", "input_audio": {"data": ENCODED["a"], "format": "wav"}},
    "file": {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{ENCODED['f']}", "filename": "a.pdf"}},
}
RESPONSES = {
    "image": {"type": "input_image", "image_url": URL, "detail": "auto"},
    "file": {"type": "input_file", "file_data": f"data:application/pdf;base64,{ENCODED['f']}", "filename": "a.pdf"},
}
BLOCKS = {
    "image": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED["i"]}},
    "file": {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ENCODED["f"]}},
}
BYTES = {"image": PICTURE, "audio": SOUND, "file": PAPER}
TEXT = "what is this?"

Send = Callable[[str, Governor, Any], None]


def openai_chat(url: str, governor: Governor, part: Any) -> None:
    from lgov_openai import govern_client

    client = govern_client(openai.OpenAI(base_url=url, api_key="k", max_retries=0), governor)
    content = [{"type": "text", "text": TEXT}, part]
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])  # type: ignore[list-item]


def openai_responses(url: str, governor: Governor, part: Any) -> None:
    from lgov_openai import govern_client

    client = govern_client(openai.OpenAI(base_url=url, api_key="k", max_retries=0), governor)
    asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": TEXT}, part]}]
    client.responses.create(model="m", input=asked)


def langchain(url: str, governor: Governor, part: Any) -> None:
    from langchain.agents import create_agent
    from langchain_core.messages import HumanMessage
    from langchain_openai import ChatOpenAI

    from lgov_langchain import LgovMiddleware

    agent = create_agent(ChatOpenAI(model="m", base_url=url, api_key="k"), middleware=[LgovMiddleware(governor)])  # type: ignore[arg-type]
    agent.invoke({"messages": [HumanMessage([{"type": "text", "text": TEXT}, part])]})


def autogen(url: str, governor: Governor, part: Any) -> None:
    from autogen_core import Image
    from autogen_core.models import UserMessage

    from lgov_autogen import GovernedChatCompletionClient
    from tests.autogen.autogen_parts import MODEL_INFO, OpenAIChatCompletionClient

    info: Any = {**MODEL_INFO, "vision": True}
    bare = OpenAIChatCompletionClient(model="m", base_url=url, api_key="k", model_info=info)
    client = GovernedChatCompletionClient(bare, governor)
    content: Any = [TEXT, Image.from_base64(SMALL)]
    asyncio.run(client.create([UserMessage(content=content, source="user")]))


def agents(url: str, governor: Governor, part: Any) -> None:
    from agents import Agent, OpenAIChatCompletionsModel, Runner
    from openai import AsyncOpenAI

    from lgov_openai_agents import GovernedModel

    bare = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=url, api_key="k", max_retries=0))
    agent = Agent(name="a", model=GovernedModel(bare, governor))
    asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": TEXT}, part]}]
    asyncio.run(Runner.run(agent, asked))


def at_endpoint(path: str, text: str) -> Send:
    def send(url: str, governor: Governor, part: Any) -> None:
        key = "input" if path == "responses" else "messages"
        body: Any = {"model": "m", key: [{"role": "user", "content": [{"type": text, "text": TEXT}, part]}]}
        body |= {"max_tokens": 9} if path == "messages" else {}
        gate = PolicyGate(governor)
        engine, keys = UpstreamEngine(url, speaks=("chat",)), KeyRing(b"0" * 32, required=False)
        with (
            TemporaryDirectory() as folder,
            SQLiteStore(Path(folder, "s.sqlite")) as store,
            EndpointServer(create_app([engine], store, keys=keys, gate=gate)) as server,
        ):
            reply = httpx.post(f"{server.base_url}/{path}", json=body, timeout=30)
        gate.close()
        assert reply.status_code == 200, reply.text

    return send


#: The smallest picture, which a framework can decode.
SMALL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WAYS: dict[str, tuple[Send, dict[str, Any]]] = {
    "openai chat": (openai_chat, CHAT),
    "openai responses": (openai_responses, RESPONSES),
    "langchain": (langchain, CHAT),
    "autogen": (autogen, {"image": None}),
    "agents": (agents, {"image": RESPONSES["image"]}),
    "endpoint chat": (at_endpoint("chat/completions", "text"), CHAT),
    "endpoint responses": (at_endpoint("responses", "input_text"), RESPONSES),
    "endpoint messages": (at_endpoint("messages", "text"), BLOCKS),
}
CASES = [(way, kind) for way, (_, parts) in WAYS.items() for kind in parts]


@pytest.fixture
def server() -> Iterator[Any]:
    with ExitStack() as stack:
        yield stack.enter_context(ScriptedModelServer(lambda body: says("a cat")))


@pytest.mark.parametrize(("way", "kind"), CASES)
def test_it_is_recorded_as_a_digest_and_a_size_and_not_read_as_text(server: Any, way: str, kind: str) -> None:
    send, parts = WAYS[way]
    seen = Seen()
    governor = Governor([PIIPolicy(), SecretsPolicy()], plugins=[seen])
    send(server.base_url, governor, parts[kind])
    governor.close()
    assert len(server.requests) == 1, "it was denied"
    (event,) = seen.decisions(Point.PRE_MODEL_CALL)
    (media,) = event.action.arguments["messages"][-1]["media"]
    if way == "autogen":
        assert media["bytes"] > 50  # AutoGen writes the picture anew
    else:
        assert (media["bytes"], media["sha256"]) == (len(BYTES[kind]), hashlib.sha256(BYTES[kind]).hexdigest())
    assert media["kind"] == kind
    assert event.action.arguments["messages"][-1]["content"] == TEXT
    assert event.action.context["media"] == kind
    assert {(part.policy, part.reason) for part in event.decision.parts or (event.decision,)} == {
        ("pii", f"It did not read: {kind}."),
        ("secrets", f"It did not read: {kind}."),
    }
    for each in seen.decisions(Point.INPUT):
        assert each.action.text == TEXT
    judged = json.dumps([dict(each.action.arguments) for each in seen.decisions(Point.PRE_MODEL_CALL)], default=str)
    assert ENCODED[kind[0]][20:60] not in judged


REFUSES = """version: 1
rules:
  - {name: all, use: allow}
  - name: no-media
    use: deny
    on: [pre_model_call]
    when: {field: context.media, contains: KIND}
    with: {reason: The model gets no such content}
"""


@pytest.mark.parametrize(("way", "kind"), CASES)
def test_a_rule_refuses_a_kind(server: Any, tmp_path: Path, way: str, kind: str) -> None:
    send, parts = WAYS[way]
    for refused, expected in (("video", 1), (kind, 1)):  # only the first is sent
        (tmp_path / "p.yaml").write_text(REFUSES.replace("KIND", refused))
        governor = Governor(load_policy_file(tmp_path / "p.yaml"))
        send(server.base_url, governor, parts[kind])
        governor.close()
        assert len(server.requests) == expected


def test_what_else_a_part_says_stays_a_text_that_policies_read() -> None:
    card = "4111 1111 1111 1111"
    parts: Any = [
        {"type": "image_url", "image_url": {"url": f"https://a.example/?card={card}"}},
        {"type": "file", "file": {"file_data": f"data:text/plain;base64,{ENCODED['f']}", "filename": card}},
        {"type": "input_audio", "input_audio": {"data": card, "format": "wav"}},
        {"type": "document", "source": {"type": "text", "data": card}},
        {"type": "text", "text": card},
    ]
    media = media_in(parts)
    assert [each["kind"] for each in media] == ["image", "file", "audio"]
    assert all(card in json.dumps(each) for each in media)
    action = Action(Point.PRE_MODEL_CALL, "m", "model", {"messages": [{"role": "user", "content": "", "media": media}]})
    decision = PIIPolicy().judge(action)
    assert decision is not None
    assert decision.blocks


def test_digests_are_nothing_that_a_policy_finds() -> None:
    described = [
        media_in([{"type": "image", "data": base64.b64encode(bytes([n]) * 99).decode()}])[0] for n in range(250)
    ]
    for policy in (PIIPolicy(), SecretsPolicy()):
        for media in described:
            decision = policy.judge(Action(Point.PRE_MODEL_CALL, "m", "model", {"media": [media]}))
            assert decision is not None
            assert not decision.blocks
