"""Dynamic sampling with everything real: workers, endpoint, store, loop, and a very small model."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from episodes import Asker, Bench, named

torch = pytest.importorskip("torch", reason='needs the extra "train"')
pytest.importorskip("pyarrow", reason='needs the extra "train"')
pytest.importorskip("transformers", reason='needs the extra "train"')
pytest.importorskip("langchain", reason="a worker governs at least one framework")

from lgov_core.errors import TrainError  # noqa: E402
from lgov_core.gateway.engine.embedded import EmbeddedEngine  # noqa: E402
from lgov_core.gateway.server import EndpointServer  # noqa: E402
from lgov_core.models import LanguageModel, build_tiny  # noqa: E402
from lgov_core.server.coordinator import QueueCollector  # noqa: E402
from lgov_core.train.algorithms.algorithms import algorithm  # noqa: E402
from lgov_core.train.algorithms.update import PolicyUpdate  # noqa: E402
from lgov_core.train.loop.collecting import OpenStep  # noqa: E402
from lgov_core.train.loop.loop import Iteration, TrainingLoop  # noqa: E402
from lgov_core.train.loop.policy_model import full_policy  # noqa: E402
from lgov_core.train.loop.run_files import read_batch, read_metrics  # noqa: E402
from lgov_core.transitions import CreditRules  # noqa: E402
from lgov_core.types import Outcome  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")

#: Of a group of four two are paid.
HELLO, COUNT = named("hello", say="hello"), named("count", say="one two three")
#: All are paid the same.
LOST, WON = named("lost", say="hello", paid=0.0), named("won", say="hello", paid=1.0)
SOLVED = [named(f"solved {number}", say="hello", paid=1.0) for number in range(6)]
DAPO = algorithm("dapo", learning_rate=1e-3)
GROUP = 4


class Place:
    """Workers, an endpoint and a store that all tests share; each test has loops of its own, in a folder of its own."""

    def __init__(self, bench: Bench, model: LanguageModel, engine: EmbeddedEngine, pool: QueueCollector) -> None:
        self.bench, self.model, self.engine, self.pool = bench, model, engine, pool

    def loop(self, folder: Path, *, credit: CreditRules = DAPO.credit, **options: Any) -> TrainingLoop:
        policy = full_policy(self.model.module)
        return TrainingLoop(
            run_id=folder.name,
            policy=policy,
            learner=PolicyUpdate(policy.module, DAPO.update, reference=policy.reference),
            engine=self.engine,
            store=self.bench.store,
            pool=self.pool,
            folder=folder,
            credit=credit,
            **{"max_extra_groups": 4, **options},
        )

    def stored(self, run: Path) -> list[str]:
        return [one.rollout_id for one in self.bench.store.rollouts() if one.run_id == run.name]


@contextmanager
def opened(folder: Path) -> Generator[Place]:
    bench = Bench(folder)
    model = build_tiny(["hello", "one two three"], seed=0, hidden=32, layers=1, heads=2, intermediate=64)
    engine = EmbeddedEngine(model, max_new_tokens=4, threads=1)
    with EndpointServer([engine], bench.store) as endpoint, bench.collecting(Asker(), endpoint.url) as pool:
        yield Place(bench, model, engine, pool)
    bench.store.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    torch.set_num_threads(1)
    with opened(tmp_path_factory.mktemp("place")) as made:
        yield made


def line_of(folder: Path) -> dict[str, Any]:
    return read_metrics(folder / "metrics.jsonl")[-1]


def groups_of(folder: Path, step: int = 1) -> dict[str, int]:
    """How many rollouts of each task an update was made of."""
    batch = read_batch(folder / "transitions", step)
    assert batch is not None
    return dict(Counter(task for _, task in {(one.rollout_id, one.task_id) for one in batch[1]}))


def collected(turn: Iteration) -> list[str]:
    return [result.task_id for result in turn.results][::GROUP]


def test_groups_that_are_alike_are_replaced_and_what_was_asked_for_is_what_is_shown(
    place: Place, tmp_path: Path
) -> None:
    loop = place.loop(tmp_path)
    turn = loop.iterate([HELLO, LOST], GROUP, further=[WON, COUNT, *SOLVED])
    assert collected(turn) == ["hello", "lost", "won", "count"]
    assert groups_of(tmp_path) == {"hello": 4, "count": 4}
    assert turn.update.rows > 0
    assert len(place.stored(tmp_path)) == 16, "what was replaced stays on record"
    line = line_of(tmp_path)
    assert {name: line[name] for name in turn.groups} == turn.groups
    assert turn.groups == {"groups": 4, "groups_informative": 2, "groups_alike": 2, "groups_replaced": 1}
    # The tasks that were asked for: half of hello is paid, nothing of the other. Which others come in depends on these.
    assert turn.mean_return == line["mean_return"] == 0.25
    assert (line["rollouts"], line["rewards"]["task"]["mean"]) == (8, 0.25)
    assert (line["further"]["rollouts"], line["further"]["mean_return"]) == (8, 0.75)
    assert line["diagnostics"]["equal_group"] == line["further"]["diagnostics"]["equal_group"] == 1
    assert list((tmp_path / "open").iterdir()) == []


def test_no_more_is_collected_than_was_allowed_and_the_update_is_then_made_of_what_there_is(
    place: Place, tmp_path: Path
) -> None:
    loop = place.loop(tmp_path, max_extra_groups=3)
    turn = loop.iterate([LOST, HELLO, WON], GROUP, further=[*SOLVED[:1], COUNT, *SOLVED[1:]])
    assert collected(turn) == ["lost", "hello", "won", "solved 0", "count", "solved 1"]
    # One of the two that are alike was replaced; the other stays, and as in any batch nothing is learnt from it.
    assert groups_of(tmp_path) == {"hello": 4, "won": 4, "count": 4}
    assert turn.groups["groups_replaced"] == 1
    assert turn.groups["note"] == "2 of 3 groups are informative, of 6 that were collected"
    before = loop.policy.weights()
    turn = loop.iterate([LOST, WON], GROUP, further=SOLVED)
    assert (len(turn.results), turn.update.rows, turn.step) == ((2 + 3) * GROUP, 0, 2)
    after = loop.policy.weights()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert line_of(tmp_path)["note"].startswith("nothing to learn from: of 5 groups 5 are alike")
    assert groups_of(tmp_path, 2) == {"lost": 4, "won": 4}


def test_nothing_further_is_collected_where_it_is_off_and_where_nothing_is_alike(place: Place, tmp_path: Path) -> None:
    off = place.loop(tmp_path / "off", max_extra_groups=0)
    turn = off.iterate([HELLO, LOST], GROUP, further=[COUNT])
    assert (collected(turn), turn.groups["groups_alike"]) == (["hello", "lost"], 1)
    assert "further" not in line_of(tmp_path / "off")
    assert "note" not in turn.groups
    # The task pays all of them the same: what their tools earned on the way does not make the group worth keeping.
    tools = named("tools", say="hello", paid=1.0, air=0.05)
    turn = place.loop(tmp_path / "air").iterate([HELLO, tools], GROUP, further=[COUNT])
    assert (collected(turn), turn.groups["groups_alike"]) == (["hello", "tools", "count"], 1)
    assert groups_of(tmp_path / "air") == {"hello": 4, "count": 4}


def test_what_only_air_tells_apart_is_not_learned_from(place: Place, tmp_path: Path) -> None:
    tools = [named(f"tools {number}", say="hello", paid=1.0, air=0.05) for number in range(2)]
    turn = place.loop(tmp_path, max_extra_groups=0).iterate(tools, GROUP)
    # They have nothing but AIR besides a task reward that is alike.
    assert (turn.groups["groups_informative"], turn.groups["groups_alike"]) == (0, 2)
    assert turn.update.rows == 0
    assert line_of(tmp_path)["note"].startswith("nothing to learn from: of 2 groups 2 are alike")


def test_a_reward_that_cannot_be_compared_ends_no_training(place: Place, tmp_path: Path) -> None:
    turn = place.loop(tmp_path).iterate([named("huge", say="hello", paid=1.0, air=1e200), HELLO], GROUP)
    assert line_of(tmp_path)["lost_attempts"] > 0
    assert turn.update.rows > 0
    assert abs(turn.mean_return or 3) < 2


def test_a_task_is_taken_once_in_a_step(place: Place, tmp_path: Path) -> None:
    turn = place.loop(tmp_path).iterate([HELLO, LOST], GROUP, further=[LOST, HELLO, WON, WON, LOST])
    assert collected(turn) == ["hello", "lost", "won"]


def test_what_the_machines_broke_is_replaced_but_not_for_ever(place: Place, tmp_path: Path) -> None:
    broken = [named(f"broken {number}", do="lose_connection") for number in range(4)]
    turn = place.loop(tmp_path).iterate([HELLO, broken[0]], GROUP, further=[*broken[1:], COUNT])
    # The first round has a group that can be compared; the second has none, so machines fail, and no third is begun.
    assert collected(turn) == ["hello", "broken 0", "broken 1"]
    assert line_of(tmp_path)["lost_rollouts"] == line_of(tmp_path)["further"]["lost_rollouts"] == 4
    assert (turn.groups["groups_informative"], turn.groups["groups_alike"]) == (1, 0)
    assert groups_of(tmp_path) == {"hello": 4}
    turn = place.loop(tmp_path / "all").iterate(broken[:1], GROUP, further=[COUNT])
    assert collected(turn) == ["broken 0"]
    assert "; 4 of 4 rollouts ended with an error, the first: " in line_of(tmp_path / "all")["note"]


def test_further_groups_are_collected_when_the_step_has_its_turn_by_the_weights_of_then(
    place: Place, tmp_path: Path
) -> None:
    loop = place.loop(tmp_path, max_staleness=1)
    first = loop.iterate([HELLO, LOST], GROUP, upcoming=[[COUNT, WON]], further=[SOLVED[0], COUNT])
    versions = place.engine.weights_version
    second = loop.iterate([COUNT, WON], GROUP, further=[SOLVED[1], HELLO])
    assert (collected(first)[2:], collected(second)) == (["solved 0", "count"], ["count", "won", "solved 1", "hello"])
    made = {one: {call.weights_version for call in place.bench.store.calls([one])} for one in place.stored(tmp_path)}
    further = [result.rollout_id for result in second.results[2 * GROUP :]]
    assert {version for one in further for version in made[one]} == {versions}
    assert second.staleness_max <= 1
    assert groups_of(tmp_path, 2) == {"count": 4, "hello": 4}
    assert len(made) == 2 * 4 * GROUP, "none is lost, none is collected for nothing"


MOMENTS = ("asked 3", "asked 8", "extend", "further 1", "further 4", "second extend", "second 2", "learn")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_was_killed_loses_no_group_and_collects_none_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    tasks, further = [HELLO, LOST], [WON, COUNT, *SOLVED]
    loop = place.loop(tmp_path)
    counted: Counter[str] = Counter()
    rounds = {1: "asked", 2: "further", 3: "second"}

    def interrupt(stage: str, done: int, total: int) -> None:
        """Ends it when as many rollouts of a round have ended as the moment says, or more: several may end at once."""
        if stage == "rollouts":
            counted["rounds"] += done == 0
            name, _, count = moment.partition(" ")
            if rounds[counted["rounds"]] == name and count.isdigit() and done >= int(count):
                raise KeyboardInterrupt

    def torn(step: OpenStep, rollouts: Any) -> None:
        """Half a line is written."""
        counted["extended"] += 1
        if moment == ("extend", "second extend")[counted["extended"] - 1]:
            with step.path.open("ab") as file:
                file.write(b'{"run_id": "somebody", "rollouts": [["ro')
            raise KeyboardInterrupt
        extend(step, rollouts)

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    extend = OpenStep.extend
    with monkeypatch.context() as patch:
        patch.setattr(OpenStep, "extend", torn)
        if moment == "learn":
            patch.setattr(loop.run, "learn", die)
        with pytest.raises(KeyboardInterrupt):
            loop.iterate(tasks, GROUP, interrupt, further=further)
    place.bench.store.fail_open_attempts("the run was killed")
    trainable = {Outcome.SUCCEEDED, Outcome.FAILED}
    known = set(place.stored(tmp_path))
    ended = {one.rollout_id for one in place.bench.store.attempts(sorted(known)) if one.outcome in trainable}
    again = place.loop(tmp_path)
    again.resume()
    assert again.open_rollouts() >= known
    turn = again.iterate(tasks, GROUP, further=further)
    assert collected(turn) == ["hello", "lost", "won", "count"]
    assert turn.groups == {"groups": 4, "groups_informative": 2, "groups_alike": 2, "groups_replaced": 1}
    assert groups_of(tmp_path) == {"hello": 4, "count": 4}
    used = [result.rollout_id for result in turn.results]
    assert len(used) == len(set(used)) == 16
    assert set(used) == set(place.stored(tmp_path)), "nothing was begun anew"
    assert ended <= set(used)
    counts = Counter(one.rollout_id for one in place.bench.store.attempts(used) if one.outcome in trainable)
    assert {counts[one] for one in ended} <= {1}, "what had ended was not run again"
    assert turn.recovered >= {"asked 3": 1, "asked 8": 8, "extend": 8, "learn": 16}.get(moment, 8)


def test_a_bound_without_meaning_is_refused(place: Place, tmp_path: Path) -> None:
    for credit in (algorithm("ppo").credit, algorithm("reinforce++").credit):
        with pytest.raises(TrainError, match="compares no groups"):
            place.loop(tmp_path, credit=credit)
        turn = place.loop(tmp_path, credit=credit, max_extra_groups=0)
        assert turn.max_extra_groups == 0
    with pytest.raises(TrainError, match="at least 0"):
        place.loop(tmp_path, max_extra_groups=-1)
