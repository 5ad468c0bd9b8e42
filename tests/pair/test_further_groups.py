"""Dynamic sampling at a server: which tasks come in, what a client is told, and what a stop in the middle leaves."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Client
from lgov_core.errors import SettingsError
from lgov_core.server.local import serving
from lgov_core.server.recipe import extra_groups_for
from lgov_core.server.run_state import NextUpdate, batch_of, further_of
from lgov_core.server.training import TrainingServer
from lgov_core.store import open_store
from lgov_core.train.algorithms.algorithms import algorithm
from lgov_core.train.loop.run_files import read_batch
from tests.pair.conftest import settings
from tests.pair.pair_agents import ask

#: Two tasks that half of the rollouts solve, four that all of them do.
TASKS = [{"question": f"hard {number}"} for number in range(2)] + [{"question": f"easy {n}"} for n in range(4)]
GROUP = 4

Serve = Callable[..., TrainingServer]


class Solver:
    """Says something, and solves a hard task every second time that it gets it. ``at`` is called with each count."""

    def __init__(self, at: Callable[[int], None] = lambda count: None) -> None:
        self.lock, self.counts, self.at = threading.Lock(), Counter[str](), at

    def __call__(self, resource: Any, task: Any) -> float:
        with self.lock:
            self.counts[task.question] += 1
            second, count = self.counts[task.question] % 2, sum(self.counts.values())
        self.at(count)
        ask(resource, task.question)
        return 1.0 if task.question.startswith("easy") else float(second)


def expected(step: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """The tasks that an update asks for, and the further ones until both that are hard were met."""
    asked = batch_of(NextUpdate(TASKS, 2, step, f"{seed}/0"))
    hard = sum(one.payload["task"]["question"].startswith("hard") for one in asked)
    further: list[str] = []
    others = further_of(TASKS, asked, step, f"{seed}/0", 4)
    while hard < 2:
        round_of = [others.pop(0) for _ in range(2 - hard)]
        hard += sum(one.payload["task"]["question"].startswith("hard") for one in round_of)
        further += [one.task_id for one in round_of]
    return [one.task_id for one in asked], further


def batch(folder: Path, step: int) -> Counter[str]:
    found = read_batch(folder / "transitions", step)
    assert found is not None
    return Counter(task for _, task in {(one.rollout_id, one.task_id) for one in found[1]})


def test_tasks_of_further_groups_are_others_and_each_keeps_its_turn() -> None:
    tasks = [{"number": number} for number in range(10)]
    for step in range(7):
        asked = batch_of(NextUpdate(tasks, 3, step, "5/0"))
        own = [task.task_id for task in asked]
        found = [task.task_id for task in further_of(tasks, asked, step, "5/0", 4)]
        assert len({*own, *found}) == len(own) + 4
        assert found == [task.task_id for task in further_of(tasks, asked, step, "5/0", 4)]
        assert len(further_of(tasks, asked, step, "5/0", 100)) == 10 - len(own)
    epoch = [task.task_id for step in range(4) for task in batch_of(NextUpdate(tasks, 3, step, "5/0"))]
    assert sorted(epoch) == [f"train-{number:06d}" for number in range(10)]
    drawn = Counter(
        task.task_id
        for step in range(400)
        for task in further_of(tasks, batch_of(NextUpdate(tasks, 3, step, "5/0")), step, "5/0", 4)
    )
    assert min(drawn.values()) > 0.8 * max(drawn.values()), "no task is drawn more often than others"


def test_dapo_collects_others_in_place_of_groups_that_are_alike(serve: Serve, tmp_path: Path) -> None:
    server = serve(algorithm="dapo", group_size=GROUP, steps=3)
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)
    result = client.train(Solver(), nworkers=2)
    store = open_store(tmp_path / "run" / "store.sqlite", make=False)
    begun = [rollout.task_id for rollout in store.rollouts()]
    store.close()
    wanted: list[str] = []
    for step, line in enumerate(result.metrics):
        asked, further = expected(step)
        wanted += [task for task in (*asked, *further) for _ in range(GROUP)]
        assert batch(tmp_path / "run", step + 1) == {"train-000000": GROUP, "train-000001": GROUP}
        easy = sum(one >= "train-000002" for one in asked)
        assert (line["groups"], line["groups_replaced"]) == (2 + len(further), easy)
        # The reward shown is that of the tasks that were asked for: 1 for what is easy, 1/2 for what is hard.
        assert line["reward"] == pytest.approx((easy + (2 - easy) / 2) / 2)
        assert (line["usable"], line["rollouts"]) == (2 * GROUP, 2 * GROUP)
        assert ("further" in line) == bool(further)
        if further:
            assert line["further"]["usable"] == len(further) * GROUP
    assert sorted(begun) == sorted(wanted)
    assert result.updates == 3
    assert len(result.curves["groups_alike"]) == 3
    assert any(line["groups_replaced"] for line in result.metrics)


def test_a_server_that_is_stopped_while_it_collects_further_groups_goes_on_with_them(
    model_folder: Path, tmp_path: Path
) -> None:
    seed = next(number for number in range(9) if len(expected(0, number)[1]) > 1)
    _, further = expected(0, seed)
    stop = threading.Event()
    chosen = settings(model_folder, algorithm="dapo", group_size=GROUP, steps=1, seed=seed)
    many = 2 * GROUP + 2
    with TrainingServer(chosen, folder=tmp_path / "run") as server:
        thread = threading.Thread(target=server.serve, args=(stop,))
        thread.start()
        client = Client(server.url, quiet=True)
        client.upload_data(TASKS)

        def at(count: int) -> None:
            if count == many:
                stop.set()

        with pytest.raises(Exception, match="stopped at the server"):
            client.train(Solver(at), nworkers=1)
        thread.join()
        ended = {one.rollout_id for one in server.store.attempts() if one.outcome is not None and one.outcome.trainable}
    assert len(ended) >= 2 * GROUP + 1, "it was stopped in the middle of a further group"
    with serving(chosen, tmp_path / "run", resume=True) as server:
        result = Client(server.url, quiet=True).train(Solver(), nworkers=1)
        attempts = [one for one in server.store.attempts() if one.outcome is not None and one.outcome.trainable]
    (line,) = result.metrics
    assert line["recovered"] >= len(ended)
    assert line["groups"] == 2 + len(further)
    assert line["rollouts"] + line["further"]["rollouts"] == len(attempts) == (2 + len(further)) * GROUP
    assert ended <= {one.rollout_id for one in attempts}
    assert len({one.rollout_id for one in attempts}) == len(attempts), "nothing was run a second time"
    assert batch(tmp_path / "run", 1) == {"train-000000": GROUP, "train-000001": GROUP}


def test_the_bound_is_the_algorithms_unless_it_is_given(model_folder: Path) -> None:
    def bound(**values: Any) -> int:
        chosen = settings(model_folder, batch_size=8, **values)
        return extra_groups_for(chosen, algorithm(chosen.training.algorithm))

    assert (bound(algorithm="dapo"), bound(algorithm="grpo"), bound(algorithm="ppo")) == (16, 0, 0)
    assert (bound(algorithm="DAPO", max_extra_groups=0), bound(algorithm="grpo", max_extra_groups=5)) == (0, 5)
    for name in ("ppo", "reinforce++"):
        with pytest.raises(SettingsError, match=f"{name.replace('+', '.')} compares no groups"):
            bound(algorithm=name, max_extra_groups=1)
    with pytest.raises(SettingsError, match="max_extra_groups must be a whole number at least 0, not -1"):
        bound(max_extra_groups=-1)
