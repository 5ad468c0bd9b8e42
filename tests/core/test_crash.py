"""A process that is killed in the middle of writing loses nothing that it was told is durable."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog, make_key, verify
from lgov_core.store import open_store
from lgov_core.types import Outcome, Reward

ROUNDS = 20

#: The calls of an attempt, worked out in the same way by who writes them and by who looks for them.
TURNS = """
    from lgov_core.types import CapturedCall

    def turns(rollout_id, attempt):
        seed, calls, tokens = sum(rollout_id.encode()), [], tuple(range(200))
        for turn in range(3):
            prompt, response = (*tokens, seed, turn), (seed + turn,) * 5
            request = {"messages": [f"{rollout_id} {turn} " + "x" * 100] * (turn + 1)}
            calls.append(CapturedCall(f"{rollout_id}-{attempt}-{turn}", "m", request, {}, prompt, response,
                                      (-0.1,) * 5, "stop", 0, 1.0, 1.0, 1.0, 2.0, rollout_id, attempt))
            tokens = prompt + response
        return calls
"""

STORE = f"""{TURNS}
    import sys, threading
    from lgov_core.store import RolloutConfig, open_store
    from lgov_core.types import Reward, Rollout, Span
    path, tag = sys.argv[1:]
    store = open_store(path)
    out, lock = sys.stdout.buffer, threading.Lock()

    def say(text):
        with lock:
            out.write(f"{{text}}\\n".encode()); out.flush()

    def work(thread):
        made = 0
        while True:
            claims = store.claim(tag, 2, lease_s=3600.0)
            if not claims:
                names = [f"{{tag}}-{{thread}}-{{made + i}}" for i in range(5)]
                store.enqueue([Rollout(name, "t", "run", {{}}) for name in names], RolloutConfig(max_attempts=3))
                made += len(names)
                for name in names:
                    say(f"enqueued {{name}}")
            for claim in claims:
                name, attempt = claim.rollout.rollout_id, claim.attempt.attempt
                say(f"claimed {{name}}/{{attempt}}")
                for call in turns(name, attempt):
                    store.add_call(call)
                    say(f"call {{call.response_id}}")
                store.add_spans([Span("x", f"{{name}}-{{attempt}}-{{i}}", 1.0, 2.0, {{}}, name, attempt) for i in range(3)])
                say(f"spans {{name}}/{{attempt}}")
                store.add_span(Span("x", f"queued-{{name}}-{{attempt}}", 1.0, 2.0, {{"x": "x" * 500}}, name))
                # Three rewards, an ending and the next state: all of it, or nothing.
                store.finish_attempt(name, attempt, "succeeded", rewards=[Reward(float(k)) for k in range(3)])
                say(f"attempt {{name}}/{{attempt}}")

    for thread in range(4):
        threading.Thread(target=work, args=(thread,), daemon=True).start()
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
def test_no_acknowledged_row_is_lost_and_what_was_half_done_is_failed_or_resumed(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(textwrap.dedent(TURNS), names)
    path = str(tmp_path / "store.sqlite")
    told: dict[str, set[str]] = defaultdict(set)
    failed: set[tuple[str, int]] = set()
    for number in range(ROUNDS):
        # Another point in the writer's work each time; each round goes on in the file that the last one left.
        for kind, name in acknowledged_before_the_kill(STORE, path, f"k{number}", lines=40 + 17 * number):
            told[kind].add(name)
        began = time.perf_counter()
        store = open_store(path)
        left = [one for one in store.attempts() if one.outcome is None]
        states = {entry.rollout_id: entry.state for entry in store.queue_entries()}
        assert {one.rollout_id for one in left} == {name for name, state in states.items() if state == "running"}
        # What the dead worker had in hand is failed, with a reason, or goes on.
        if number % 3 == 0:
            assert store.fail_open_attempts("the process was killed") == len(left)
            reason = "the process was killed"
        elif number % 3 == 1:
            closed = store.expire(now=time.time() + 7200)
            assert [(one.rollout_id, one.attempt) for one in closed] == [(one.rollout_id, one.attempt) for one in left]
            reason = f"worker k{number} gave no sign of life until its lease ran out"
        else:
            assert store.heartbeat(f"k{number}", lease_s=3600.0) == left
            for one in left:
                store.finish_attempt(one.rollout_id, one.attempt, Outcome.SUCCEEDED, rewards=[Reward(9.0)])
            reason, left = None, []
        assert time.perf_counter() - began < 2.0  # the next process can work at once
        failed |= {(one.rollout_id, one.attempt) for one in left}
        attempts = {(one.rollout_id, one.attempt): one for one in store.attempts()}
        for one in left:
            assert attempts[one.rollout_id, one.attempt].error == reason
        store.close()

    with closing(open_store(path)) as store:
        entries = {entry.rollout_id: entry for entry in store.queue_entries()}
        assert told["enqueued"] <= entries.keys()
        assert {f"{one.rollout_id}/{one.attempt}" for one in store.attempts()} >= told["claimed"] >= told["attempt"]
        calls = {call.response_id: call for call in store.calls()}
        assert told["call"] <= calls.keys()
        expected = {
            call.response_id: call for one in store.attempts() for call in names["turns"](one.rollout_id, one.attempt)
        }
        assert calls.items() <= expected.items()
        spans = Counter(f"{span.rollout_id}/{span.attempt}" for span in store.spans() if span.attempt is not None)
        assert told["spans"] <= spans.keys()
        assert set(spans.values()) == {3}
        paid: dict[tuple[str | None, int | None], list[float]] = defaultdict(list)
        for reward in store.rewards():
            paid[reward.rollout_id, reward.attempt].append(reward.value)
        assert paid.keys() == {key for key, one in attempts.items() if one.outcome is Outcome.SUCCEEDED}
        assert all(values in ([0.0, 1.0, 2.0], [9.0]) for values in paid.values())
        assert {key for key, one in attempts.items() if one.outcome is Outcome.INFRASTRUCTURE} == failed
        assert failed
        # A rollout ended well, or waits for another try, or has used them up: none is lost between two states.
        for name, entry in entries.items():
            if entry.state == "succeeded":
                assert attempts[name, entry.attempt].outcome is Outcome.SUCCEEDED
            else:
                assert entry.state == ("queued" if not entry.attempt else "requeued" if entry.attempt < 3 else "failed")
        ended = [entry.rollout_id for entry in store.ended_since(limit=10**6).entries]
        assert sorted(ended) == sorted(name for name, entry in entries.items() if entry.state.ended)


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
