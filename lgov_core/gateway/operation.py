"""The operator's view of a server: what it logs, and whether it can serve calls (``/readyz``).

A log line has a level, an event and fields, as text or as one JSON object. Keys are never in it, and what users, models and
tools wrote only with the setting ``log_content``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from logging.handlers import WatchedFileHandler
from typing import TYPE_CHECKING, Any, Final

from lgov_core.errors import EndpointError, LgovError, SettingsError, StoreError
from lgov_core.gateway.door import requester
from lgov_core.gateway.limits import Busy, Reading
from lgov_core.governor import ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.store.database import DatabaseUnavailable, OutcomeUnknown
from lgov_core.types import Effect

if TYPE_CHECKING:
    from lgov_core.gateway.protocol import Attribution
    from lgov_core.settings import Settings
    from lgov_core.store import TraceStore

_LOG = logging.getLogger("lgov.gateway")
#: The hint of errors whose cause is not told to clients.
IN_THE_LOG: Final = "those who run the endpoint find the cause in its log"
#: Seconds between two probes, and that who asks waits for the answer of one.
_PROBE_S: Final = 2.0
_PROBE_LIMIT_S: Final = 2.0
#: Seconds without an answer, and without a call recorded, after which what is probed hangs: more than a store tries by itself.
_HANGS_S: Final = 20.0
#: Agents, and keys, that the metrics name.
_MOST_NAMES: Final = 200


def log_event(level: int, event: str, fields: Mapping[str, Any], content: Mapping[str, Any] | None = None) -> None:
    """Logs an event of a server; fields that are None are left out. ``content`` is logged only where that was asked for."""
    if _LOG.isEnabledFor(level):
        _LOG.log(level, event, extra={"lgov_fields": fields, "lgov_content": content or {}})


def log_failure(error: LgovError, status: int, who: Attribution) -> None:
    """Logs that a request was answered with an error: with its cause from status 500 on, and for a bad key."""
    level = logging.ERROR if status >= 500 else logging.WARNING if status in (401, 403, 429) else logging.INFO
    if not _LOG.isEnabledFor(level):
        return
    where = getattr(error, "where", None)
    # The message of a smaller error quotes the request, but for that about a key; that of a refusal what a policy says.
    quotes = (status < 500 and status not in (401, 403)) or hasattr(error, "decision_id")
    fields = {
        **_of_caller(who),
        "status": status,
        "code": error.code,
        "error": None if quotes else error.message,
        "upstream": where,
        "cause": None if quotes else " <- ".join(_causes(error, content=False)) or None,
    }
    content = {"error": error.message, "cause": " <- ".join(_causes(error, content=True)) or None}
    log_event(level, "request failed", fields, {**content, "detail": getattr(error, "detail", None)})


def in_full(error: LgovError) -> str:
    """The message of an error with what caused it, for those who run the server; its client gets the message alone."""
    where, causes = getattr(error, "where", None), _causes(error, content=True)
    return ": ".join([error.message if where is None else f"{error.message} ({where})", *causes])


def _causes(error: BaseException, *, content: bool) -> list[str]:
    causes: list[str] = []
    while (cause := error.__cause__) is not None and len(causes) < 4:
        # Others may quote what they were working on.
        names_addresses_only = isinstance(cause, OSError | LgovError) or type(cause).__module__.startswith("aiohttp")
        name = type(cause).__name__
        causes.append(f"{name}: {cause}" if content or names_addresses_only else name)
        error = cause
    return causes


def _of_caller(who: Attribution) -> dict[str, Any]:
    return {"rollout": who.rollout_id, "attempt": who.attempt, "agent": who.agent}


def log_request(route: str | None, status: int, times: tuple[float, float | None], who: Attribution) -> None:
    """Logs a request that was answered: the seconds to its end and to the first byte. Status 0: it got no answer.

    ``ended`` says how a stream ended that is not whole. Of the seconds to its end it says how many the call waited for a place,
    was judged, and waited for the upstream.
    """
    spent, ended = ({}, None) if (sender := requester()) is None else (sender.spent, sender.ended)
    took, first, *parts = (
        None if seconds is None else round(seconds * 1000, 1) for seconds in (*times, *spent.values())
    )
    spent_ms = {f"{what}_ms": ms for what, ms in zip(spent, parts, strict=True)}
    fields = {
        "route": route,
        "status": status,
        "ended": ended,
        "ms": took,
        "first_byte_ms": first,
        **spent_ms,
        **_of_caller(who),
    }
    log_event(logging.INFO, "request", fields)


class DenialLog:
    """Logs what policies denied, or would have in shadow mode: policy, rule, what was named, and the id of the decision.

    It counts them by policy and rule too, for the metrics.
    """

    def __init__(self) -> None:
        self._denied, self._shadowed = Counter[str](), Counter[str]()

    def readings(self) -> Iterable[Reading]:
        """The metrics."""
        yield (
            "counter",
            "lgov_denials",
            "Denials, by policy and rule.",
            "rule",
            {**self._denied},
        )
        shadowed = "Denials that shadow mode did not enforce, by policy and rule."
        yield "counter", "lgov_shadow_denials", shadowed, "rule", {**self._shadowed}

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """See `lgov_core.hookspecs.lgov_observe`."""
        if not isinstance(event, ObservedDecision):
            return
        action, decision = event.action, event.decision
        verdict = decision.unenforced or decision
        if verdict.effect < Effect.ESCALATE:
            return
        counts = self._denied if decision.unenforced is None else self._shadowed
        counts[f"{verdict.policy}/{verdict.rule}"] += 1
        fields = {
            "point": action.point.value,
            "name": action.name,
            "policy": verdict.policy,
            "rule": verdict.rule,
            "severity": verdict.severity.value,
            "shadow": decision.unenforced is not None or None,
            "decision": decision.decision_id,
            "rollout": action.rollout_id,
            "attempt": action.attempt,
            "agent": action.agent,
        }
        log_event(logging.WARNING, "denied", fields, {"reason": verdict.reason})


# ---------------------------------------------------------------------- where it is logged to


@contextmanager
def logging_by(settings: Settings) -> Generator[None]:
    """Logs what servers of this process do, as ``settings`` say, until the block ends. Raises `SettingsError`.

    The log goes to standard error, or to the end of ``log_file``, which is opened again when it was moved away (logrotate).
    """
    if settings.log_file is None:
        handler: logging.Handler = _LogStream(sys.stderr)
    else:
        try:
            handler = _LogFile(settings.log_file, encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"the log {settings.log_file} cannot be written: {error.strerror}") from error
    handler.setFormatter(_Lines(as_json=settings.log_json, content=settings.log_content))
    logger = logging.getLogger("lgov")
    before = logger.level, logger.propagate
    logger.setLevel(settings.log_level.upper())
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        with suppress(OSError):
            handler.close()


class _SaysOnce(logging.Handler):
    """Says on standard error, once and in a line, that the log cannot be written; the server goes on without."""

    _has_said = False

    def handleError(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.handleError`."""
        if not self._has_said:
            self._has_said = True
            fields = {"error": str(sys.exc_info()[1])}
            about = {"name": _LOG.name, "levelno": logging.ERROR, "levelname": "ERROR", "lgov_fields": fields}
            with suppress(OSError, ValueError):
                sys.stderr.write(
                    self.format(logging.makeLogRecord({**about, "msg": "the log cannot be written"})) + "\n"
                )


