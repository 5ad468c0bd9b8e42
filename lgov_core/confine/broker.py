"""The two sides of a box's record and approvals: the broker outside, which keeps them, and what stands for them inside.

The box can add entries, ask about approvals of the policies that its policy file names, and ask for its own connections, to
trace them. It can read no entry, change none, and answer no request. Its entries have the field ``inside``, which it cannot
take away. The two sides exchange one JSON object a message, with its length in front, over TCP.
"""

from __future__ import annotations

import functools
import hmac
import json
import os
import socket
import struct
import threading
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any, Final

from msgspec import convert

from lgov_core._util.json_text import canonical_json, fingerprint
from lgov_core.audit.entry import PAYLOAD_LIMIT, EntryWriter, Payload
from lgov_core.confine.proxy import POLICY, AskedConnection, Attempts
from lgov_core.errors import AuditError, LgovError, PolicyError
from lgov_core.governor import ObservedDecision
from lgov_core.policies.approvals.policy import ApprovalPolicy
from lgov_core.policies.approvals.requests import ApprovalRequest, ApprovalRequests, Asking
from lgov_core.policies.flow import FlowPolicy
from lgov_core.policies.loader import load_policy_file
from lgov_core.policies.policy_set import PolicySet
from lgov_core.policies.registry import available_policies
from lgov_core.trace.semconv import SERVER_ADDRESS, SERVER_PORT
from lgov_core.trace.sink import decision_span
from lgov_core.types import Policy, PolicyFactory, Span

#: Of a message, in bytes. An entry's texts are cut to 64 KiB each before.
MAX_MESSAGE: Final = 4 << 20
_LENGTH: Final = struct.Struct("!I")


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Sends a message. Raises `OSError`."""
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> dict[str, Any]:
    """The next message. Raises `OSError` when the connection ends, and `ValueError` for what is not a message."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > MAX_MESSAGE:
        raise ValueError(f"a message of {length} bytes")
    message = json.loads(_exactly(connection, length))
    if not isinstance(message, dict):
        raise ValueError("a message that is not an object")
    return message  # pyright: ignore[reportUnknownVariableType]


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise ConnectionError("the connection ended")
        data += piece
    return bytes(data)


#: Kinds of entries that a governed process makes, by the prefix of their ids.
_KINDS: Final = {"aud": "decision", "out": "outcome", "ung": "ungoverned"}
#: Of the fields of an entry, in characters of JSON.
MAX_FIELDS: Final = 256 << 10


