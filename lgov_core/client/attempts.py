"""Runs an agent on one task, watched or governed, and says how it went."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import lgov_core
from lgov_core.air import AirPlugin, RuleSet
from lgov_core.client.tasks import Resource, Task
from lgov_core.client.wire import Assignment, Report
from lgov_core.errors import ArgumentError, AuditError, InstrumentationError, PolicyDenied, StoreError
from lgov_core.governance import Governance, OpenGovernance
from lgov_core.governor import Governor, ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.instrumentation.endpoint_headers import ENDPOINT_VARIABLE
from lgov_core.plugins import register
from lgov_core.scope import RolloutScope, carry_into_threads
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Outcome, Point, Reward, Severity, Span
from lgov_core.types.records import MOST_REWARD

_LOCK = threading.Lock()
#: By name: what the variable was before the first block, and the values of the open blocks, oldest first.
_OPEN: dict[str, tuple[str | None, list[tuple[object, str]]]] = {}


@contextlib.contextmanager
def environment_variable(name: str, value: str) -> Generator[None]:
    """Within the block the variable is ``value``.

    Blocks of several threads may overlap and end in any order: the newest of those that are open holds, and after the last
    the variable is what it was before the first.
    """
    mine = object()
    with _LOCK:
        _, values = _OPEN.setdefault(name, (os.environ.get(name), []))
        values.append((mine, value))
        os.environ[name] = value
    try:
        yield
    finally:
        with _LOCK:
            before, values = _OPEN[name]
            values[:] = [entry for entry in values if entry[0] is not mine]
            if not values:
                del _OPEN[name]
            value_now = values[-1][1] if values else before
            if value_now is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value_now


#: The error of an attempt in which acts were denied by a failure, not by the policy.
DENIED_BY_FAILURE: Final = "a policy or the audit record failed, so acts were denied that the policy may allow"

#: What clients derive their errors of connections and of waiting from, and what a model's client raises for its key; by
#: package and name, for no client may be imported here.
_CLIENT_ERRORS = {
    ("httpx", "TransportError"),
    ("aiohttp", "ClientConnectionError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
    *(
        (package, name)
        for package in ("openai", "anthropic")
        for name in ("APIConnectionError", "AuthenticationError", "PermissionDeniedError")
    ),
}

#: What the operating system says when it has run out of something, or has lost a device or a network. A missing file
#: or a forbidden one is not among them: those an agent's own tool may ask for.
_EXHAUSTED = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EIO,
    errno.EROFS,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
}
_SQLITE_EXHAUSTED = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM}


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """The outcome of an attempt whose agent raised ``error``, and its text.

    ``infrastructure`` if it, or what caused it, speaks of the machines (connection, memory, disk) rather than of the agent;
    ``timeout`` if a tool's time was over, which says nothing about the agent either. Follows causes and what was being
    handled, also behind ``from None``.
    """
    if isinstance(error, PolicyDenied):
        return Outcome.BLOCKED, str(error)
    text = f"{type(error).__name__}: {error}"
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, TimeoutError | subprocess.TimeoutExpired):
            return Outcome.TIMEOUT, text
        if _speaks_of_machines(current):
            return Outcome.INFRASTRUCTURE, text
        current = current.__cause__ or current.__context__
    return Outcome.FAILED, text


def _speaks_of_machines(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | MemoryError | StoreError | AuditError):
        return True
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        return True
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_EXHAUSTED:
        return True
    status = _status_of(error)
    if status is not None and (status >= 500 or status in (408, 429)):
        return True
    return any((kind.__module__.partition(".")[0], kind.__name__) in _CLIENT_ERRORS for kind in type(error).__mro__)


def _status_of(error: BaseException) -> int | None:
    """The HTTP status that a client's error stands for, by whatever name it has it."""
    for holder in (getattr(error, "response", None), error):
        for name in ("status_code", "status", "code"):
            if isinstance(status := getattr(holder, name, None), int) and 100 <= status < 600:
                return status
    return None


Agent = Callable[[Resource, Task], Any]

_LOG = logging.getLogger(__name__)

