"""JSON lines between a process and its worker processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any


def take_standard_streams() -> tuple[int, int]:
    """Descriptors of standard input and output, for the protocol alone.

    From here on the agent, and what it starts, reads nothing from standard input and prints to standard error.
    """
    source, output = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, output


def send(output: int, message: Mapping[str, Any]) -> None:
    """Writes one line to the parent."""
    data = json.dumps(message, default=str).encode() + b"\n"
    while data:
        data = data[os.write(output, data) :]


def write_line(popen: subprocess.Popen[bytes], value: Mapping[str, Any]) -> None:
    """Writes one line to a worker. One that has died is reported by whatever reads from it."""
    if popen.stdin is not None:
        with contextlib.suppress(OSError):
            popen.stdin.write(json.dumps(value, default=str).encode() + b"\n")
            popen.stdin.flush()


def close_input(popen: subprocess.Popen[bytes]) -> None:
    """Tells a worker to end; what it can no longer read is lost."""
    if popen.stdin is not None:
        with contextlib.suppress(OSError):
            popen.stdin.close()
