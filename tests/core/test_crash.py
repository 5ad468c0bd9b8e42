"""A process that is killed in the middle of writing loses nothing that it was told is durable."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lgov_core.audit import AuditLog, make_key, verify
from lgov_core.store import open_store
from lgov_core.types import Outcome

ROUNDS = 20

STORE = """
    import sys, threading
    from lgov_core.store import open_store
    from lgov_core.types import CapturedCall, Reward, Rollout, Span
    path, tag = sys.argv[1:]
    store = open_store(path)
    out, lock = sys.stdout.buffer, threading.Lock()

    def say(text):
        with lock:
            out.write(f"{text}\\n".encode()); out.flush()

    def write(thread):
        i = 0
        while True:
            name = f"{tag}-{thread}-{i}"
            ids = tuple(range(i % 50))
            store.add_rollouts([Rollout(name, "t", "run", {})])
            store.start_attempt(name, 1)
            store.add_call(CapturedCall(name, "m", {"x": "x" * 500}, {}, ids, ids, (0.5,) * len(ids), "stop", 0,
                                        1.0, 1.0, 1.0, 2.0, name, 1))
            say(f"call {name}")
            store.add_span(Span("x", name, 1.0, 2.0, {"x": "x" * 500}, name))
            # Three rewards and an ending: all of it, or nothing.
            store.finish_attempt(name, 1, "succeeded", rewards=[Reward(float(k), source=name) for k in range(3)])
            say(f"attempt {name}")
            i += 1

    for thread in range(4):
        threading.Thread(target=write, args=(thread,), daemon=True).start()
    threading.Event().wait()
"""

AUDIT = """
    import sys, threading
    from pathlib import Path
    from lgov_core.audit import AuditLog, load_key
    from lgov_core.types import Action, Decision, Effect, Point
    log = AuditLog(sys.argv[1], signer=load_key(Path(sys.argv[2])), sign_every=16)
    action = Action(Point.PRE_TOOL_CALL, "run_sql", arguments={"query": "x" * 300}, rollout_id="r1")
    out, lock = sys.stdout.buffer, threading.Lock()

    def write():
        while True:
            entry_id = log.commit(action, Decision(Effect.DENY, "p"))
            with lock:
                out.write(f"entry {entry_id}\\n".encode()); out.flush()

    for _ in range(2):
        threading.Thread(target=write, daemon=True).start()
    threading.Event().wait()
"""


def acknowledged_before_the_kill(code: str, *arguments: str, lines: int) -> list[tuple[str, str]]:
    """Runs ``code``, kills it with SIGKILL once it has acknowledged so many writes, and returns all it acknowledged."""
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *arguments], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        seen = [child.stdout.readline() for _ in range(lines)]
        assert child.poll() is None
    finally:
        child.kill()
    with child.stdout:
        seen.extend(child.stdout.readlines())  # what was said between the last line read and the kill
    assert child.wait() == -9
    # The last line may be torn: a kill can come in the middle of a write to the pipe.
    whole = [line.decode().split() for line in seen if line.endswith(b"\n")]
    return [(kind, name) for kind, name in whole]


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_no_acknowledged_row_is_lost_and_none_is_half_written(tmp_path: Path) -> None:
    path = str(tmp_path / "store.sqlite")
    calls: set[str] = set()
    attempts: set[str] = set()
    for number in range(ROUNDS):
        # Another point in the writer's work each time; each round goes on in the file that the last one left.
        for kind, name in acknowledged_before_the_kill(STORE, path, f"k{number}", lines=40 + 17 * number):
            (calls if kind == "call" else attempts).add(name)
        store = open_store(path)
        found = {call.response_id: call for call in store.calls()}
        assert calls <= found.keys()
        assert all(call.request == {"x": "x" * 500} for call in found.values())
        ended = {attempt.rollout_id for attempt in store.attempts() if attempt.outcome is not None}
        assert attempts <= ended
        paid: dict[str, list[float]] = {}
        for reward in store.rewards():
            paid.setdefault(str(reward.rollout_id), []).append(reward.value)
        succeeded = {attempt.rollout_id for attempt in store.attempts() if attempt.outcome is Outcome.SUCCEEDED}
        assert paid.keys() == succeeded
        assert all(values == [0.0, 1.0, 2.0] for values in paid.values())
        still_open = len(store.attempts()) - len(ended)
        assert store.fail_open_attempts("the process was killed") == still_open
        store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_no_acknowledged_decision_is_lost_and_the_chains_hold(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.sqlite")
    key, heads = make_key(tmp_path / "key"), f"{path}.heads.jsonl"
    entries: set[str] = set()
    for number in range(ROUNDS):
        found = acknowledged_before_the_kill(AUDIT, path, str(tmp_path / "key"), lines=1 + 23 * number)
        entries.update(name for _, name in found)
        report = verify(path, key=key.public, head=heads)
        assert report.ok, report
        assert report.heads
        with AuditLog(path) as log:
            assert entries <= {entry.entry_id for entry in log.entries()}
        assert report.writers == number + 1
