"""Replies that a grammar holds to a form are trained on where the model chose, and only there."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')
pytest.importorskip("llguidance")

from lgov_core.gateway.access import KeyRing  # noqa: E402
from lgov_core.gateway.app import create_app  # noqa: E402
from lgov_core.gateway.engine.embedded import EmbeddedEngine  # noqa: E402
from lgov_core.gateway.engine.reply_codec import Grammars, reply_grammar  # noqa: E402
from lgov_core.gateway.server import EndpointServer  # noqa: E402
from lgov_core.models import LanguageModel  # noqa: E402
from lgov_core.store import TraceStore  # noqa: E402
from lgov_core.store.sqlite import SQLiteStore  # noqa: E402
from lgov_core.train.algorithms.algorithms import algorithm  # noqa: E402
from lgov_core.train.algorithms.supervised import imitation_rows  # noqa: E402
from lgov_core.train.algorithms.update import PolicyUpdate  # noqa: E402
from lgov_core.train.layout.rows import make_rows  # noqa: E402
from lgov_core.train.loop.figures import reply_warnings  # noqa: E402
from lgov_core.transitions import Transition, build_transitions  # noqa: E402
from lgov_core.types import Outcome, Rollout  # noqa: E402
from lgov_core.wire.exchange import ChatRequest  # noqa: E402
from tests.gateway.taught import tiny  # noqa: E402

TOOL = {
    "type": "function",
    "function": {
        "name": "set_pay",
        "parameters": {
            "type": "object",
            "properties": {"note": {"type": "string", "maxLength": 12}},
            "required": ["note"],
            "additionalProperties": False,
        },
    },
}
#: What the form leaves of the model's probability where a token counts as the model's own.
OWN = 0.9


def recorded(model: LanguageModel, store: TraceStore, calls: int, **body: Any) -> list[Transition]:
    """The transitions of ``calls`` rollouts with one call each, answered by ``model`` over the endpoint."""
    openai = pytest.importorskip("openai")
    app = create_app([EmbeddedEngine(model, max_new_tokens=60)], store, keys=KeyRing(required=False))
    with EndpointServer(app) as endpoint:
        for number in range(calls):
            store.add_rollouts([Rollout(f"r{number}", "task", "run", {}, float(number))])
            store.start_attempt(f"r{number}", 1)
            url = f"{endpoint.url}/rollout/r{number}/attempt/1/v1"
            client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
            messages: Any = [{"role": "user", "content": f"pay {number}"}]
            client.chat.completions.create(model="tiny", messages=messages, seed=number, **body)
            store.finish_attempt(f"r{number}", 1, Outcome.SUCCEEDED)
    return list(build_transitions(store).transitions)


def left_to_the_model(model: LanguageModel, turn: Transition, body: dict[str, Any]) -> list[float]:
    """The probability that the form leaves at each token of a reply, by a plain forward pass and a fresh grammar."""
    request = ChatRequest(body=body, model="tiny", messages=[], tools=body["tools"])
    grammar = reply_grammar(request, model)
    assert grammar is not None
    (constraint,) = Grammars(model).constraints(grammar, 1)
    ids = torch.tensor([[*turn.prompt_ids, *turn.response_ids]])
    with torch.no_grad():
        logprobs = model.module(ids).logits[0, len(turn.prompt_ids) - 1 : -1].float().log_softmax(-1)
    left: list[float] = []
    for row, token in zip(logprobs, turn.response_ids, strict=True):
        left.append(float(row[constraint.allowed(row.shape[-1])].exp().sum()))
        constraint.take(token)
    return left


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with contextlib.closing(SQLiteStore(tmp_path / "store.sqlite")) as opened:
        yield opened


@pytest.fixture(scope="module")
def opinionated() -> LanguageModel:
    """A model that knows the form half, so that some tokens are its own choice and others the form's."""
    model = tiny()
    ids = torch.tensor([[*model.tokenizer.encode('@set_pay {"note": "pay 1"}'), model.end_id]])
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        model.module(ids, labels=ids).loss.backward()
        optimizer.step()
    model.module.eval()
    return model


def test_what_the_form_decided_is_masked_and_the_rest_is_what_was_sampled_from(
    opinionated: LanguageModel, store: SQLiteStore
) -> None:
    body: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required"}
    turns = recorded(opinionated, store, 6, **body)
    shares = [share for turn in turns for share in left_to_the_model(opinionated, turn, body)]
    masks = [kept for turn in turns for kept in turn.response_mask]
    assert masks == [int(share >= OWN) for share in shares]
    assert 0 < sum(masks) < len(masks), "the model chose some tokens and the form others"

    # The update's first pass finds the policy where sampling left it, and within what the mask allows of the narrowed one.
    chosen = algorithm("grpo", learning_rate=1e-9, kl=0.0)
    learner = PolicyUpdate(opinionated.module, chosen.update)
    credited = [
        replace(turn, advantages=tuple(float(kept) for kept in turn.response_mask), loss_weight=1.0) for turn in turns
    ]
    figures = learner.update(make_rows(credited))
    assert figures.tokens == sum(masks)
    assert figures.logprob_drift == pytest.approx(0.0, abs=1e-4)
    assert figures.clip_fraction == 0.0
    assert max(-math.log(share) for share, kept in zip(shares, masks, strict=True) if kept) <= -math.log(OWN)


def test_a_reply_without_a_demand_is_trained_on_whole(opinionated: LanguageModel, store: SQLiteStore) -> None:
    turns = recorded(opinionated, store, 2, tools=[TOOL])
    assert all(all(turn.response_mask) for turn in turns)
    assert "tokens-demanded" not in reply_warnings(turns, lambda _: ())


def test_a_model_that_does_not_know_the_form_is_told_to_learn_it(store: SQLiteStore) -> None:
    turns = recorded(tiny(), store, 2, tools=[TOOL], tool_choice="required")
    assert sum(row.trained for row in imitation_rows(turns)) == sum(len(turn.response_ids) for turn in turns)
    assert "teach the form first" in reply_warnings(turns, lambda _: ())["tokens-demanded"]
