"""ReloadingPolicySet: a policy file that may be edited while it governs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Protocol

from lgov_core.errors import PolicyError, PolicyFileError
from lgov_core.governor.rules import by_rules
from lgov_core.policies.loader import MadePolicy, load_policy_text, read_policy_file
from lgov_core.policies.policy_set import PolicySet
from lgov_core.types import Action, Decision, ObservingPolicy, Point, PolicyFactory

_LOG = logging.getLogger("lgov.policies")


class PolicyRecord(Protocol):
    """Where it is put on record which policies hold."""

    def begin_policy(self, digest: str, name: str, mode: str) -> None:
        """Puts on record that the policies of a file hold from now on. Raises `AuditError`."""
        ...


class ReloadingPolicySet:
    """The policies of a file, replaced when the file changes.

    The first set is loaded here (`PolicyFileError` when it cannot be); it is replaced, for all threads at once, only by
    another that loaded. When the new file is missing or wrong the set stays, and the failure is logged (logger
    ``lgov.policies``), kept in ``failure``, given to ``on_failure``, and counted by the governor (as a failing observer).

    The file is read on the path of a decision, at most every ``every_s`` seconds, by one thread while the others go on
    with the current set; without decisions nothing is reloaded. Its whole content is compared. A new content is loaded once
    two reads in a row have found it, because a half-written file may be a valid one with fewer rules. The decision during
    which that happens takes as long as loading the file.

    A rule whose ``use`` and ``with`` are unchanged keeps its policy, with its budgets, rates and approvals. Where ``with``
    changes and the old policy keeps count (it is an `ObservingPolicy`, or has ``continue_from``), the new one must be of
    the same kind and have ``continue_from(previous)``, or the new file is refused. A rule that is removed or renamed
    loses its counts.

    With ``record``, an open audit record, each set is put on it before it holds; one that cannot be is a set that did not load.

    A set that is ``bounded`` is not replaced by one that is not: governors ask a policy once whether it needs a timeout.
    May be called from several threads at once. Fails closed.
    """

    default_points: ClassVar[tuple[Point, ...]] = tuple(Point)
    permits: ClassVar[bool] = True

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        every_s: float = 1.0,
        registry: Mapping[str, PolicyFactory] | None = None,
        on_failure: Callable[[PolicyError], None] | None = None,
        record: PolicyRecord | None = None,
    ) -> None:
        if not every_s >= 0:
            raise PolicyError(f"every_s is {every_s!r}", hint="give seconds, 0 or more")
        self.path = Path(path)
        self.every_s = every_s
        self.registry = registry
        self.on_failure, self.record = on_failure, record
        self.failure: PolicyError | None = None
        self.reloads = 0
        self._text = self._seen = read_policy_file(self.path)
        self._current, self._made = load_policy_text(self._text, str(self.path), registry=registry)
        self.bounded = self._current.bounded
        self._begin(self._current)
        self._refused: bytes | None = None
        self._lock = threading.Lock()
        self._next_look = time.monotonic() + every_s
        self._untold: PolicyError | None = None

    @property
    def current(self) -> PolicySet:
        """The set in force."""
        return self._current

    @property
    def reads_replies(self) -> bool:
        """True where a rule of the set in force reads what models write."""
        return self._current.reads_replies

    @property
    def name(self) -> str:
        """The name of the set in force."""
        return self._current.name

    @property
    def digest(self) -> str:
        """The digest of the set in force."""
        return self._current.digest

    @by_rules
    def judge(self, action: Action) -> Decision:
        """The verdict of the set in force, after a look at the file when one is due."""
        return self.in_force().judge(action)

    def in_force(self) -> PolicySet:
        """The set in force, after a look at the file when one is due."""
        if time.monotonic() >= self._next_look and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._next_look = time.monotonic() + self.every_s
                self._lock.release()
        return self._current

    def reload(self) -> bool:
        """Takes the file as it is now; whether it changed anything. Raises `PolicyFileError` and keeps the set otherwise."""
        with self._lock:
            self._seen = read_policy_file(self.path)
            return self._take(self._seen)

    def ping(self) -> None:
        """See `PolicySet.ping`."""
        self._current.ping()

    def flush(self) -> None:
        """See `PolicySet.flush`."""
        self._current.flush()

    def observe(self, event: Any) -> None:
        """Hands ``event`` to the policies that keep count. Raises a failure to reload, once, so that it is counted."""
        self._current.observe(event)
        failure, self._untold = self._untold, None
        if failure is not None:
            raise failure

    def _look(self) -> None:
        try:
            text = read_policy_file(self.path)
            settled, self._seen = text == self._seen, text
            if text == self._text:
                self.failure = None
            elif settled and text != self._refused:
                self._refused = text
                self._take(text)
        except PolicyError as error:
            self._report(error)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the set in force stays
            self._report(PolicyFileError(f"{type(error).__name__}: {error}", path=str(self.path)))

    def _take(self, text: bytes) -> bool:
        if text == self._text:
            self.failure = None
            return False
        loaded, policies = load_policy_text(text, str(self.path), registry=self.registry, made=self._made)
        if self.bounded and not loaded.bounded:
            slow = ", ".join(rule.name for rule in loaded.rules if not rule.bounded)
            raise PolicyFileError(
                f"the policies of {slow} may wait, which those before did not",
                path=str(self.path),
                hint="restart the program to use them",
            )
        for name, now in policies.items():
            before = self._made.get(name)
            if before is not None and before.policy is not now.policy:
                self._hand_over(name, before, now)
        self._begin(loaded)
        # One assignment: each thread judges with the one set or with the other.
        self._current, self._made, self._text = loaded, policies, text
        self.failure = self._untold = None
        self.reloads += 1
        _LOG.info("%s: loaded anew, digest %s", self.path, loaded.digest)
        return True

    def _begin(self, policies: PolicySet) -> None:
        if self.record is not None:
            self.record.begin_policy(policies.digest, str(self.path), policies.mode)

    def _hand_over(self, rule: str, before: MadePolicy, now: MadePolicy) -> None:
        if not isinstance(before.policy, ObservingPolicy) and not hasattr(before.policy, "continue_from"):
            return
        take_over = getattr(now.policy, "continue_from", None)
        if take_over is None or type(now.policy) is not type(before.policy):
            raise PolicyFileError(
                f"the change to rule {rule} would forget what its policy has counted",
                path=str(self.path),
                hint="restart the program to begin anew, or give the rule another name",
            )
        take_over(before.policy)

    def _report(self, error: PolicyError) -> None:
        if self.failure is not None and str(self.failure) == str(error):
            return  # the same failure at each look would bury the rest
        self.failure = self._untold = error
        _LOG.error("the policies stay as they were: %s", error)
        if self.on_failure is not None:
            try:
                self.on_failure(error)
            except Exception:  # noqa: BLE001 - a callback must not change a verdict
                _LOG.exception("%s: on_failure raised", self.path)