#: Number of spans of one attempt that go to the server.
_MOST_SPANS: Final = 10_000
#: A denial of less severity says that a call could not be read (broken SQL, wrong arguments), not that it was dangerous.
_VIOLATIONS: Final = frozenset({Severity.HIGH, Severity.CRITICAL})


class Notebook:
    """Rewards and spans of the attempts that run here, until each is taken: an `EventStore`. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], tuple[list[Reward], list[Span]]] = {}

    def begin(self, key: tuple[str, int]) -> None:
        """Keeps rewards and spans of this attempt from here on."""
        with self._lock:
            self._open[key] = ([], [])

    def take(self, key: tuple[str, int]) -> tuple[tuple[Reward, ...], tuple[Span, ...]]:
        """Rewards and spans of an attempt, which ends with this."""
        with self._lock:
            rewards, spans = self._open.pop(key, ([], []))
            return tuple(rewards), tuple(spans)

    def add_rewards(self, rewards: Iterable[Reward]) -> None:
        """Keeps rewards, each with the attempt it names; those of no open attempt are dropped."""
        with self._lock:
            for reward in rewards:
                if kept := self._open.get((reward.rollout_id or "", reward.attempt or 0)):
                    kept[0].append(reward)

    def flush(self) -> None:
        """Nothing is queued here."""

    def add_span(self, span: Span) -> None:
        """Keeps a span; one of no open attempt, or too many of one, is dropped."""
        with self._lock:
            kept = self._open.get((span.rollout_id or "", span.attempt or 0))
            if kept and len(kept[1]) < _MOST_SPANS:
                kept[1].append(span)


class AttemptCounts:
    """Counts per attempt what the governor decided: model calls let through, tool calls, and violations attempted.

    ``faults`` counts what was denied because a policy failed or the decision could not be put on record.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str | None, int | None], Counter[str]] = {}

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """Counts one decision. In shadow mode what would have been blocked counts as denied."""
        if not isinstance(event, ObservedDecision):
            return
        action, decision = event.action, event.decision
        with self._lock:
            counts = self._counts.setdefault((action.rollout_id, action.attempt), Counter())
            if decision.blocks and decision.fault:
                counts["faults"] += 1
            elif action.point is Point.PRE_MODEL_CALL and not decision.blocks:
                counts["model_calls"] += 1
            elif action.point is Point.PRE_TOOL_CALL:
                counts["tool_calls"] += 1
                blocking = [part for part in decision.parts or (decision,) if part.blocks and not part.fault]
                counts["denied"] += bool(blocking)
                counts["violations"] += any(part.severity in _VIOLATIONS for part in blocking)

    def take(self, rollout_id: str, attempt: int) -> dict[str, int]:
        """Removes and returns the counts of an attempt."""
        with self._lock:
            return dict(self._counts.pop((rollout_id, attempt), Counter()))


