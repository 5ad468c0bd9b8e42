"""Policies and records for the tests of the kernel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from lgov_core import AuditLog, Effect, SQLPolicy
from lgov_core.policies import ConstantPolicy

DROP = "DROP TABLE users"
SELECT = "SELECT name FROM users WHERE id = 42"


def allowing() -> ConstantPolicy:
    return ConstantPolicy(Effect.ALLOW, name="allowing")


def sql() -> SQLPolicy:
    return SQLPolicy(dialect="sqlite", argument="input", deny=["DROP", "DELETE"])


def bodies(record: AuditLog) -> list[dict[str, Any]]:
    return [dict(entry.body) for entry in record.entries()]


async def coroutine(given: Any) -> Any:
    await asyncio.sleep(0)
    return f"awaited {given}"


def started(target: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread
