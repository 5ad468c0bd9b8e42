"""Every client on every route, against the embedded engine and against upstream servers: what it got is what is recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.policy_gate import PolicyGate
from lgov_core.gateway.protocol import Engine, Gate
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.governor import Governor
from lgov_core.models import LanguageModel
from lgov_core.policies.content.pii import PIIPolicy
from lgov_core.policies.content.secrets import SecretsPolicy
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.types import CapturedCall, Rollout
from tests.gateway.api_clients import CELLS, CLIENTS, RESULT, Cell, Turn
from tests.gateway.taught import TOOLS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

ROOT = Path(__file__).parents[2]
ALL = ("chat", "completions", "responses", "messages")


def script(body: dict[str, Any]) -> ScriptedReply:
    """Text and a call, then two calls, then the answer; how far it is shows in the results that were sent back."""
    if "tools" not in body:  # completions, translated or not
        return ScriptedReply("So be it, then é")
    said = json.dumps(body)
    results = said.count(f'"{RESULT}"')
    if results == 0:
        return ScriptedReply("Let me see", [ScriptedCall("run_sql", {"query": "SELECT 'é'"})])
    if results == 1:
        return ScriptedReply(None, [ScriptedCall("run_sql", {"query": "a"}), ScriptedCall("run_sql", {"query": "b c"})])
    return ScriptedReply(f"It is {RESULT} é")


EXPECTED = [
    Turn("Let me see", (("run_sql", {"query": "SELECT 'é'"}),)),
    Turn("", (("run_sql", {"query": "a"}), ("run_sql", {"query": "b c"}))),
    Turn("It is 12 é"),
]


@dataclass
class Served:
    """One engine behind an endpoint, with a store of its own."""

    url: str
    store: SQLiteStore
    model: LanguageModel | None = None
    upstream: ScriptedModelServer | None = None
    rollouts: set[str] = field(default_factory=set)

    def run(self, cell: Cell) -> tuple[list[Turn], list[CapturedCall]]:
        if cell.name not in self.rollouts:
            self.rollouts.add(cell.name)
            self.store.add_rollouts([Rollout(cell.name, task_id="t", run_id="r", input={})])
            self.store.start_attempt(cell.name, 1)
        turns = list(cell.run(f"{self.url}/rollout/{cell.name}/attempt/1", cell.stream))
        return turns, list(self.store.calls([cell.name]))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, taught: LanguageModel) -> Iterator[dict[str, Served]]:
    """The embedded engine; an upstream that only speaks chat; one that speaks everything."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("stores")

        def serve(name: str, engine: Engine, gate: Gate | None = None, **more: Any) -> Served:
            store = SQLiteStore(folder / f"{name}.sqlite")
            stack.callback(store.close)
            app = create_app([engine], store, keys=KeyRing(required=False), gate=gate)
            return Served(stack.enter_context(EndpointServer(app)).url, store, **more)

        upstream = stack.enter_context(ScriptedModelServer(script, token_ids=True))
        rules = [PIIPolicy(action="redact"), SecretsPolicy()]
        gates = [stack.enter_context(closing(PolicyGate(Governor(rules)))) for _ in range(2)]
        chat, every = (UpstreamEngine(upstream.base_url, speaks=speaks) for speaks in (["chat"], ALL))
        yield {
            "embedded": serve("embedded", EmbeddedEngine(taught, max_new_tokens=24), model=taught),
            "translated": serve("translated", UpstreamEngine(upstream.base_url, speaks=["chat"]), upstream=upstream),
            "governed translated": serve("governed_translated", chat, gates[0], upstream=upstream),
            "governed native": serve("governed_native", every, gates[1], upstream=upstream),
            "native": serve("native", UpstreamEngine(upstream.base_url, speaks=ALL), upstream=upstream),
        }


def decoded_by_the_script(call: CapturedCall) -> Turn:
    """What the token ids of the scripted model say: the bytes of the text, then each call as JSON."""
    assert call.response_ids is not None
    assert call.response_ids[-1] == 256
    text = bytes(call.response_ids[:-1]).decode()
    start = text.find('{"name"')
    content, rest = (text, "") if start < 0 else (text[:start], text[start:])
    calls: list[tuple[str, Any]] = []
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        calls.append((value["name"], json.loads(value["arguments"])))
        rest = rest[end:]
    return Turn(content, tuple(calls))


