"""Which hosts a box may reach, and the record of every attempt."""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from lgov_core.audit.writer import EntryWriter
from lgov_core.policies.confinement import ConfineRules
from lgov_core.policies.network.addresses import why_closed
from lgov_core.types import Action, Decision, Effect, Point, Severity

#: The name of the policy on decisions about connections. Only the broker may use it.
POLICY: Final = "confinement"
#: Variables with the address of a model endpoint.
_ENDPOINTS: Final = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "LGOV_ENDPOINT")
#: Distinct places that are counted by name; the rest is counted together.
MAX_PLACES: Final = 1000
#: Connections that wait to be made into spans.
MAX_UNTRACED: Final = 1000


@dataclass(frozen=True, slots=True)
class Reach:
    """The places that may be reached, as ``host:port`` or ``*.domain:port``, each with where it comes from."""

    places: Mapping[str, str]

    def rule(self, host: str, port: int) -> str | None:
        """The place of `places` that lets ``host`` be reached at ``port``; None when there is none."""
        exact = f"{host}:{port}"
        if exact in self.places:
            return exact
        labels = host.split(".")
        wider = (f"*.{'.'.join(labels[start:])}:{port}" for start in range(1, len(labels)))
        return next((place for place in wider if place in self.places), None)

    def forwards(self) -> tuple[int, ...]:
        """Ports of this machine's loopback among the places."""
        parts = (place.rpartition(":") for place in self.places)
        return tuple(sorted({int(port) for host, _, port in parts if is_loopback(host)}))


def make_reach(rules: ConfineRules, endpoints: Iterable[tuple[str, str | None]]) -> Reach:
    """The reach of ``rules`` and, unless they keep it away, of the model ``endpoints`` (what names each, and its URL)."""
    places = dict.fromkeys(rules.connect, "connect")
    for name, url in endpoints if rules.model else ():
        parts = urlsplit(url or "")
        if parts.hostname:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            places.setdefault(f"{host.lower()}:{port}", name)
    return Reach(places)


def model_endpoints(endpoint: str | None) -> list[tuple[str, str | None]]:
    """Where the program's models are: lgov's own ``endpoint``, and what the environment says."""
    return [("--endpoint", endpoint), *((name, os.environ.get(name)) for name in _ENDPOINTS)]


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine itself."""
    return host in ("localhost", "127.0.0.1", "[::1]")


def closed_address(host: str, rule: str, address: str) -> str | None:
    """Why a host that only a whole domain allows may not be at ``address``: what it names may change; None: it may."""
    return why_closed(ipaddress.ip_address(address)) if rule.startswith("*.") else None


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


@dataclass(frozen=True, slots=True)
class Connection:
    """An attempt to reach ``place`` (``host:port``), allowed by ``rule`` or denied; ``entry_id`` is its audit entry's."""

    place: str
    rule: str | None
    why: str
    entry_id: str | None = None
    at: float = field(default_factory=time.time)

    def decided(self, rollout_id: str | None, attempt: int | None = None) -> tuple[Action, Decision]:
        """The attempt as an act of a rollout, and what was decided about it."""
        effect, severity = (Effect.DENY, Severity.HIGH) if self.rule is None else (Effect.ALLOW, Severity.LOW)
        return (
            Action(
                Point.PRE_TOOL_CALL,
                "connect",
                arguments={"place": self.place},
                framework=POLICY,
                rollout_id=rollout_id,
                attempt=attempt,
            ),
            Decision(effect, POLICY, self.rule or "connect", self.why, severity, decision_id=self.entry_id),
        )


@dataclass(slots=True)
class Attempts:
    """Every connection that was asked for: on record before it is made, and counted. Safe in any thread.

    ``untraced`` are the oldest `MAX_UNTRACED` that the box has not asked for yet, to make spans of them.
    """

    log: EntryWriter
    rollout_id: str | None
    allowed: Counter[str] = field(default_factory=Counter)
    denied: Counter[str] = field(default_factory=Counter)
    untraced: list[Connection] = field(default_factory=list[Connection])
    _lock: Any = field(default_factory=threading.Lock)

    def commit(self, place: str, rule: str | None, why: str) -> None:
        """Records an attempt to reach ``place``, allowed by ``rule`` or denied. Raises `AuditError`: then it is not made.

        Code in the box wrote ``place``, and it is shown on a terminal: what is not printable is escaped.
        """
        place, why = _printable(place), _printable(why)
        asked = Connection(place, rule, why)
        asked = replace(asked, entry_id=self.log.commit(*asked.decided(self.rollout_id)))
        counts = self.denied if rule is None else self.allowed
        with self._lock:
            if len(self.untraced) < MAX_UNTRACED:
                self.untraced.append(asked)
            counts[place if place in counts or len(counts) < MAX_PLACES else "others"] += 1

    def take_untraced(self) -> list[Connection]:
        """Returns ``untraced`` and empties it."""
        with self._lock:
            taken, self.untraced = self.untraced, []
        return taken
