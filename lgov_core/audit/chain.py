"""The hash chain of an audit record: every entry's hash covers its body and the hash of its writer's entry before it."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lgov_core.audit.entry import Payload, body_text

_DOMAIN: Final = b"lgov-audit-v2\0"
#: Bytes of a salt.
_SALT: Final = 16


class Row(NamedTuple):
    """An entry's columns in the table ``entries``, without its position; `lgov_core.audit.verify` states their format."""

    writer: str
    seq: int
    rollout_id: str | None
    body: str
    prev_hash: bytes
    hash: bytes
    salt: bytes | None
    arguments: str | None
    content: str | None


class Chain:
    """The chain of one writer, which it names with a random id. For one thread at a time."""

    def __init__(self) -> None:
        self.writer = uuid.uuid4().hex
        self._seq, self._hash = 0, bytes(32)

    def next_id(self, prefix: str) -> str:
        """The id of the next entry."""
        return f"{prefix}_{self.writer[:16]}_{self._seq + 1}"

    def next_row(
        self, entry_id: str, fields: Mapping[str, Any], arguments: Payload | None, content: Payload | None
    ) -> Row:
        """The next entry; the chain itself does not move until `append`. Raises `ValueError` as `body_text` does."""
        salt = None if arguments is None and content is None else os.urandom(_SALT)
        seq, body = self._seq + 1, dict(fields)
        for name, text in (("arguments", arguments), ("content", content)):
            if salt is not None and text is not None:
                body[f"{name}_sha256"] = hashlib.sha256(salt + text.stored.encode()).hexdigest()
                body[f"{name}_size"] = text.size
        text = body_text({**body, "entry_id": entry_id, "writer": self.writer, "seq": seq})
        stored = (arguments and arguments.stored, content and content.stored)
        found = hashlib.sha256(_DOMAIN + self._hash + text.encode()).digest()
        return Row(self.writer, seq, fields.get("rollout_id"), text, self._hash, found, salt, *stored)

    def append(self, row: Row) -> None:
        """Moves the end of the chain to a row that has been committed."""
        self._seq, self._hash = row.seq, row.hash
