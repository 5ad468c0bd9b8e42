"""Trainer, endpoint and workers are killed at random moments of one run: it finishes, and nothing acknowledged is lost.

Once each here; ten times each with LGOV_TEST_SLOW=1.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import socket
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

for _module in ("torch", "transformers", "langchain", "starlette", "pyarrow"):
    pytest.importorskip(_module, reason='needs the extras "langchain", "gateway" and "train"')

import killable  # noqa: E402

from lgov_core.audit import AuditLog, verify  # noqa: E402
from lgov_core.store import open_store  # noqa: E402
from lgov_core.train.loop.batch_record import read_batch  # noqa: E402
from lgov_core.train.loop.metrics_log import read_metrics  # noqa: E402
from tests.slow import SLOW  # noqa: E402

KILLS = 10 if SLOW else 1
DEADLINE_S = 540 * KILLS

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the workers"),
    pytest.mark.timeout(DEADLINE_S + 120),
]


class Parts:
    """The processes of a run; whichever is killed is started again, from one that has loaded torch already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["killable"])
        self.running: dict[str, Any] = {}
        self.starts: Counter[str] = Counter()

    def start(self, name: str) -> None:
        self.running[name] = self.context.Process(target=killable.run, args=(name, self.folder, self.port))
        self.running[name].start()
        self.starts[name] += 1

    def kill(self, name: str) -> bool:
        """Kills a part at once, and starts it again; whether there was one."""
        if name == "worker":
            pid = self.running["trainer"].pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if not children:
                return False
            os.kill(int(children[0]), signal.SIGKILL)  # the pool starts another
            return True
        self.running[name].kill()
        self.running[name].join()
        self.start(name)
        return True

    def check(self) -> None:
        for name, process in self.running.items():
            assert process.is_alive(), (self.folder / f"{name}.log").read_text()[-3000:]

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            process.join()


def lines_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return read_metrics(path) if path.exists() else []


def done(folder: Path) -> int:
    return max((line["step"] for line in lines_of(folder) if line["phase"] == "train"), default=0)


def calls_of(folder: Path) -> int:
    if not (folder / "store.sqlite").exists():
        return 0
    with closing(open_store(str(folder / "store.sqlite"))) as store:
        return sum(1 for _ in store.calls())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Parts]:
    """The folder of a run whose parts were killed, each so many times, and that was then let finish."""
    folder = tmp_path_factory.mktemp("killed")
    killable.prepare(folder)
    parts = Parts(folder)
    chance = random.Random(20)
    victims = ["trainer", "endpoint", "worker"] * KILLS
    chance.shuffle(victims)
    end = time.monotonic() + DEADLINE_S
    parts.start("endpoint")
    parts.start("trainer")

    def wait_until(true: Any) -> None:
        while not true():
            parts.check()
            assert time.monotonic() < end, (folder / "trainer.log").read_text()[-3000:]
            time.sleep(0.05)

    try:
        wait_until(lambda: calls_of(folder) >= 1)
        for victim in victims:
            # Something happens between two kills, or nothing would be learnt from them; then a random moment.
            before = calls_of(folder)
            wait_until(lambda before=before: calls_of(folder) > before)
            time.sleep(chance.random() * 2)
            wait_until(lambda victim=victim: parts.kill(victim))
        steps = done(folder)
        wait_until(lambda: done(folder) >= steps + 2)
        (folder / "enough").touch()
        trainer = parts.running["trainer"]
        trainer.join(max(1.0, end - time.monotonic()))
        assert trainer.exitcode == 0, (folder / "trainer.log").read_text()[-3000:]
    finally:
        parts.stop()
    return folder, parts


def test_every_update_was_made_once_and_the_weights_are_those_of_the_batches(
    killed: tuple[Path, Parts], tmp_path: Path
) -> None:
    folder, parts = killed
    assert parts.starts["trainer"] == parts.starts["endpoint"] == KILLS + 1
    acknowledged = [(line["step"], line["weights_sha256"]) for line in lines_of(folder) if line["phase"] == "train"]
    assert [step for step, _ in acknowledged] == list(range(1, done(folder) + 1))
    # Somebody who has nothing but the batches comes to the very same weights, update by update.
    assert killable.replay(folder, tmp_path / "again") == acknowledged
    resumed = [line for line in lines_of(folder) if line["phase"] == "resume"]
    assert all(line["differing"] == 0 for line in resumed)


def test_no_rollout_is_lost_and_none_is_trained_on_twice(killed: tuple[Path, Parts]) -> None:
    folder, _ = killed
    used: Counter[str] = Counter()
    for step in range(1, done(folder) + 1):
        batch = read_batch(folder / "transitions", step)
        assert batch is not None
        rollouts = {(one.rollout_id, one.attempt) for one in batch[1]}
        used.update(rollout for rollout, _ in rollouts)
        assert len(rollouts) == len(killable.TASKS) * killable.GROUP
    assert set(used.values()) == {1}
    # Each update met a group that is alike, and collected others: each of these rollouts was run to its end, and once.
    lines = [line for line in lines_of(folder) if line["phase"] == "train"]
    assert all(line["groups_alike"] and line["further"]["rollouts"] for line in lines)
    collected = sum(line["rollouts"] + line["further"]["rollouts"] for line in lines)
    with closing(open_store(str(folder / "store.sqlite"))) as store:
        attempts = store.attempts()
        ended = {one.rollout_id for one in attempts if one.outcome is not None and one.outcome.trainable}
        assert ended >= set(used), "what was trained on was finished"
        assert len(ended) == len(store.rollouts()) == collected, "what was begun is in the figures of one update"
        assert all(one.outcome is not None for one in attempts), "no attempt is left open"
        captured = {call.response_id for call in store.calls()}
    # Every reply that an agent has got was captured before, and every decision is on record.
    assert verify(folder / "audit.sqlite").ok
    with AuditLog(folder / "audit.sqlite") as audit:
        replies = {entry.call_id for entry in audit.entries() if entry.point == "post_model_call" and entry.effect}
    assert replies
    assert replies <= captured


def test_the_metrics_say_what_was_lost(killed: tuple[Path, Parts]) -> None:
    folder, _ = killed
    lines = [line for line in lines_of(folder) if line["phase"] == "train"]
    with closing(open_store(str(folder / "store.sqlite"))) as store:
        attempts = store.attempts()
    broken = [one for one in attempts if one.outcome is not None and not one.outcome.trainable]
    # A worker may be killed before it has written that it began: of that attempt there is only its number, left free.
    last: dict[str, int] = {}
    for one in attempts:
        last[one.rollout_id] = max(one.attempt, last.get(one.rollout_id, 0))
    unwritten = sum(last.values()) - len(attempts)
    assert broken or KILLS == 1, "many kills cost attempts"
    both = [one for line in lines for one in (line, line["further"])]
    assert sum(one["lost_attempts"] for one in both) == len(broken) + unwritten
    assert sum(one["lost_rollouts"] for one in both) == 0
    print(
        json.dumps(
            {
                "kills": 3 * KILLS,
                "updates": len(lines),
                "replayed": sum(line["replayed"] for line in lines_of(folder) if line["phase"] == "resume"),
                "recovered rollouts": sum(line["recovered"] for line in lines),
                "attempts lost": len(broken) + unwritten,
            }
        )
    )
