"""The outside of a box: appends its entries to the record, and keeps its approval requests.

The box can add entries, ask about approvals of the policies that its policy file names, and ask for its own connections, to
trace them. It can read no entry, change none, and answer no request. Its entries have the field ``inside``,
which it cannot take away.
"""

from __future__ import annotations

import hmac
import json
import socket
import threading
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple
from typing import Any, Final

from lgov_core._util.canonical import fingerprint
from lgov_core.audit.entry import PAYLOAD_LIMIT, Payload
from lgov_core.audit.writer import EntryWriter
from lgov_core.confine.protocol import receive, send
from lgov_core.confine.reach import POLICY, Attempts
from lgov_core.errors import AuditError, LgovError
from lgov_core.policies.approvals.approval_requests import ApprovalRequests

#: Kinds of entries that a governed process makes, by the prefix of their ids.
_KINDS: Final = {"aud": "decision", "out": "outcome"}
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
            "trace": lambda message: {"connections": [astuple(one) for one in self._attempts.take_untraced()]},
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
        if len(json.dumps(fields)) > MAX_FIELDS:
            raise AuditError("the fields of this entry are too long")
        texts = [_payload(message[name]) for name in ("arguments", "content")]
        fields = {**fields, "inside": True, "policy_digest": None, "code_version": None}  # the rest is known outside
        return {"id": self._log.append_entry(fields, texts[0], texts[1], prefix)}

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        content: dict[str, Any] = message["content"]
        requests = self._approvals[message["store"]]
        # The digest is taken here: a person must approve what is shown.
        found = requests.ask(
            content,
            fingerprint(content),
            expires_s=float(message["expires_s"]),
            rollout_id=None if message.get("rollout_id") is None else str(message["rollout_id"]),
            waits_s=float(message.get("waits_s", 0)),
        )
        return {"request": None} if found is None else {"request": asdict(found[0]), "new": found[1]}

    def _about_request(
        self, message: dict[str, Any], change: Callable[[ApprovalRequests, str], None]
    ) -> dict[str, Any]:
        change(self._approvals[message["store"]], str(message["request_id"]))
        return {}


def _claims_to_be_the_box(fields: Mapping[str, Any]) -> bool:
    """Whether a name in ``fields`` reads as that of the box's own policy: in other letters, or with what is not shown."""
    parts: list[dict[str, Any]] = fields.get("parts") or []
    named = (*(fields.get(key) for key in ("policy", "framework", "point")), *(part["policy"] for part in parts))
    plain = (filter(str.isalnum, unicodedata.normalize("NFKC", str(name)).casefold()) for name in named)
    return any("".join(letters) == POLICY for letters in plain)


def _payload(given: Any) -> Payload | None:
    if given is None:
        return None
    stored, size = given
    if not isinstance(stored, str) or not isinstance(size, int) or len(stored) > PAYLOAD_LIMIT:
        raise AuditError("the texts of this entry are not as a governed process sends them")
    json.loads(stored)
    return Payload(stored, size)