def decoded_by(model: LanguageModel, call: CapturedCall, tools: Any) -> Turn:
    """What the token ids of the embedded model say, its end token cut off."""
    ids = list(call.response_ids or ())
    text = model.decode(ids[:-1] if ids[-1] in model.eos_ids else ids)
    if not tools:
        return Turn(text)
    reply = model.format.parse(text, tools)
    return Turn(reply.content or "", tuple((one.name, json.loads(one.arguments_text)) for one in reply.calls))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_with_the_embedded_engine(served: dict[str, Served], cell: Cell) -> None:
    serving = served["embedded"]
    assert serving.model is not None
    turns, calls = serving.run(cell)
    tools = () if cell.route == "completions" else TOOLS
    assert [decoded_by(serving.model, call, tools) for call in calls] == turns
    if cell.route != "completions":
        assert turns == [Turn("", (("run_sql", {"query": "SELECT 12"}),)), Turn("Answer: 12")]
        # The second prompt goes on from the first reply, token by token.
        first, second = calls
        seen = (*(first.prompt_ids or ()), *(first.response_ids or ()))
        assert (second.prompt_ids or ())[: len(seen)] == seen
    for call in calls:
        assert (call.route, call.engine, call.weights_version, call.attempt) == (cell.route, "embedded", 0, 1)
        assert len(call.logprobs or ()) == len(call.response_ids or ()) > 0


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_with_an_upstream_that_speaks_chat_only(served: dict[str, Served], cell: Cell) -> None:
    turns, calls = served["translated"].run(cell)
    assert turns == (EXPECTED if cell.route != "completions" else [Turn("So be it, then é")] * 2)
    assert [decoded_by_the_script(call) for call in calls] == turns
    assert {(call.route, call.engine) for call in calls} == {(cell.route, "upstream")}
    assert all(call.prompt_ids and call.logprobs for call in calls)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if "previous" not in cell.client], ids=lambda cell: cell.name)
def test_with_an_upstream_that_speaks_every_api(served: dict[str, Served], cell: Cell) -> None:
    serving = served["native"]
    assert serving.upstream is not None
    before = len(serving.upstream.requests)
    turns, calls = serving.run(cell)
    assert turns == (EXPECTED if cell.route != "completions" else [Turn("So be it, then é")] * 2)
    paths = {request.path.removeprefix("/v1") for request in serving.upstream.requests[before:]}
    assert paths == {{"chat": "/chat/completions"}.get(cell.route, f"/{cell.route}")}
    for call, turn in zip(calls, turns, strict=True):
        if cell.route in ("chat", "completions"):
            assert decoded_by_the_script(call) == turn
        else:  # these APIs have no token ids
            assert (call.response_ids, call.route) == (None, cell.route)
        assert len(call.tool_call_ids) == len(turn.calls)
        assert call.finish_reason == ("tool_calls" if turn.calls else "stop")


@pytest.mark.parametrize("name", ["governed native", "governed translated"])
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_with_a_policy_that_reads_every_text(served: dict[str, Served], cell: Cell, name: str) -> None:
    if name == "governed native" and "previous" in cell.client:
        pytest.skip("the scripted upstream keeps no conversations")
    turns, calls = served[name].run(cell)
    assert turns == (EXPECTED if cell.route != "completions" else [Turn("So be it, then é")] * 2)
    assert {call.route for call in calls} == {cell.route}


def test_the_table_of_clients_in_the_document_is_this_one() -> None:
    text = (ROOT / "docs/how-to/endpoint.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| client \| routes, whole and streamed \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.M)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    paths = {"chat": "chat/completions"}
    documented = [(client, route) for client, routes in rows for route in routes.split(", ")]
    assert sorted(documented) == sorted((client, f"`/v1/{paths.get(route, route)}`") for client, route, _ in CLIENTS)
    assert {(cell.client, cell.route, cell.stream) for cell in CELLS} == {
        (client, route, stream) for client, route, *_ in CLIENTS for stream in (False, True)
    }