class _LogStream(_SaysOnce, logging.StreamHandler[Any]):
    pass


class _LogFile(_SaysOnce, WatchedFileHandler):
    """A file that only its owner may read."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=partial(os.open, mode=0o600))

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`; also a file that cannot be opened again is an error of the log alone."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


class _Lines(logging.Formatter):
    """Writes a record as one line. Of an exception it writes type and place, and its text only with ``content``."""

    def __init__(self, *, as_json: bool, content: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._content = content

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **({} if (sender := requester()) is None else sender.log_fields()),
            **getattr(record, "lgov_fields", {}),
            **(getattr(record, "lgov_content", {}) if self._content else {}),
        }
        if record.exc_info and (error := record.exc_info[1]) is not None:
            frames = traceback.extract_tb(error.__traceback__)[-6:]
            fields["exception"] = f"{type(error).__name__}: {error}" if self._content else type(error).__name__
            fields["at"] = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
        fields = {name: value for name, value in fields.items() if value is not None}
        if self._as_json:
            return json.dumps(fields, default=str)
        head = " ".join(str(fields.pop(name)) for name in ("time", "level", "logger", "event"))
        return " ".join([head, *(f"{name}={_as_word(value)}" for name, value in fields.items())])


def _as_word(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and not set(text) & set(' "=') else json.dumps(text)


class UseCounts:
    """Counts of recorded calls and their tokens by agent and by key (the rollout that it is for), as ``metrics_by`` says.

    At most 200 names of each are counted apart, the rest under ``(others)``: a metric system keeps each forever. For one
    event loop.
    """

    def __init__(self, metrics_by: Sequence[str]) -> None:
        self._counts = {kind: (Counter[str](), Counter[str]()) for kind in metrics_by}

    def add(self, who: Attribution, calls: int, tokens: int) -> None:
        """Counts ``calls`` of ``who`` with their ``tokens``."""
        for kind, (of_calls, of_tokens) in self._counts.items():
            name = (who.agent if kind == "agent" else who.rollout_id) or "(none)"
            if name not in of_calls and len(of_calls) >= _MOST_NAMES:
                name = "(others)"
            of_calls[name] += calls
            of_tokens[name] += tokens

    def readings(self) -> Iterable[Reading]:
        """The metrics."""
        for kind, (of_calls, of_tokens) in self._counts.items():
            yield "counter", f"lgov_calls_by_{kind}", f"Recorded model calls, by {kind}.", kind, dict(of_calls)
            yield "counter", f"lgov_tokens_by_{kind}", f"Tokens of recorded calls, by {kind}.", kind, dict(of_tokens)


# ---------------------------------------------------------------------- whether it can serve


def is_outage(error: BaseException | None) -> bool:
    """Returns whether an error of a store came from its database or the disk, not from what was to be stored."""
    while error is not None:
        kinds = {kind.__name__ for kind in type(error).__mro__}  # of sqlite3 and psycopg: PEP 249 names them
        if isinstance(error, DatabaseUnavailable | OSError):
            return True
        if "DatabaseError" in kinds and kinds.isdisjoint(("DataError", "IntegrityError")):
            return True
        error = error.__cause__
    return False


def for_client(error: LgovError) -> LgovError:
    """The error as a client may read it: what the store says names its address, so that stays in the log."""
    return unrecorded(error) if isinstance(error, StoreError) else error


def unrecorded(error: StoreError | None = None) -> EndpointError:
    """The error for the client of a call that could not be recorded, or of which nobody knows whether it is."""
    if isinstance(error, OutcomeUnknown):
        what = "the call was answered and may have been recorded: the store went away meanwhile"
        return Busy(what, status=503, retry_after_s=Readiness.RETRY_AFTER_S)
    if error is None or is_outage(error):
        return Busy("the call cannot be recorded now", status=503, retry_after_s=Readiness.RETRY_AFTER_S)
    return EndpointError("the call cannot be recorded", status=500, hint=IN_THE_LOG)


#: What is probed: how the log names it, and what ``/readyz`` says of it; None: calls are answered without it.
_PROBED: Final[Mapping[str, tuple[str, str | None]]] = {
    "store": ("store", "it cannot be written"),
    "audit": ("audit record", "it cannot be written"),
    "heads": ("second place for heads", None),
    "policy": ("policy", "what its rules count or ask in cannot be written"),
    "keys": ("file of revoked keys", "the file of revoked keys cannot be used"),
    "admin_keys": ("file of admin keys", None),
}


class _Probe:
    """Asks one thing whether it can be used. ``failed`` is why not, by the last answer; None: it can.

    It asks in a thread of its own, so it waits behind no call, and asks again only after the answer. Where all threads have
    much to do an answer is late, which means nothing while calls are recorded: ``recorded_at`` says when the last one was.
    """

    def __init__(self, name: str, ping: Callable[[], object], recorded_at: Callable[[], float]) -> None:
        self.name, self._ping, self._recorded_at = name, ping, recorded_at
        self.failed: str | None = None
        self._answered: asyncio.Future[None] | None = None
        self._asked_at = 0.0

    async def ask(self) -> None:
        """Asks, and waits a little for the answer. One that is late changes nothing, until it hangs."""
        if self._answered is None:
            self._answered, self._asked_at = asyncio.get_running_loop().create_future(), time.monotonic()
            run, name = partial(self._run, self._answered), f"lgov-probe-{self.name}"
            threading.Thread(target=run, name=name, daemon=True).start()
        answered = self._answered
        await asyncio.wait([answered], timeout=_PROBE_LIMIT_S)
        if not answered.done() and time.monotonic() - max(self._asked_at, self._recorded_at()) >= _HANGS_S:
            self._note(f"it has not answered for {_HANGS_S:g} s, in which no call was recorded")

    def _run(self, answered: asyncio.Future[None]) -> None:
        failed: str | None = None
        try:
            self._ping()
        except BaseException as error:  # noqa: BLE001 - whatever it raises, it cannot be used
            failed = error.message if isinstance(error, LgovError) else type(error).__name__
        with suppress(RuntimeError):  # a loop that was closed, where nobody waits any more
            answered.get_loop().call_soon_threadsafe(self._take, answered, failed)

    def _take(self, answered: asyncio.Future[None], failed: str | None) -> None:
        self._answered = None
        self._note(failed)
        answered.set_result(None)

    def _note(self, failed: str | None) -> None:
        """Logs an answer that is another than before."""
        if (failed is None) != (self.failed is None):
            level, state = (logging.WARNING, "back") if failed is None else (logging.ERROR, "down")
            log_event(level, f"{_PROBED[self.name][0]} is {state}", {"cause": failed})
        self.failed = failed


class Readiness:
    """Tells whether an endpoint can serve calls: its store, record, policies, keys, an upstream. For one event loop.

    The store and the ``pings`` of gate and keys are probed every two seconds (`watching`), in threads, so that a call while the
    store is down is refused at once, and one that runs when that begins is answered before the store has tried to connect for
    long. A commit that failed counts as an outage of five seconds too. What an endpoint does not have cannot be missing. Fails
    closed: what does not answer, while no call is recorded either, is down after `_HANGS_S` seconds.
    """

    RETRY_AFTER_S: Final = 5.0

    def __init__(
        self,
        store: TraceStore | None,
        engines: Sequence[Any],
        pings: Mapping[str, Callable[[], object]],
    ) -> None:
        self._store = store
        ping: Callable[[], object] | None = getattr(store, "ping", None)
        every = {**({} if ping is None else {"store": ping}), **pings}
        self._recorded_at = 0.0
        self._probes = {name: _Probe(name, ping, lambda: self._recorded_at) for name, ping in every.items()}
        self._engines = engines
        #: The end of the outage that the last failed commit began, by the monotonic clock.
        self.down_until = 0.0
        self._committing: set[asyncio.Timeout] = set()

    def commit_failed(self, error: BaseException) -> None:
        """The store did not take a call: an outage, unless it is that call which cannot be stored."""
        if is_outage(error):
            self.down_until = time.monotonic() + self.RETRY_AFTER_S

    @asynccontextmanager
    async def committing(self) -> AsyncGenerator[None]:
        """Ends the wait of the block for the store once a probe finds it down: what was asked of it may still take place.

        Raises `OutcomeUnknown` then.
        """
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._committing.add(limit)
                yield
            self._recorded_at = time.monotonic()
        except TimeoutError as error:
            if not limit.expired():
                raise
            failed = self._probes["store"].failed
            what = "the store went down while a call was being recorded, which it may have done or still do"
            raise OutcomeUnknown(f"{what}: {failed}") from error
        finally:
            self._committing.discard(limit)

    def require_store(self) -> None:
        """Raises `Busy` (503) while the store is down: the call could not be recorded."""
        if self.store_is_down():
            raise unrecorded()

    def store_is_down(self) -> bool:
        """Returns whether the last probe failed, or a commit a moment ago."""
        probe = self._probes.get("store")
        return (probe is not None and probe.failed is not None) or time.monotonic() < self.down_until

    async def problems(self) -> dict[str, str | None]:
        """By part what is wrong with it, None for nothing: ``store``, ``audit``, ``policy``, ``keys``, ``upstream``."""
        await self._probe()
        return {
            **{name: _PROBED[name][1] for name, probe in self._probes.items() if probe.failed is not None},
            "store": _PROBED["store"][1] if self.store_is_down() else None,
            "upstream": await self._upstream_problem(),
        }

    async def _upstream_problem(self) -> str | None:
        pools = [engine.pool for engine in self._engines if getattr(engine, "pool", None) is not None]
        await asyncio.gather(*(pool.probe() for pool in pools if not pool.is_probed))
        answering = any(replica.reachable for pool in pools for replica in pool.replicas)
        return "none answers" if pools and not answering else None

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Probes until the block ends."""
        probing = asyncio.create_task(self._keep_probing())
        try:
            yield
        finally:
            probing.cancel()
            with suppress(asyncio.CancelledError):
                await probing

    async def _keep_probing(self) -> None:
        while self._probes:
            await asyncio.sleep(_PROBE_S)
            await self._probe()

    async def _probe(self) -> None:
        await asyncio.gather(*(probe.ask() for probe in self._probes.values()))
        store = self._probes.get("store")
        while store is not None and store.failed is not None and self._committing:
            self._committing.pop().reschedule(asyncio.get_running_loop().time())

    def readings(self) -> Iterable[Reading]:
        """A metric of each thing that is probed."""
        if self._store is not None:
            up = "1 while the store takes calls, else 0."
            yield "gauge", "lgov_store_up", up, None, {"": float(not self.store_is_down())}
        for name, probe in self._probes.items():
            if name != "store":
                up = f"1 while the {_PROBED[name][0]} works, else 0."
                yield "gauge", f"lgov_{name}_up", up, None, {"": float(probe.failed is None)}
