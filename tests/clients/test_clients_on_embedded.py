"""Clients as their users start them, on the embedded engine: what is recorded is what it sampled, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lgov_core.models import LanguageModel, load_model
from tests.clients.embedded_models import random_model, task_model
from tests.clients.programs_of_users import ASK, CLIENTS, Client
from tests.clients.served import Served, started

EACH = [pytest.param(client, id=name) for name, client in CLIENTS.items()]
#: Replies of the model with random weights are cut off here.
MOST = 60


def word(client: Client) -> str:
    """The word of a task by which the model knows the client."""
    return "zz" + client.slug.replace("-", "")


def serving(model: LanguageModel, place: Path) -> Iterator[Served]:
    model.save(place / "model")
    with started(place, "--model", "model", "--set", f"model.max_new_tokens={MOST}") as served:
        yield served


@pytest.fixture(scope="module")
def at_work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    calls = {word(client): client.shell for client in CLIENTS.values()}
    yield from serving(task_model(calls), tmp_path_factory.mktemp("at_work"))


@pytest.fixture(scope="module")
def at_random(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serving(random_model(), tmp_path_factory.mktemp("at_random"))


@cache
def loaded(folder: Path) -> LanguageModel:
    return load_model(folder)


def assert_exact(served: Served, calls: list[Any]) -> None:
    """Each recorded call is a prompt that the model was given and what it drew: its own log-probabilities say so."""
    model = loaded(served.place / "model")
    for call in calls:
        count = len(call.response_ids)
        assert MOST >= count == len(call.logprobs) > 0
        assert call.finish_reason == "length" if count == MOST else call.response_ids[-1] == model.end_id
        with torch.no_grad():
            ids = torch.tensor([[*call.prompt_ids, *call.response_ids]])
            logits = model.module(ids, logits_to_keep=count + 1, use_cache=False).logits[0, :-1]
        drawn = torch.log_softmax(logits.float() / call.temperature, -1).gather(-1, ids[0, -count:, None])[:, 0]
        assert torch.allclose(torch.tensor(call.logprobs), drawn, atol=1e-3)


def assert_trainable(served: Served, rollout: str, calls: list[Any]) -> None:
    """The sequences that a training reads hold every call, and mark what the model wrote and nothing else."""
    chains = served.chains(rollout)
    assert sum(len(chain.links) for chain in chains) == len(calls)
    for chain in chains:
        assert chain.logprobs is not None
        assert len(chain.ids) == len(chain.mask) == len(chain.logprobs)
        written = [place for link in chain.links for place in range(link.start, link.stop)]
        assert [place for place, own in enumerate(chain.mask) if own] == written
    recorded = {(*call.prompt_ids, *call.response_ids) for call in calls}
    assert {chain.ids for chain in chains} <= recorded


@pytest.mark.client("attributed", "token-exact")
@pytest.mark.parametrize("client", EACH)
def test_it_does_a_small_task_on_the_embedded_engine(at_work: Served, tmp_path: Path, client: Client) -> None:
    rollout = f"task-{client.slug}"
    done = client.run(tmp_path, at_work.base_url(rollout), ask=f"{ASK} {word(client)}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "All done." in done.stdout
    assert (tmp_path / "made.txt").read_text() == "hello\n"
    calls = at_work.calls(rollout)
    assert all(call.attempt == 1 and call.engine == "embedded" for call in calls)
    assert_exact(at_work, calls)
    assert_trainable(at_work, rollout, calls)
    judged = at_work.judged(rollout)
    assert ("pre_tool_call", client.shell[0], "allow") in judged
    assert [point for point, _, _ in judged].count("pre_model_call") == len(calls)
    # The turn after the tool's result goes on from the tokens of the one before, where it offers the same tools.
    proposing = next(call for call in calls if call.tool_call_ids)
    whole = (*proposing.prompt_ids, *proposing.response_ids)
    later = [call for call in calls[calls.index(proposing) + 1 :] if call.request.get("tools")]
    assert all(call.prompt_ids[: len(whole)] == whole for call in later)
    assert later or client.name == "AutoGen"  # which offers none when it reflects on a result


@pytest.mark.parametrize("client", EACH)
def test_a_turn_without_sense_is_recorded_as_it_was_drawn(at_random: Served, tmp_path: Path, client: Client) -> None:
    rollout = f"random-{client.slug}"
    done = client.run(tmp_path, at_random.base_url(rollout))
    calls = at_random.calls(rollout)
    assert calls, done.stderr[-3000:]
    assert_exact(at_random, calls)
    assert_trainable(at_random, rollout, calls)
    assert {"pre_model_call"} <= {point for point, _, _ in at_random.judged(rollout)}
    # A reply that was cut off is no turn to these; the others show what came.
    gives_up = client.name in ("Codex", "Agents SDK") and calls[-1].finish_reason == "length"
    assert done.returncode == int(gives_up), done.stderr[-3000:]
    assert ("max_output_tokens" in done.stderr) == gives_up
