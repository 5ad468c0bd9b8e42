"""Calls and spans of the SQLite tests, and child processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from lgov_core.types import CapturedCall, Span


def call(response_id: str, size: int = 0) -> CapturedCall:
    ids = tuple(range(5))
    return CapturedCall(
        response_id, "tiny", {"messages": "x" * size}, {}, ids, ids, (-0.5,) * 5, "stop", 0, 1.0, 1.0, 1.0, 2.0, "r1", 1
    )


def span(span_id: str, size: int = 0) -> Span:
    return Span("chat tiny", span_id, 1.0, 2.0, {"text": "x" * size}, "r1", 1)


def in_child(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
