"""Starts a process tree in a box: every layer that the kernel gives, before the first line of the program.

    lgov run (outside) ── keeper ── first process (the box's init) ── program

The keeper enters the namespaces and waits; the first process makes the root, locks itself down, starts the program and
collects what it leaves behind. When any of the three ends, so does everything below it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from lgov_core.confine.layers import (
    Layers,
    close_files,
    die_with_parent,
    enter_namespaces,
    enter_root,
    keep_environment,
    lock_down,
)
from lgov_core.confine.plan import BoxPlan
from lgov_core.errors import InstrumentationError

_NOT_MADE = 78
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Inside:
    """The program's own process, in the box; ``ports`` are the numbers of the ports of `start`."""

    ports: list[int]


@dataclass(slots=True)
class Box:
    """A box that waits for `release`. ``listeners`` accept connections from inside: one a port of `start`.

    On ``refused`` its refused system calls arrive (`lgov_core.confine.seccomp`); None where they cannot be observed.
    """

    pid: int
    channel: socket.socket
    layers: Layers
    listeners: list[socket.socket]
    refused: int | None

    def release(self) -> None:
        """Lets the program begin."""
        self.channel.send(b"go")
        self.channel.close()

    def wait(self) -> int:
        """The exit status of the program; 128 and the number of the signal that ended it. Signals are handed on to it."""
        return _wait_for(self.pid)


def start(plan: BoxPlan, *, strict: bool, ports: Iterable[int]) -> Box | Inside:
    """Makes the box. Returns twice: a `Box` outside, and, once that is released, an `Inside` in the program's process.

    ``ports`` (0: any) are where the box's loopback listens for the outside. The calling process must have one thread.
    Raises `InstrumentationError` outside; then nothing runs.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        here.close()
        return _in_child(lambda: _keep(there, plan, Layers(strict), list(ports)), there)
    there.close()
    text, handles, _, _ = socket.recv_fds(here, 1 << 16, 64)
    answer: dict[str, Any] = json.loads(text) if text else {"message": "the box ended before it was made", "hint": None}
    if "held" in answer:
        refused = handles.pop() if answer["observed"] else None
        listeners = [socket.socket(fileno=handle) for handle in handles]
        return Box(pid, here, Layers(strict, answer["held"], answer["missing"]), listeners, refused)
    here.close()
    os.waitpid(pid, 0)
    raise InstrumentationError(answer["message"], hint=answer["hint"])


def _in_child(work: Callable[[], int | Inside], channel: socket.socket) -> Inside:
    """Runs ``work`` in a forked child and ends it, but for the program's own process, in which it returns.

    What goes wrong before the box is ready goes to ``channel``.
    """
    try:
        result = work()
        if isinstance(result, Inside):
            return result
        os._exit(result)
    except BaseException as error:  # noqa: BLE001 - a fork must not return into its parent's code
        is_ours = isinstance(error, InstrumentationError)
        message = error.message if is_ours else f"confinement: {type(error).__name__}: {error}"
        with suppress(OSError):
            channel.send(json.dumps({"message": message, "hint": error.hint if is_ours else None}).encode())
    os._exit(_NOT_MADE)


def _keep(channel: socket.socket, plan: BoxPlan, layers: Layers, ports: list[int]) -> int | Inside:
    os.setsid()  # the terminal's signals come through `Box.wait`, and none of the box's reach the group outside
    close_files(channel.fileno())
    layers.put("namespaces", enter_namespaces)
    die_with_parent()  # after what may change credentials, which would undo it
    pid = os.fork()
    if pid == 0:
        return _in_child(lambda: _first(channel, plan, layers, ports), channel)
    channel.close()
    return _wait_for(pid)


def _first(channel: socket.socket, plan: BoxPlan, layers: Layers, ports: list[int]) -> int | Inside:
    die_with_parent()
    keep_environment(plan.rules.environment)  # here: the program can read that of this process, too
    apart = "namespaces" in layers.held
    listeners = [socket.create_server(("127.0.0.1", port)) for port in ports if apart or port == 0]
    numbers = [listener.getsockname()[1] for listener in listeners]
    if apart:
        layers.put("root", lambda: enter_root(plan))
    else:
        layers.without("root", "it needs the namespaces; so hide, and read inside of write, do not hold")
    if "root" not in layers.held and plan.kept_out:
        raise InstrumentationError(
            f"without a root of its own the box would show {plan.kept_out[0]}, where the record or the approvals are",
            hint="keep them where no rule of confine reaches: --audit and store: with paths outside",
        )
    refused = lock_down(plan, layers, [*numbers, *plan.forwards])
    answer = {"held": layers.held, "missing": layers.missing, "observed": refused is not None}
    handles = [*(listener.detach() for listener in listeners), *([] if refused is None else [refused])]
    socket.send_fds(channel, [json.dumps(answer).encode()], handles)
    for handle in handles:
        os.close(handle)
    if channel.recv(2) != b"go":
        return _NOT_MADE
    pid = os.fork()
    channel.close()
    if pid:
        return _wait_for(pid)
    rooted = "root" in layers.held
    if not rooted:
        die_with_parent()
    os.environ["TMPDIR"] = tempfile.tempdir = "/tmp" if rooted else f"{plan.private}/tmp"
    return Inside(numbers)


def _wait_for(pid: int) -> int:
    """Waits for ``pid``, collecting other children on the way and handing signals on to it; returns its exit status."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    before = {number: signal.signal(number, hand_on) for number in _FORWARDED}
    try:
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
