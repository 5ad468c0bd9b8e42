"""Records a small run, verifies it by ``lgov demo --verify``, and changes its store."""

from __future__ import annotations

import json
import sqlite3
from array import array
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner, Result
from openai import OpenAI

from lgov_core.commands import cli
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.server import EndpointServer
from lgov_core.models import LanguageModel, build_tiny, load_model
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.train.algorithms.algorithms import SupervisedConfig
from lgov_core.train.algorithms.supervised import supervised
from lgov_core.train.layout.rows import TrainRow
from lgov_core.train.loop.checkpoint import save_weights
from lgov_core.train.loop.policy_model import full_policy, lora_policy
from lgov_core.types import CapturedCall, Rollout

SYSTEM = "Answer from the company database."
QUESTION = "How many work in sales?"
# Two spaces, so that the text is not the one that its tool call would be rendered as.
CALL = "@run_sql  SELECT COUNT(*) FROM staff"
ANSWER = "There are 7."
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "run_sql",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


def warmed_up() -> LanguageModel:
    """A model that usually calls the tool as in ``CALL`` and then answers."""
    model = build_tiny([SYSTEM, QUESTION, CALL, ANSWER] * 20, seed=0, hidden=32, layers=2, heads=2, intermediate=64)

    def row(messages: list[dict[str, Any]], reply: str) -> TrainRow:
        prompt = model.render(messages, [TOOL])
        written = [*model.text.encode(reply), model.end_id]
        zeros = (0.0,) * (len(prompt) + len(written))
        return TrainRow((*prompt, *written), (0,) * len(prompt) + (1,) * len(written), zeros, zeros, zeros, 1.0)

    asked = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    told = [*asked, {"role": "assistant", "content": CALL}, {"role": "tool", "content": "7"}]
    rows = [row(asked, CALL), row(told, ANSWER)]
    supervised(
        model.module, lambda count: rows * (count // 2), SupervisedConfig(steps=150, batch=2, learning_rate=5e-3)
    )
    return model


class Agent:
    """Talks to the endpoint with OpenAI's client, one rollout after the other."""

    def __init__(self, url: str, store: SQLiteStore) -> None:
        self.url, self.store = url, store
        self.rollouts = len(store.rollouts())

    def client(self) -> OpenAI:
        self.rollouts += 1
        name = f"ro-{self.rollouts}"
        self.store.add_rollouts([Rollout(name, "task", "run", {})])
        self.store.start_attempt(name, 1)
        headers = {"x-lgov-rollout-id": name, "x-lgov-attempt": "1"}
        return OpenAI(base_url=self.url, api_key="none", max_retries=0, default_headers=headers)

    def ask(self, **options: Any) -> None:
        with self.client() as client:
            reply = client.chat.completions.create(model="tiny", messages=self.beginning(), **options)
            if options.get("stream"):
                list(reply)

    def converse(self, seed: int) -> list[Any]:
        """Asks, answers tool calls, asks on. The messages in the end."""
        messages = self.beginning()
        with self.client() as client:
            for turn in range(3):
                reply = client.chat.completions.create(
                    model="tiny", messages=messages, tools=[TOOL], seed=10 * seed + turn
                ).choices[0]
                messages.append(reply.message.model_dump(exclude_none=True))
                for call in reply.message.tool_calls or ():
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": "7"})
                if not reply.message.tool_calls:
                    messages.append({"role": "user", "content": "And <|end|>, as I said?"})
        return messages

    @staticmethod
    def beginning() -> list[Any]:
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]


def record(run: Path, warm: Path, kind: str) -> None:
    """Serves three versions, of which the weights of the last are not kept, and has them answer."""
    (run / "server.json").write_text(json.dumps({"id": "train-1", "model": str(warm.resolve()), "dtype": "float32"}))
    model = load_model(str(warm))
    policy = {"all": full_policy, "adapters": lora_policy}[kind](model.module)
    engine = EmbeddedEngine(model, max_new_tokens=32)
    with closing(SQLiteStore(run / "store.sqlite")) as store:
        with EndpointServer([engine], store) as server:
            agent = Agent(f"{server.url}/v1", store)
            finished = agent.converse(1)
            for seed in range(2, 5):
                agent.converse(seed)
            agent.ask(temperature=0.0)
            agent.ask(temperature=0.7, top_p=0.9, tools=[TOOL], seed=5)
            agent.ask(max_tokens=2, tools=[TOOL], seed=6)
            agent.ask(stop="run", temperature=0.0, tools=[TOOL])
            agent.ask(tool_choice="none", tools=[TOOL], seed=7)
            agent.ask(stream=True, tools=[TOOL], temperature=0.0)
            generator = torch.Generator().manual_seed(1)
            for version in (1, 2):
                with torch.no_grad():
                    for parameter in policy.module.parameters():
                        if parameter.requires_grad:
                            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
                if version == 1:
                    save_weights(run / "weights", version, policy.weights())
                engine.publish(policy.served(), version)
                agent.converse(version)
                agent.ask(seed=8)
        # An engine that was started anew has forgotten how the replies were written.
        anew = EmbeddedEngine(load_model(str(warm)), max_new_tokens=32)
        with EndpointServer([anew], store) as server, Agent(f"{server.url}/v1", store).client() as client:
            client.chat.completions.create(model="tiny", messages=finished, tools=[TOOL], seed=9)


def verify(run: Path, *options: str) -> Result:
    result = CliRunner().invoke(cli, ["demo", "--verify", str(run), *options], prog_name="lgov")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def verified(run: Path, *options: str, status: int) -> dict[str, Any]:
    result = verify(run, "--json", *options)
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def query(run: Path, statement: str, *given: Any) -> list[Any]:
    with closing(sqlite3.connect(run / "store.sqlite")) as connection, connection:
        return connection.execute(statement, given).fetchall()


def calls_of(run: Path) -> list[CapturedCall]:
    with SQLiteStore(run / "store.sqlite") as store:
        return list(store.calls())


def logprobs_of(run: Path, call: str) -> array[float]:
    (found,) = (one for one in calls_of(run) if one.response_id == call)
    return array("d", found.logprobs or ())


def some_call(run: Path, version: int = 1) -> str:
    """A call of that version after which none came in its rollout."""
    (last,) = query(run, "SELECT response_id FROM calls WHERE weights_version = ? ORDER BY seq DESC LIMIT 1", version)
    return str(last[0])
