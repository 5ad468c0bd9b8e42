"""The system calls that a box was refused: answered outside, counted, and the first of each kind on record.

What Landlock and the file system refuse, the kernel does not report to a process without privileges.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from lgov_core.audit.writer import EntryWriter
from lgov_core.confine.reach import POLICY
from lgov_core.confine.syscalls import NUMBERS, machine
from lgov_core.errors import AuditError
from lgov_core.types import Action, Decision, Effect, Point, Severity

# linux/seccomp.h
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION: Final = struct.Struct("QIIiIQ6Q")  # id, pid, flags, number, architecture, address, arguments
_ANSWER: Final = struct.Struct("QqiI")  # id, value, error, flags


@dataclass(slots=True)
class Denials:
    """Answers the refused calls of one box with EPERM. ``counts`` are by name."""

    log: EntryWriter
    rollout_id: str | None
    counts: Counter[str] = field(default_factory=Counter)

    def serve(self, listener: int) -> None:
        """Answers what arrives on the descriptor of `lgov_core.confine.seccomp.install`, in a thread, until the box ends."""
        threading.Thread(target=self._run, args=(listener,), daemon=True).start()

    def _run(self, listener: int) -> None:
        names = {numbers[machine()[1]]: name for name, numbers in NUMBERS.items()}
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while not poll.poll()[0][1] & select.POLLHUP:
            call = bytearray(_NOTIFICATION.size)
            with suppress(OSError):  # the process that asked may be gone
                fcntl.ioctl(listener, _RECEIVE, call)
                number, _, _, wanted, *_ = _NOTIFICATION.unpack(call)
                fcntl.ioctl(listener, _SEND, bytearray(_ANSWER.pack(number, 0, -errno.EPERM, 0)))
                self._count(names.get(wanted, str(wanted)))
        os.close(listener)

    def _count(self, name: str) -> None:
        self.counts[name] += 1
        if self.counts[name] == 1:
            action = Action(Point.PRE_TOOL_CALL, name, framework=POLICY, rollout_id=self.rollout_id)
            reason = f"the box does not let a program call {name}"
            with suppress(AuditError):  # it is refused all the same
                self.log.commit(action, Decision(Effect.DENY, POLICY, "system-call", reason, Severity.HIGH))
