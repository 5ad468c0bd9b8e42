"""The inside of a box: the record and the approvals, which the broker outside keeps."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lgov_core._util.canonical import canonical_json
from lgov_core.audit.entry import Payload
from lgov_core.audit.writer import EntryWriter
from lgov_core.confine.protocol import receive, send
from lgov_core.confine.reach import Connection
from lgov_core.errors import AuditError, PolicyError
from lgov_core.governor import ObservedDecision
from lgov_core.policies.approvals.approval import ApprovalPolicy
from lgov_core.policies.approvals.approval_requests import ApprovalRequest, ApprovalRequests
from lgov_core.policies.budgets.bookkeeping import Per
from lgov_core.policies.loader import load_policy_file
from lgov_core.policies.policy_set import PolicySet
from lgov_core.policies.registry import available_policies
from lgov_core.trace.semconv import SERVER_ADDRESS, SERVER_PORT
from lgov_core.trace.sink import decision_span
from lgov_core.types import Span

#: How long the broker has for an answer, in seconds.
ANSWER_TIMEOUT_S: Final = 10.0


class Broker:
    """The way to the broker at ``address`` (``port:token``). Connects when first used, and again after a fork.

    May be used from several threads at once. Raises `OSError` or `ValueError` when there is no answer; the caller denies.
    """

    def __init__(self, address: str) -> None:
        port, _, self._token = address.partition(":")
        self._port = int(port)
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends ``message`` and returns the answer."""
        with self._lock:
            connection, self._connection = self._connection, None  # not used again after an error
            if connection is None:
                connection = socket.create_connection(("127.0.0.1", self._port), ANSWER_TIMEOUT_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                send(connection, {"token": self._token})
            try:
                send(connection, message)
                answer = receive(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return answer

    def close(self) -> None:
        """Closes the connection; the next message opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class BrokeredLog(EntryWriter):
    """The audit record of a box: entries are made here and appended by the broker, which can be asked for nothing else.

    Fails closed: every failure is an `AuditError`, and the act must not be performed.
    """

    def __init__(self, broker: Broker, *, redact: Any = None) -> None:
        super().__init__(redact)
        self._broker = broker

    def append_entry(
        self, fields: Mapping[str, Any], arguments: Payload | None, content: Payload | None, prefix: str
    ) -> str:
        """Has the broker append an entry; returns its id once it is durable. Raises `AuditError`."""
        message = {"do": "append", "fields": dict(fields), "arguments": arguments, "content": content, "prefix": prefix}
        try:
            answer = self._broker.ask(message)
        except (OSError, ValueError) as error:
            raise AuditError(f"the audit record outside the box cannot be reached: {error}") from error
        if "id" not in answer:
            raise AuditError(str(answer.get("error")))
        return str(answer["id"])

    def connections(self, rollout_id: str, attempt: int, *, content: bool = True) -> list[Span]:
        """Spans of the connections that the box asked for since the last call; none when the broker does not answer."""
        try:
            asked = [Connection(*one) for one in self._broker.ask({"do": "trace"})["connections"]]
        except (OSError, ValueError):
            return []  # they are on record
        return [
            replace(span, attributes={**span.attributes, SERVER_ADDRESS: host, SERVER_PORT: int(port)})
            for one in asked
            for host, _, port in [one.place.rpartition(":")]
            for span in [decision_span(ObservedDecision(*one.decided(rollout_id, attempt), one.at), content=content)]
        ]

    def close(self) -> None:
        """Closes the connection to the broker."""
        self._broker.close()


class BrokeredRequests(ApprovalRequests):
    """The approval requests of a box: asked for here, kept and answered outside."""

    def __init__(self, broker: Broker, store: str) -> None:
        super().__init__(None)
        self._broker = broker
        self._store = store

    @property
    def place(self) -> str:
        """See `ApprovalRequests.place`."""
        return self._store

    def ask(
        self,
        content: Mapping[str, Any],
        digest: str,
        *,
        expires_s: float = 3600.0,
        rollout_id: str | None = None,
        waits_s: float = 0.0,
    ) -> tuple[ApprovalRequest, bool] | None:
        """See `ApprovalRequests.ask`."""
        about = {"expires_s": expires_s, "rollout_id": rollout_id, "waits_s": waits_s}
        answer = self._asked("ask", content=json.loads(canonical_json(content)), **about)
        request = answer.get("request")
        if request is None:
            return None
        found = ApprovalRequest(**request)
        if found.digest != digest:
            raise PolicyError("the broker answered about another call")
        return found, bool(answer["new"])

    def give_back(self, request_id: str) -> None:
        """See `ApprovalRequests.give_back`."""
        self._asked("give_back", request_id=request_id)

    def withdraw(self, request_id: str) -> None:
        """See `ApprovalRequests.withdraw`."""
        self._asked("withdraw", request_id=request_id)

    def _asked(self, what: str, **more: Any) -> dict[str, Any]:
        try:
            answer = self._broker.ask({"do": what, "store": self._store, **more})
        except (OSError, ValueError) as error:
            raise PolicyError(f"the approvals outside the box cannot be reached: {error}") from error
        if "error" in answer:
            raise PolicyError(str(answer["error"]))
        return answer


def open_in_box(address: str, policy: Path, redact: tuple[str, ...]) -> tuple[PolicySet, BrokeredLog]:
    """The policies of a file and the record, with the broker at ``address`` behind both. Raises `PolicyFileError`."""
    broker = Broker(address)

    def approval(
        tools: Sequence[str] = ("*",),
        *,
        timeout_s: float = 300.0,
        expires_s: float = 3600.0,
        wait_s: float = 0.0,
        per: Per = "global",
        command: Sequence[str] = (),
        webhook: str | None = None,
        store: str = "",
        name: str = "ApprovalPolicy",
    ) -> ApprovalPolicy:
        del command, webhook  # the broker notifies
        kept: Any = {"store": BrokeredRequests(broker, store), "wait_s": wait_s, "per": per, "name": name}
        return ApprovalPolicy(tools, timeout_s=timeout_s, expires_s=expires_s, **kept)

    policies = load_policy_file(policy, registry={**available_policies(), "approval": approval})
    return policies, BrokeredLog(broker, redact=redact or None)