class AgentRunner:
    """Runs one agent on assignments; several threads may do so at once.

    Where ``governance`` names no policy file agents are watched: calls are recorded and rewarded by ``rules``, nothing is
    judged. Under one they are governed. Spans and rewards go into the reports of the attempts, whatever store is named.
    ``instrument`` instruments all installed frameworks of the process until `close`; raises `InstrumentationError` under a
    policy if there are none. With ``content`` spans have prompts, arguments and results, unless ``governance`` says
    otherwise; the endpoint has those of model calls anyway. A ``governor`` of the caller replaces the policy; its events are
    observed until `close`.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        endpoint: str,
        governance: Governance | None = None,
        rules: RuleSet | None = None,
        instrument: bool = True,
        governor: Governor | None = None,
        content: bool = False,
    ) -> None:
        check_agent(agent)
        self._agent = agent
        governance = governance or Governance()
        governed = governor is None and governance.policy is not None
        self._governs = governed or governor is not None
        self._notebook = Notebook()
        self._tally = AttemptCounts()
        self._stack, self._arms = contextlib.ExitStack(), contextlib.ExitStack()
        self._lock = threading.Lock()
        self._running, self._closed = 0, False
        self._opened: OpenGovernance | None = None
        plugins: list[object] = [StoreSink(self._notebook, content=governance.content), self._tally]
        if rules is not None:
            plugins.insert(0, AirPlugin(rules))
        if governor is not None:
            self.governor = governor
            for plugin in plugins:
                register(governor.manager, plugin)
                self._stack.callback(self._unregister, plugin)
            governor.plugins_changed()
        else:
            own = replace(governance, store=None, content=content and governance.content)  # the server keeps the spans
            opened = own.open(plugins=plugins, rewards=False) if governed else own.watch(plugins=plugins)
            self._opened, self.governor = opened, opened.governor
            self._stack.callback(opened.close)
        carry_into_threads()
        try:
            self._stack.enter_context(environment_variable(ENDPOINT_VARIABLE, endpoint))
            self._bypass_proxies(endpoint)
            if instrument:
                self._instrument(required=governed)
        except BaseException:
            self._arms.close()
            self._stack.close()
            raise

    def _bypass_proxies(self, endpoint: str) -> None:
        """Keeps calls to an endpoint of this machine from the proxies that the environment names."""
        host = urlsplit(endpoint).hostname
        if host in ("127.0.0.1", "localhost", "::1"):
            without = ",".join(filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), host)))
            for name in ("no_proxy", "NO_PROXY"):
                self._stack.enter_context(environment_variable(name, without))

    def _unregister(self, plugin: object) -> None:
        self.governor.manager.unregister(plugin)
        self.governor.plugins_changed()

    def close(self) -> None:
        """Uninstruments, and closes the record.

        Abandoned agents that still run stay governed: frameworks are uninstrumented when the last one has ended. Under
        a policy of this runner all they ask for is denied, since the record is closed.
        """
        with self._lock:
            self._closed = True
            uninstrument = not (self._governs and self._running)
        if uninstrument:
            self._arms.close()
        self._stack.close()

    def run(self, assignment: Assignment) -> Report:
        """Runs the agent once. Raises nothing: whatever an agent does, `sys.exit` too, is an outcome."""
        with self._lock:
            self._running += 1
        try:
            self._notebook.begin(assignment.key)
            try:
                report = _reported(self._call_agent(assignment), assignment)
            except BaseException as error:  # noqa: BLE001 - whatever an agent raises is an outcome, recorded
                report = _raised(error, assignment)
            return self._with_observations(assignment, report)
        finally:
            with self._lock:
                self._running -= 1
                uninstrument = self._closed and not self._running
            if uninstrument:
                self._arms.close()

    def _call_agent(self, assignment: Assignment) -> Any:
        scope = RolloutScope(assignment.rollout_id, assignment.attempt, task_id=assignment.task_id)
        resource = Resource(
            assignment.model_api, assignment.model, assignment.rollout_id, assignment.attempt, assignment.mode
        )
        task = Task(assignment.task)
        if inspect.iscoroutinefunction(self._agent) or inspect.iscoroutinefunction(type(self._agent).__call__):

            async def governed() -> Any:
                async with self.governor.arollout(scope):
                    return await _await(self._agent(resource, task), assignment.timeout_s)

            return asyncio.run(governed())
        with self.governor.rollout(scope):
            value = self._agent(resource, task)
            if inspect.isawaitable(value):
                return asyncio.run(_await(value, assignment.timeout_s))
            return value

    def _with_observations(self, assignment: Assignment, report: Report) -> Report:
        if self._opened is not None:
            for span in self._opened.connections(*assignment.key):  # of a box, in which one attempt runs at a time
                self._notebook.add_span(span)
        rewards, spans = self._notebook.take(assignment.key)
        counts = {**self._tally.take(*assignment.key), **report.counts}
        if counts.pop("faults", 0):
            return Report(Outcome.INFRASTRUCTURE, (), spans, DENIED_BY_FAILURE, counts)
        kept = (*rewards, *report.rewards) if report.outcome.trainable else ()
        return replace(report, rewards=kept, spans=spans, counts=counts)

    def _instrument(self, *, required: bool) -> None:
        instrumented = 0
        for adapter in self.governor.manager.hook.lgov_framework():
            if adapter.installed() and adapter.surface:
                try:
                    adapter.instrument(self.governor)
                except InstrumentationError:
                    if required:
                        raise
                    _LOG.warning(
                        "%s is governed by another governor in this process: its calls earn no AIR", adapter.name
                    )
                    continue
                self._arms.callback(adapter.uninstrument)
                instrumented += 1
        if required and not instrumented:
            raise InstrumentationError(
                "there is a policy, and no framework here that could be governed",
                hint='pip install "lgov[langchain]", or train without a policy',
            )


def check_agent(agent: Any) -> None:
    """Raises `ArgumentError` unless ``agent`` can be called with a resource and a task."""
    if not callable(agent):
        raise ArgumentError(f"the agent {agent!r} cannot be called", hint="pass a function agent(resource, task)")
    try:
        inspect.signature(agent).bind(None, None)
    except TypeError as error:
        name = getattr(agent, "__name__", repr(agent))
        raise ArgumentError(f"the agent {name} does not take a resource and a task: {error}") from error
    except ValueError:  # a built-in without a signature
        return


async def _await(value: Awaitable[Any], timeout_s: float) -> Any:
    async with asyncio.timeout(timeout_s):
        return await value


def _reported(value: Any, assignment: Assignment) -> Report:
    """The report of an agent that returned; a `Report` is taken as it is, its rewards as this attempt's. A value that is not
    a reward is counted and not trained on.
    """
    if isinstance(value, Report):
        if huge := next((reward for reward in value.rewards if _number(reward.value) is None), None):
            error = _not_a_reward({}, huge.dimension, huge.value)
            return Report(Outcome.INFRASTRUCTURE, error=error, counts={**value.counts, "bad_reward": 1})
        own = {"rollout_id": assignment.rollout_id, "attempt": assignment.attempt}
        return replace(value, rewards=tuple(replace(reward, **own) for reward in value.rewards), spans=())
    channels: Mapping[Any, Any] = value if isinstance(value, Mapping) else {"task": value}
    rewards: list[Reward] = []
    for dimension, entry in channels.items():
        number = _number(entry)
        if number is None or not isinstance(dimension, str) or not dimension:
            return Report(
                Outcome.INFRASTRUCTURE, error=_not_a_reward(value, dimension, entry), counts={"bad_reward": 1}
            )
        rewards.append(Reward(number, dimension, assignment.rollout_id, assignment.attempt, source="agent"))
    if not rewards:
        return Report(Outcome.INFRASTRUCTURE, error=_not_a_reward(value, "", None), counts={"bad_reward": 1})
    task = next((reward.value for reward in rewards if reward.dimension == "task"), rewards[0].value)
    return Report(Outcome.SUCCEEDED if task > 0 else Outcome.FAILED, tuple(rewards))


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, str | bytes | bytearray | complex):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if abs(number) <= MOST_REWARD else None


def _not_a_reward(value: Any, dimension: Any, entry: Any) -> str:
    if value is None:
        return "the agent returned nothing: it must return a number, its reward"
    if isinstance(value, Mapping):
        return f"the agent returned {dimension!r}: {entry!r:.80}: rewards are numbers up to 1e100 by name"
    return f"the agent returned {value!r:.80}, a {type(value).__name__}: a reward is a number up to 1e100"


def _raised(error: BaseException, assignment: Assignment) -> Report:
    outcome, message = outcome_of(error)
    if outcome is not Outcome.FAILED:
        return Report(outcome, error="the attempt took too long" if message == "TimeoutError: " else message)
    zero = Reward(0.0, "task", assignment.rollout_id, assignment.attempt, source="raised")
    return Report(Outcome.FAILED, (zero,), error=f"{message}{_place_of(error)}", counts={"raised": 1})


def _place_of(error: BaseException) -> str:
    """The innermost line of the agent's own code that ``error`` passed; nothing where there is none."""
    installed = (sys.prefix, sys.base_prefix, os.path.dirname(lgov_core.__file__))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*installed, "<")):
            return f" ({os.path.basename(frame.filename)}, line {frame.lineno})"
    return ""
