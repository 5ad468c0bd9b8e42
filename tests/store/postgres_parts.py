"""Calls and spans of the PostgreSQL tests, and child processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from concurrent.futures import Future
from typing import Any

from lgov_core.store import rows
from lgov_core.store.database import insert_spans
from lgov_core.store.postgres import PostgresStore
from lgov_core.types import CapturedCall, Reward, Span


def call(response_id: str, **changes: Any) -> CapturedCall:
    ids = tuple(range(5))
    values: dict[str, Any] = {"prompt_ids": ids, "response_ids": ids, "logprobs": (-0.5,) * 5, "rollout_id": "r1"}
    values["request"] = {"messages": []}
    return CapturedCall(
        response_id, "tiny", response={}, finish_reason="stop", weights_version=0, temperature=1.0, top_p=1.0,
        started_at=1.0, ended_at=2.0, **{**values, **changes},
    )  # fmt: skip


def span(span_id: str, **attributes: Any) -> Span:
    return Span("chat tiny", span_id, 1.0, 2.0, attributes, "r1", 1)


def in_child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, timeout=60
    )


def submit_rewards(store: PostgresStore, *rewards: Reward) -> Future[None]:
    new = [rows.reward_row(reward) for reward in rewards]
    return store._submit(lambda transaction: transaction.insert("rewards", new), len(new))


def submit_spans(store: PostgresStore, spans: list[Span]) -> Future[int]:
    new = [rows.span_row(span) for span in spans]
    return store._submit(lambda transaction: insert_spans(transaction, new), len(new))
