"""Chooses among several servers that have the same models, and leaves out those that fail."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from lgov_core.errors import EndpointError
from lgov_core.gateway.limits import Reading
from lgov_core.gateway.operation import log_event

#: Nothing of the request was sent, so another server may be asked.
UNREACHABLE: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
#: What a connection raises when it cannot be made, breaks, or takes too long.
FAILURES: Final = (aiohttp.ClientError, OSError)
#: Statuses after which another server is asked: the model has not run, or its reply is lost.
_RETRIED_STATUS = frozenset({429, 502, 503})
_FAILING_STATUS = frozenset({502, 503})
_EJECT_AFTER, _EJECT_S, _LONGEST_EJECTION_S = 3, 5.0, 60.0


@dataclass(slots=True, eq=False)
class Replica:
    """One server. ``version`` is that of its weights as it was registered, None where it was not given.

    Raises `EndpointError` unless ``url`` is the http(s) URL of a server, without a user and a password.
    """

    url: str
    version: int | None = None
    running: int = 0
    failures: int = 0
    failed: int = 0
    ejected_until: float = 0.0
    reachable: bool = True
    label: str = field(init=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.username
        except ValueError:
            fine = False
        if not fine or not self.url.isascii() or not self.url.isprintable():
            raise EndpointError(f"{self.url!r} is not a URL of a server", hint="for example http://127.0.0.1:8000/v1")
        parts = urlsplit(self.url)
        self.label = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"

    def up(self, now: float) -> bool:
        """Returns whether it gets calls."""
        return self.reachable and now >= self.ejected_until


class UpstreamPool:
    """Chooses among servers. For one event loop.

    The calls of one rollout go to one server, for its prefix cache (rendezvous hashing: when a server comes or goes, only
    its own rollouts move); calls of no rollout go to the one with the fewest calls. A server is left out after three
    failures in a row, for five seconds that double each time up to a minute, or when it does not answer a health check,
    made every ``check_s`` seconds. When none is left, all are tried. A single server is checked, and gets all calls.

    A call goes to the next server only if it is certain that it was not answered: the connection could not be made, or
    the answer was 429, 502 or 503. A connection that breaks later may have cost a reply, so it is not repeated.
    """

    def __init__(self, urls: Sequence[str], *, check_s: float = 5.0) -> None:
        if not urls or len(set(urls)) != len(urls):
            raise EndpointError("a pool needs at least one upstream, and each only once", status=500)
        self._check_s = check_s
        self._checking: asyncio.Task[None] | None = None
        self._check: Callable[[str], Awaitable[bool]] | None = None
        self.is_probed = False
        self.replicas: list[Replica] = [Replica(url.rstrip("/")) for url in urls]

    def start(self, check: Callable[[str], Awaitable[bool]]) -> None:
        """Begins the health checks; ``check`` says whether the server at a URL answers."""
        self._check = check
        self._checking = asyncio.create_task(self._keep_checking())

    async def close(self) -> None:
        """Ends the health checks."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
            self._checking = None

    def put(self, url: str, version: int | None = None) -> None:
        """Adds a server, or changes the version of one that is there."""
        url = url.rstrip("/")
        for replica in self.replicas:
            if replica.url == url:
                replica.version = version
                return
        self.replicas.append(Replica(url, version))

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(self._check_s)
            await self.probe()

    async def probe(self) -> None:
        """Asks every server whether it answers."""
        if self._check is not None:
            self.is_probed = True
            await asyncio.gather(*(_check_one(replica, self._check) for replica in self.replicas))

    def order(self, sticky: str | None) -> list[Replica]:
        """The servers in the order in which a call should try them."""
        if len(self.replicas) == 1:
            return self.replicas
        now = time.monotonic()
        if sticky is None:
            return sorted(self.replicas, key=lambda replica: (not replica.up(now), replica.running))
        return sorted(self.replicas, key=lambda replica: (not replica.up(now), _weight(sticky, replica.url)))

    async def ask(
        self, send: Callable[[Replica], Awaitable[aiohttp.ClientResponse]], sticky: str | None
    ) -> tuple[Replica, aiohttp.ClientResponse]:
        """The first answer that needs no retry at another server. The caller reads it and then calls `done`.

        ``send`` raises `FAILURES`, which count against the server. The last server's answer or error goes to the caller.
        """
        *others, last = self.order(sticky)
        for replica in others:
            try:
                response = await self._ask_one(send, replica)
            except UNREACHABLE:
                continue
            if response.status not in _RETRIED_STATUS:
                return replica, response
            self.done(replica, response)
        return last, await self._ask_one(send, last)

    async def _ask_one(
        self, send: Callable[[Replica], Awaitable[aiohttp.ClientResponse]], replica: Replica
    ) -> aiohttp.ClientResponse:
        replica.running += 1
        try:
            response = await send(replica)
        except BaseException as error:
            replica.running -= 1
            if isinstance(error, FAILURES):
                self.count_failure(replica)
            raise
        if response.status in _FAILING_STATUS:
            self.count_failure(replica)
        elif response.status not in _RETRIED_STATUS:
            replica.failures = 0
        return response

    def done(self, replica: Replica, response: aiohttp.ClientResponse) -> None:
        """The answer has been read, or is not needed."""
        response.release()
        replica.running -= 1

    def count_failure(self, replica: Replica) -> None:
        """Counts a call in which the server failed; three in a row leave it out for a while."""
        replica.failed += 1
        replica.failures += 1
        if replica.failures >= _EJECT_AFTER and len(self.replicas) > 1:
            again = replica.failures - _EJECT_AFTER
            replica.ejected_until = time.monotonic() + min(_EJECT_S * 2.0 ** min(again, 10), _LONGEST_EJECTION_S)

    def readings(self) -> Iterable[Reading]:
        """The metrics of the servers."""
        now = time.monotonic()
        up = "1 if the upstream answered its last probe and is not left out after failures, else 0; by upstream."
        running = "Calls that the upstream is answering, by upstream."
        failed = "Calls in which the upstream failed, by upstream."
        metrics: tuple[tuple[str, str, str, Callable[[Replica], float]], ...] = (
            ("gauge", "up", up, lambda replica: replica.up(now)),
            ("gauge", "running", running, lambda replica: replica.running),
            ("counter", "failures", failed, lambda replica: replica.failed),
        )
        for kind, name, text, value in metrics:
            values = {replica.label: float(value(replica)) for replica in self.replicas}
            yield kind, f"lgov_upstream_{name}", text, "upstream", values


async def _check_one(replica: Replica, check: Callable[[str], Awaitable[bool]]) -> None:
    try:
        reachable = await check(replica.url)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it does not answer
        reachable = False
    if reachable != replica.reachable:
        log_event(logging.WARNING, "upstream is back" if reachable else "upstream is down", {"upstream": replica.label})
    replica.reachable = reachable
    if reachable and replica.failures:
        replica.failures, replica.ejected_until = 0, 0.0


def _weight(sticky: str, url: str) -> bytes:
    return hashlib.blake2b(f"{sticky}\0{url}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
