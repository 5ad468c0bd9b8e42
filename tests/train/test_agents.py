"""Two agents on one model over real HTTP: one learns while the other is frozen, or both by turns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')
pytest.importorskip("peft", reason='needs the extra "train"')
openai = pytest.importorskip("openai")


from lgov_core.errors import TrainError  # noqa: E402
from lgov_core.gateway.access import KeyRing  # noqa: E402
from lgov_core.gateway.engine.embedded import EmbeddedEngine  # noqa: E402
from lgov_core.gateway.server import EndpointServer  # noqa: E402
from lgov_core.models import build_tiny  # noqa: E402
from lgov_core.store.sqlite import SQLiteStore  # noqa: E402
from lgov_core.train.algorithms.algorithms import UpdateConfig  # noqa: E402
from lgov_core.train.algorithms.update import PolicyUpdate  # noqa: E402
from lgov_core.train.loop.loop import RolloutTask, TrainingLoop  # noqa: E402
from lgov_core.train.loop.policy_model import adapter_policy  # noqa: E402
from lgov_core.train.loop.several_policies import AlternatingSchedule  # noqa: E402
from lgov_core.transitions import Selection, build_transitions  # noqa: E402
from lgov_core.types import Attempt, Outcome, Reward, Rollout  # noqa: E402

TASKS = [RolloutTask("hello", {"say": "hello"}), RolloutTask("count", {"say": "one two three"})]
AGENTS = ("writer", "checker")


class Pool:
    """A `Collector` whose agents are here: a writer answers, a checker reads it; the writer is paid for short words."""

    def __init__(self, store: SQLiteStore, base_url: str) -> None:
        self.store = store
        self.client = openai.OpenAI(base_url=base_url, api_key="any", max_retries=0)

    def gone(self, rollout_ids: Sequence[str]) -> set[str]:
        return set()

    def say(self, agent: str, rollout: Rollout, messages: list[Any]) -> str:
        headers = {"x-lgov-rollout-id": rollout.rollout_id, "x-lgov-attempt": "1", "x-lgov-agent": agent}
        reply = self.client.chat.completions.create(
            model=agent, messages=messages, extra_headers=headers, temperature=1.0
        )
        return reply.choices[0].message.content or ""

    def collect_rollouts(
        self,
        rollouts: Sequence[Rollout],
        progress: Callable[[int, int], None] | None = None,
        keep: Callable[[Attempt], None] | None = None,
    ) -> list[Attempt]:
        self.store.add_rollouts(rollouts)
        results: list[Attempt] = []
        for rollout in rollouts:
            self.store.start_attempt(rollout.rollout_id, 1)
            messages = [{"role": "user", "content": rollout.input["say"]}]
            draft = self.say("writer", rollout, messages)
            verdict = self.say("checker", rollout, [*messages, {"role": "user", "content": f"check {draft}"}])
            paid = sum(letter in "aeiou" for letter in draft) + 0.1 * len(verdict)
            self.store.add_rewards([Reward(paid, "task", rollout.rollout_id, 1)])
            self.store.finish_attempt(rollout.rollout_id, 1, Outcome.SUCCEEDED)
            results.append(Attempt(rollout.rollout_id, 1, 0.0, 1.0, Outcome.SUCCEEDED, task_id=rollout.task_id))
            if keep is not None:
                keep(results[-1])
        return results


@contextmanager
def running(folder: Path) -> Generator[tuple[EmbeddedEngine, SQLiteStore, dict[str, TrainingLoop]]]:
    torch.set_num_threads(1)
    # Nearly uniform at first: rewards differ, and no advantage is exactly 0.
    size = {"hidden": 32, "layers": 2, "heads": 2, "intermediate": 64}
    model = build_tiny(["hello check", "one two three"], seed=0, **size, deviation=0.02)
    engine = EmbeddedEngine(model, max_new_tokens=6, threads=1, policies=AGENTS)
    store = SQLiteStore(folder / "store.sqlite")
    with EndpointServer([engine], store, keys=KeyRing(required=False)) as endpoint:
        loops: dict[str, TrainingLoop] = {}
        for seed, name in enumerate(AGENTS):
            policy = adapter_policy(model.module, rank=4, seed=seed)
            learner = PolicyUpdate(
                policy.module, UpdateConfig(learning_rate=5e-3), reference_mode=policy.reference_mode
            )
            loops[name] = TrainingLoop(
                run_id="run",
                policy=policy,
                learner=learner,
                engine=engine.policy(name),
                store=store,
                pool=Pool(store, endpoint.base_url),
                folder=folder / name,
                selection=Selection(agents=(name,)),
                checkpoint_every=1,
            )
        yield engine, store, loops
    store.close()


def same(first: Any, second: Any) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_one_agent_learns_and_the_other_is_frozen(tmp_path: Path) -> None:
    with running(tmp_path) as (engine, _, loops):
        base = {name: value.clone() for name, value in engine._model.module.state_dict().items()}
        before = {name: loop.policy.weights() for name, loop in loops.items()}
        writer = loops["writer"]
        turns = [writer.iterate(TASKS, 4) for _ in range(2)]
        assert not same(before["writer"], writer.policy.weights())
        assert same(before["checker"], loops["checker"].policy.weights())
        assert same(base, engine._model.module.state_dict())
        assert (engine.policy("writer").weights_version, engine.policy("checker").weights_version) == (2, 0)
    for number, turn in enumerate(turns):
        # Only the writer's calls, with the weights that were served: the trainer's own log-probabilities are the recorded.
        assert turn.update.rows == 8
        assert turn.update.logprob_drift < 1e-5
        assert turn.staleness_max == 0
        assert not set(turn.diagnostics) - {"truncated_reply"}
        ids = [result.rollout_id for result in turn.results]
        versions = {(call.model, call.agent): call.weights_version for call in store_calls(tmp_path, ids)}
        assert versions == {("writer", "writer"): number, ("checker", "checker"): 0}


def store_calls(folder: Path, ids: Sequence[str]) -> list[Any]:
    store = SQLiteStore(folder / "store.sqlite")
    try:
        return list(store.calls(ids))
    finally:
        store.close()


def test_agents_are_trained_by_turns_and_a_killed_run_goes_on_with_the_next_turn(tmp_path: Path) -> None:
    with running(tmp_path) as (engine, _, loops):
        turns = AlternatingSchedule(loops, ("writer", "writer", "checker"))
        said: list[str] = []
        for _ in range(4):
            frozen = {name: loop.policy.weights() for name, loop in loops.items() if name != turns.turn}
            name, iteration = turns.iterate(TASKS, 4)
            said.append(name)
            assert iteration.update.logprob_drift < 1e-5
            assert all(same(weights, loops[other].policy.weights()) for other, weights in frozen.items())
        assert said == ["writer", "writer", "checker", "writer"]
        assert {name: engine.policy(name).weights_version for name in AGENTS} == {"writer": 3, "checker": 1}
        assert (turns.done, turns.turn) == (4, "writer")
        weights = {name: loop.policy.weights() for name, loop in loops.items()}
    with running(tmp_path) as (engine, _, loops):
        turns = AlternatingSchedule(loops, ("writer", "writer", "checker"))
        assert {name: resumed.step for name, resumed in turns.resume().items()} == {"writer": 3, "checker": 1}
        assert all(same(weights[name], loop.policy.weights()) for name, loop in loops.items())
        # Both serve what they had learnt.
        for expected in ("writer", "checker"):
            name, iteration = turns.iterate(TASKS, 4)
            assert name == expected
            assert iteration.update.rows == 8
            assert iteration.update.logprob_drift < 1e-5
        assert engine.policy("writer").weights_version > 3


def test_versions_of_two_models_in_one_rollout_are_not_mixed_weights(tmp_path: Path) -> None:
    with running(tmp_path) as (_, store, loops):
        loops["writer"].iterate(TASKS, 4)
        results = loops["checker"].collect(TASKS, 1)
        ids = [result.rollout_id for result in results]
        assert {(call.model, call.weights_version) for call in store.calls(ids)} == {("writer", 1), ("checker", 0)}
        assert "mixed_weights" not in build_transitions(store, ids).counts()


def test_a_loop_that_cannot_be_by_turns(tmp_path: Path) -> None:
    with running(tmp_path) as (_, _, loops):
        for order in ((), ("writer",), ("writer", "checker", "reviewer")):
            with pytest.raises(TrainError, match="the order names"):
                AlternatingSchedule(loops, order)
        with pytest.raises(TrainError, match="one folder"):
            AlternatingSchedule({"writer": loops["writer"], "checker": loops["writer"]})
        loops["writer"].selection = Selection()
        with pytest.raises(TrainError, match="the calls of all agents"):
            AlternatingSchedule(loops)
