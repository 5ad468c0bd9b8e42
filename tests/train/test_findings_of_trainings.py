"""What the doctor finds in real trainings that are broken on purpose: agents, HTTP, engine, updates."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from episodes import Asker, Bench, payloads

torch = pytest.importorskip("torch", reason='needs the extra "train"')
pytest.importorskip("pyarrow", reason='needs the extra "train"')
pytest.importorskip("transformers", reason='needs the extra "train"')
pytest.importorskip("langchain", reason="a worker governs at least one framework")

from lgov_core.errors import TrainError  # noqa: E402
from lgov_core.gateway.engine.embedded import EmbeddedEngine  # noqa: E402
from lgov_core.gateway.server import EndpointServer  # noqa: E402
from lgov_core.models import build_tiny  # noqa: E402
from lgov_core.train.algorithms.algorithms import UpdateConfig  # noqa: E402
from lgov_core.train.algorithms.update import PolicyUpdate  # noqa: E402
from lgov_core.train.diagnosis import examine  # noqa: E402
from lgov_core.train.loop.loop import TrainingLoop  # noqa: E402
from lgov_core.train.loop.policy_model import full_policy  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    torch.set_num_threads(1)
    made = Bench(tmp_path)
    yield made
    made.store.close()


def trained(
    bench: Bench, tasks: Sequence[dict[str, Any]], *, updates: int = 2, rate: float = 1e-4, max_kl: float = 1.0
) -> set[str]:
    """The names of what is found in a training on the given tasks. An untrained model's replies reach any limit."""
    model = build_tiny(["hello"], seed=0, hidden=32, layers=2, heads=2, intermediate=64)
    policy = full_policy(model.module)
    engine = EmbeddedEngine(model, max_new_tokens=6, threads=1)
    learner = PolicyUpdate(policy.module, UpdateConfig(learning_rate=rate, max_kl=max_kl), reference=policy.reference)
    with EndpointServer([engine], bench.store) as endpoint, bench.collecting(Asker(), endpoint.url) as pool:
        loop = TrainingLoop(
            run_id="run",
            policy=policy,
            learner=learner,
            engine=engine,
            store=bench.store,
            pool=pool,
            folder=bench.folder,
        )
        for _ in range(updates):
            loop.iterate(payloads(tasks), 2)
    return {finding.name for finding in examine(bench.folder).findings} - {"replies-truncated"}


def test_a_training_whose_rewards_differ_has_none(bench: Bench) -> None:
    assert trained(bench, [{"say": "hello"}] * 4) == set()
    (found,) = examine(bench.folder).findings
    assert found.name == "replies-truncated"
    ids = {rollout.rollout_id for rollout in bench.store.rollouts()}
    assert set(found.rollouts) <= ids
    assert len(found.rollouts) > 0


def test_a_training_on_a_constant_reward(bench: Bench) -> None:
    assert trained(bench, [{"say": "hello", "paid": 1.0}] * 4) == {"reward-constant"}


def test_a_training_on_groups_that_only_air_tells_apart(bench: Bench) -> None:
    tasks = [{"say": "hello", "paid": float(number % 2), "air": 0.05} for number in range(8)]
    assert trained(bench, tasks) == {"groups-alike"}


def test_a_training_at_a_rate_that_is_far_too_high(bench: Bench) -> None:
    with pytest.raises(TrainError, match="more than max_kl 1"):  # an update whose groups are alike changes nothing
        trained(bench, [{"say": "hello"}] * 4, updates=20, rate=0.3)
    assert "kl-running-off" in {finding.name for finding in examine(bench.folder).findings}


def test_an_update_that_moves_the_policy_too_far_is_said_in_its_line(bench: Bench) -> None:
    found = trained(bench, [{"say": "hello"}] * 4, updates=3, rate=0.1, max_kl=1e6)
    lines = [json.loads(line) for line in (bench.folder / "metrics.jsonl").read_text().splitlines()]
    said = [line.get("warnings", {}).get("updates-too-large", "") for line in lines]
    assert ["halved from now on" in warning for warning in said] == [line["moved"] > 0.5 for line in lines]
    assert any(said)
    assert "updates-too-large" in found
