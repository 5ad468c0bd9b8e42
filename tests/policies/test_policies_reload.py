"""A policy file edited while it governs: always a set, the old one when the new one fails, and counts that survive."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog
from lgov_core.errors import AuditError, PolicyError, PolicyFileError
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import BUILTIN_POLICIES, BoundedPolicy, ReloadingPolicySet
from lgov_core.types import Action, Decision, Point

OPEN = "version: 1\nrules:\n  - {name: open, use: allow}\n"
SHUT = "version: 1\nrules:\n  - {name: shut, use: deny}\n"


def act(**arguments: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, "run", arguments=arguments)


class CallBudget(BoundedPolicy):
    """Allows so many calls."""

    permits = True

    def __init__(self, *, calls: int, name: str = "calls") -> None:
        self.name, self.calls, self.used = name, calls, 0
        self._lock = threading.Lock()

    def judge(self, action: Action) -> Decision:
        with self._lock:
            self.used += 1
            return self.allow() if self.used <= self.calls else self.deny("calls-spent", "No calls are left.")

    def observe(self, event: object) -> None:
        """Hears of everything."""


class PassingBudget(CallBudget):
    """A budget whose counts go on when its numbers are changed."""

    def continue_from(self, previous: PassingBudget) -> None:
        self.used = previous.used


class Slow:
    """A policy that promises nothing about its cost."""

    def __init__(self, *, name: str) -> None:
        self.name = name

    def judge(self, action: Action) -> Decision | None:
        return None


REGISTRY = {**BUILTIN_POLICIES, "calls": CallBudget, "passing": PassingBudget, "slow": Slow}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(OPEN)
    return path


def opened(file: Path, **more: Any) -> ReloadingPolicySet:
    return ReloadingPolicySet(file, every_s=0, registry=REGISTRY, **more)


def after_two_looks(judges: ReloadingPolicySet) -> Decision:
    judges.judge(act())
    return judges.judge(act())


def test_an_edit_takes_effect_once_it_has_settled(file: Path) -> None:
    judges = opened(file)
    before = judges.digest
    assert not judges.judge(act()).blocks
    file.write_text(SHUT)
    assert not judges.judge(act()).blocks, "the file may still be being written"
    assert judges.judge(act()).policy == "shut"
    assert judges.reloads == 1
    assert judges.digest != before
    assert after_two_looks(judges).policy == "shut"
    assert judges.reloads == 1


def test_the_record_says_from_when_on_each_set_holds(file: Path, tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.db", signer=None) as record:
        judges = opened(file, record=record)
        before = judges.digest
        file.write_text(SHUT)
        assert judges.reload()
        entries = record.entries()
    assert [(entry.kind, entry.policy_digest, entry.name) for entry in entries] == [
        ("policy", before, str(file)),
        ("policy", judges.digest, str(file)),
    ]
    file.write_text(OPEN)
    with pytest.raises(AuditError):  # the record is closed
        judges.reload()
    assert judges.judge(act()).policy == "shut", "what is not on record does not hold"


def test_an_edit_that_keeps_size_and_times_is_noticed(file: Path) -> None:
    file.write_text(SHUT)
    judges = opened(file)
    kept = file.stat()
    with file.open("r+") as text:
        text.write(SHUT.replace("shut", "lock"))
    os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns, file.stat().st_ino) == (
        kept.st_size,
        kept.st_mtime_ns,
        kept.st_ino,
    )
    assert after_two_looks(judges).policy == "lock"


def test_a_file_that_is_replaced_is_noticed(file: Path) -> None:
    judges = opened(file)
    (file.parent / "new").write_text(SHUT)
    (file.parent / "new").replace(file)
    assert after_two_looks(judges).policy == "shut"


def test_it_is_read_no_more_often_than_asked(file: Path) -> None:
    judges = ReloadingPolicySet(file, every_s=3600)
    file.write_text(SHUT)
    for _ in range(5):
        assert not judges.judge(act()).blocks
    assert judges.reload()
    assert judges.judge(act()).blocks
    assert not judges.reload()


@pytest.mark.parametrize(
    "wrong", ["", "version: 1\nrules: [", "version: 1\nrules:\n  - {use: tol}\n", "\xff\x00", None]
)
def test_the_old_set_stays_when_the_new_file_fails_and_it_is_told(
    file: Path, wrong: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text(SHUT)
    told: list[PolicyError] = []
    judges = opened(file, on_failure=told.append)
    governor = Governor(judges, manager=make_plugin_manager(builtin=(), third_party=False))
    if wrong is None:
        file.unlink()
    else:
        file.write_text(wrong, encoding="latin-1")
    with caplog.at_level(logging.ERROR, logger="lgov.policies"):
        for _ in range(5):
            assert governor.decide(act()).policy == "shut"
    assert isinstance(judges.failure, PolicyFileError)
    assert len(told) == 1, "the same failure is told once"
    assert str(file) in caplog.text
    assert governor.failures["lgov_observe:policies"] == 1
    with pytest.raises(PolicyFileError):
        judges.reload()
    assert judges.judge(act()).policy == "shut"
    file.write_text(OPEN)
    assert after_two_looks(judges).policy == "open"
    assert judges.failure is None
    governor.close()


def test_a_callback_that_raises_changes_no_verdict(file: Path) -> None:
    def explode(error: PolicyError) -> None:
        raise RuntimeError

    judges = opened(file, on_failure=explode)
    file.write_text("nonsense")
    assert not after_two_looks(judges).blocks


def test_without_a_file_to_begin_with_there_is_no_set(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match="no such file"):
        ReloadingPolicySet(tmp_path / "missing.yaml")
    with pytest.raises(PolicyError, match="every_s"):
        ReloadingPolicySet(tmp_path / "missing.yaml", every_s=float("nan"))


def budget(use: str, calls: int, more: str = "") -> str:
    return f"version: 1\nrules:\n  - name: calls\n    use: {use}\n    with: {{calls: {calls}}}\n{more}"


def test_what_was_counted_survives_every_edit_of_something_else(file: Path) -> None:
    file.write_text(budget("calls", 2))
    judges = opened(file)
    assert not judges.judge(act()).blocks
    assert not judges.judge(act()).blocks
    edits = ["# a note\n", "    severity: critical\n", "  - {name: open, use: allow}\n", "    agents: ['*']\n"]
    for edit in edits:
        file.write_text(budget("calls", 2, edit))
        assert judges.reload()
        assert judges.judge(act()).rule == "calls-spent"


def test_a_change_to_the_numbers_carries_the_counts_over_or_is_refused(file: Path) -> None:
    file.write_text(budget("calls", 2))
    judges = opened(file)
    judges.judge(act())
    file.write_text(budget("calls", 5))
    with pytest.raises(PolicyFileError, match="would forget what its policy has counted"):
        judges.reload()
    file.write_text(budget("passing", 5))
    with pytest.raises(PolicyFileError, match="would forget"):
        judges.reload()
    passing = file.with_name("passing.yaml")
    passing.write_text(budget("passing", 2))
    judges = opened(passing)
    for _ in range(3):
        judges.judge(act())
    assert judges.judge(act()).blocks
    passing.write_text(budget("passing", 5))
    assert judges.reload()
    assert [judges.judge(act()).blocks for _ in range(2)] == [False, True], "four were used"


def test_a_bounded_set_is_not_replaced_by_one_that_may_wait(file: Path) -> None:
    judges = opened(file)
    file.write_text(OPEN + "  - {name: waits, use: slow}\n")
    with pytest.raises(PolicyFileError, match="waits may wait"):
        judges.reload()
    assert judges.bounded
    assert judges.current.bounded


def test_threads_see_the_one_set_or_the_other_and_never_none(file: Path) -> None:
    """Every file denies; each has two rules of its own, so that a decision out of two sets would show."""
    texts = [
        f"version: 1\ndefault: allow\nrules:\n  - {{name: a{n}, use: deny}}\n  - {{name: b{n}, use: deny}}\n"
        for n in (0, 1)
    ]
    file.write_text(texts[0])
    judges = opened(file)
    seen: list[Counter[tuple[str, ...]]] = []
    stop = threading.Event()

    def hammer() -> None:
        mine: Counter[tuple[str, ...]] = Counter()
        while not stop.is_set():
            decision = judges.judge(act())
            mine[(decision.effect.label, *(part.policy for part in decision.parts))] += 1
            time.sleep(0)
        seen.append(mine)

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    wrong = ["", "rules: [", texts[1][:40]]
    for turn in range(8):
        file.write_text(wrong[turn % 3])
        (file.parent / "new").write_text(texts[turn % 2])
        (file.parent / "new").replace(file)
        reached = judges.reloads + 1
        while turn and judges.reloads < reached and judges.judge(act()).parts[0].policy != f"a{turn % 2}":
            pass
    stop.set()
    for thread in threads:
        thread.join()
    assert sum(seen, Counter()).keys() <= {("deny", "a0", "b0"), ("deny", "a1", "b1")}
    assert judges.reloads >= 7
