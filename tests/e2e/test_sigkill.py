"""Server, client and workers are killed at random moments of one run: it goes on, and nothing acknowledged is lost.

Once each here; ten times each with LGOV_TEST_SLOW=1.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

for _module in ("torch", "transformers", "langchain", "starlette", "pyarrow"):
    pytest.importorskip(_module, reason='needs the extras "langchain", "gateway" and "train"')

from lgov_core.audit import AuditLog, verify  # noqa: E402
from lgov_core.store import open_store  # noqa: E402
from lgov_core.train.loop.run_files import read_batch  # noqa: E402
from tests.e2e import killable  # noqa: E402
from tests.e2e.killing import Parts, done, lines_of, run_with_kills  # noqa: E402
from tests.slow import SLOW  # noqa: E402

KILLS = 10 if SLOW else 1
DEADLINE_S = 540 * KILLS

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the workers"),
    pytest.mark.timeout(DEADLINE_S + 120),
]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("killed")
    return run_with_kills(folder, dict.fromkeys(["server", "client", "worker"], KILLS), DEADLINE_S)


def test_every_update_was_made_once_and_the_weights_are_those_of_the_batches(killed: Parts, tmp_path: Path) -> None:
    folder = killed.folder
    assert all(killed.starts[name] == killed.kills[name] + 1 for name in ("server", "client"))
    acknowledged = [(line["step"], line["weights_sha256"]) for line in lines_of(folder, "train")]
    assert [step for step, _ in acknowledged] == list(range(1, done(folder) + 1))
    # With nothing but the batches the very same weights are computed again, update by update.
    assert killable.replay(folder, tmp_path / "again", killed.vllm) == acknowledged
    assert all(line["differing"] == 0 for line in lines_of(folder, "resume"))


def test_every_call_was_sampled_with_the_weights_of_the_trainer(killed: Parts) -> None:
    """Also after the server, or what samples for it, was started again: those of then, not the first or older ones."""
    assert all(line["logprob_drift"] < 1e-4 for line in lines_of(killed.folder, "train"))


def test_no_rollout_is_lost_and_none_is_trained_on_twice(killed: Parts) -> None:
    folder = killed.folder
    used: Counter[str] = Counter()
    for step in range(1, done(folder) + 1):
        batch = read_batch(folder / "transitions", step)
        assert batch is not None
        rollouts = {(one.rollout_id, one.attempt) for one in batch[1]}
        used.update(rollout for rollout, _ in rollouts)
        assert len(rollouts) == killable.GROUPS * killable.GROUP
    assert set(used.values()) == {1}
    # Each update met a group that is alike, and collected others: each of these rollouts was run to its end, and once.
    lines = lines_of(folder, "train")
    assert all(line["groups_alike"] and line["further"]["rollouts"] for line in lines)
    collected = sum(line["rollouts"] + line["further"]["rollouts"] for line in lines)
    with closing(open_store(str(folder / "store.sqlite"))) as store:
        attempts, left = store.attempts(), killable.left(folder)
        ended = {one.rollout_id for one in attempts if one.trainable} - left
        assert ended >= set(used), "what was trained on was finished"
        begun = {one.rollout_id for one in store.rollouts()} - left
        assert len(ended) == len(begun) == collected, "what was begun is in the figures of one update"
        assert all(one.outcome is not None for one in attempts), "no attempt is left open"
        captured = {call.response_id for call in store.calls()}
    # Every reply that an agent has got was captured before, and every decision is on record.
    assert verify(folder / "audit.sqlite").ok
    with AuditLog(folder / "audit.sqlite") as audit:
        replies = {entry.call_id for entry in audit.entries() if entry.point == "post_model_call" and entry.effect}
    assert replies
    assert replies <= captured


def test_the_metrics_say_what_was_lost(killed: Parts) -> None:
    folder = killed.folder
    lines = lines_of(folder, "train")
    with closing(open_store(str(folder / "store.sqlite"))) as store:
        attempts = [one for one in store.attempts() if one.rollout_id not in killable.left(folder)]
    broken = [one for one in attempts if one.outcome is not None and not one.outcome.trainable]
    # A worker may be killed before it has written that it began: of that attempt there is only its number, left free.
    last: dict[str, int] = {}
    for one in attempts:
        last[one.rollout_id] = max(one.attempt, last.get(one.rollout_id, 0))
    unwritten = sum(last.values()) - len(attempts)
    assert broken or max(killed.kills.values()) == 1, "many kills cost attempts"
    both = [one for line in lines for one in (line, line["further"])]
    assert sum(one["lost_attempts"] for one in both) == len(broken) + unwritten
    assert sum(one["lost_rollouts"] for one in both) == 0
    print(
        json.dumps(
            {
                "kills": dict(killed.kills),
                "updates": len(lines),
                "replayed": sum(line["replayed"] for line in lines_of(folder, "resume")),
                "recovered rollouts": sum(line["recovered"] for line in lines),
                "attempts lost": len(broken) + unwritten,
            }
        )
    )