class BoxBroker:
    """Serves the processes of one box that know ``token``. ``approvals`` are by the place that the policy file gives them."""

    def __init__(
        self, log: EntryWriter, attempts: Attempts, approvals: Mapping[str, ApprovalRequests], token: str
    ) -> None:
        self._log = log
        self._attempts = attempts
        self._approvals = approvals
        self._token = token
        self._answers: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "append": self._append,
            "ask": self._ask,
            "trace": lambda message: {
                "connections": [astuple(connection) for connection in self._attempts.take_untraced()]
            },
            "give_back": lambda message: self._about_request(message, ApprovalRequests.give_back),
            "withdraw": lambda message: self._about_request(message, ApprovalRequests.withdraw),
        }

    def serve(self, listener: socket.socket) -> None:
        """Answers every connection to ``listener``, each in a thread."""

        def run() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

        threading.Thread(target=run, daemon=True).start()

    def _serve_one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError, RecursionError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            token = receive(connection).get("token")
            if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self._token.encode()):
                return
            while True:
                send(connection, self._answer(receive(connection)))

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._answers[message["do"]](message)
        except LgovError as error:
            return {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever the box sends, the next one must be served
            return {"error": f"the broker cannot read the message: {type(error).__name__}"}

    def _append(self, message: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = message["fields"]
        prefix: str = message["prefix"]
        if fields["kind"] != _KINDS[prefix] or _claims_to_be_the_box(fields):
            raise AuditError("this entry is not one that a governed process makes")
        if prefix == "ung":
            convert({**fields, "kind": {}, "rollout_id": {}}, dict[str, dict[str, int]])
        if len(json.dumps(fields)) > MAX_FIELDS:
            raise AuditError("the fields of this entry are too long")
        texts = [_payload(message[name]) for name in ("arguments", "content")]
        fields = {**fields, "inside": True, "policy_digest": None, "code_version": None}  # the rest is known outside
        return {"id": self._log.append_entry(fields, texts[0], texts[1], prefix)}

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        asking = convert(message["asking"], Asking)
        # The digest is taken here: a person must approve what is shown.
        request = self._approvals[message["store"]].ask(replace(asking, digest=fingerprint(asking.content)))
        return {"request": None} if request is None else {"request": asdict(request[0]), "new": request[1]}

    def _about_request(self, message: dict[str, Any], change: Callable[..., None]) -> dict[str, Any]:
        change(self._approvals[message["store"]], str(message["request_id"]), *map(str, message.get("calls", ())))
        return {}


def _claims_to_be_the_box(fields: Mapping[str, Any]) -> bool:
    """True if a name in ``fields`` reads as that of the box's own policy: in other letters, or with invisible ones."""
    parts: list[dict[str, Any]] = fields.get("parts") or []
    named = (*(fields.get(key) for key in ("policy", "framework", "point")), *(part["policy"] for part in parts))
    plain = (filter(str.isalnum, unicodedata.normalize("NFKC", str(name)).casefold()) for name in named)
    return any("".join(letters) == POLICY for letters in plain)


def _payload(value: Any) -> Payload | None:
    if value is None:
        return None
    stored, size = value
    if not isinstance(stored, str) or not isinstance(size, int) or len(stored) > PAYLOAD_LIMIT:
        raise AuditError("the texts of this entry are not as a governed process sends them")
    json.loads(stored)
    return Payload(stored, size)


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
            connections = [
                AskedConnection(*connection) for connection in self._broker.ask({"do": "trace"})["connections"]
            ]
        except (OSError, ValueError):
            return []  # they are on record
        return [
            replace(span, attributes={**span.attributes, SERVER_ADDRESS: host, SERVER_PORT: int(port)})
            for connection in connections
            for host, _, port in [connection.place.rpartition(":")]
            for span in [
                decision_span(
                    ObservedDecision(*connection.decided(rollout_id, attempt), connection.at), content=content
                )
            ]
        ]

    def close(self) -> None:
        """Closes the connection to the broker."""
        self._broker.close()


class BrokeredRequests(ApprovalRequests):
    """The approval requests of a box: asked for here, kept and answered outside."""

    def __init__(self, broker: Broker, store: str) -> None:
        super().__init__(None, quiet=True)
        self._broker = broker
        self._store = store

    @property
    def place(self) -> str:
        """See `ApprovalRequests.place`."""
        return self._store

    def ask(self, asking: Asking) -> tuple[ApprovalRequest, bool] | None:
        """See `ApprovalRequests.ask`; the wait is announced outside."""
        exact = json.loads(canonical_json(asking.content))
        answer = self._asked("ask", asking=asdict(replace(asking, content=exact)))
        if answer.get("request") is None:
            return None
        approval = convert(answer["request"], ApprovalRequest)
        if approval.digest != asking.digest:
            raise PolicyError("the broker answered about another call")
        return approval, bool(answer["new"])

    def give_back(self, request_id: str) -> None:
        """See `ApprovalRequests.give_back`."""
        self._asked("give_back", request_id=request_id)

    def withdraw(self, request_id: str, *calls: str) -> None:
        """See `ApprovalRequests.withdraw`."""
        self._asked("withdraw", request_id=request_id, calls=calls)

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

    def asking(kind: PolicyFactory) -> PolicyFactory:
        @functools.wraps(kind)  # its options
        def make(*arguments: Any, store: str = "", **options: Any) -> Policy:
            own = {
                name: value for name, value in options.items() if name not in ("command", "webhook")
            }  # the broker notifies
            return kind(*arguments, store=BrokeredRequests(broker, store), **own)

        return make

    asked_outside = {"approval": asking(ApprovalPolicy), "flow": asking(FlowPolicy)}
    policies = load_policy_file(policy, registry={**available_policies(), **asked_outside})
    return policies, BrokeredLog(broker, redact=redact or None)
