"""Runs a program as `lgov_core.process.run` does, in a box that the kernel holds: what ``lgov run --confine`` does.

``python -P -m lgov_core.process.confined`` runs another command there, which `command_in_box` writes: tests and workers.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lgov_core.errors import InstrumentationError, LgovError
from lgov_core.governance import Governance
from lgov_core.process.boxed import enter_box
from lgov_core.process.children import VARIABLE
from lgov_core.process.governed import policy_in
from lgov_core.process.invocation import parse_command
from lgov_core.process.run import RunOptions, refuse_run, run_program
from lgov_core.types import new_id

#: The option by which a command in a box is given the address of its broker.
BROKER: Final = "--lgov-broker"


def run_confined(command: Sequence[str], options: RunOptions, *, strict: bool, preset: str | None) -> int:
    """Runs ``command`` governed and confined; returns its status, 78 when it could not be confined.

    ``strict`` wants every layer; without it, what there is counts, and the report and the record say what is missing.
    ``preset`` takes the place of the policy file's. Must be called with one thread. Returns in the program's process, too.
    """
    if VARIABLE in os.environ:
        return run_program(command, options)  # which says that it is governed already
    try:
        invocation = parse_command(command)
        policy = options.governance.policy or policy_in(invocation.folder, invocation.target)
        governance = options.governance.under(policy.absolute())
        options = replace(options, governance=governance, rollout_id=options.rollout_id or new_id("rol"))
        program = None if invocation.is_module else Path(invocation.target).absolute()
        placed = enter_box(options, strict=strict, preset=preset, program=program)
    except Exception as error:  # noqa: BLE001 - whatever is broken here, the program must not run without the box
        return _refuse(error, options)
    return placed if isinstance(placed, int) else run_program(command, placed)


def command_in_box(
    before: Sequence[str],
    after: Sequence[str] = (),
    *,
    governance: Governance,
    preset: str | None = None,
    endpoint: str | None = None,
) -> list[str]:
    """The command that runs Python with ``before --lgov-broker=ADDRESS after`` in a strict box of its own.

    Its status is that of Python, 78 where the box cannot be had. Without a policy file the preset (``workspace``) stands in
    the working folder. The record of ``governance`` is kept outside. ``endpoint`` is where its models are.
    """
    given = {
        "before": list(before),
        "after": list(after),
        "governance": replace(governance, store=None).as_json(),  # a command line can be read by everyone
        "preset": preset,
        "endpoint": endpoint,
    }
    # -P: the working folder is no place of modules here, from which a box would show it.
    return [sys.executable, "-P", "-m", __name__, json.dumps(given)]


def main() -> None:
    """Entry point of the command of `command_in_box`."""
    given: Mapping[str, Any] = json.loads(sys.argv[1])
    options = RunOptions(Governance.of_json(given["governance"]), endpoint=given["endpoint"])
    try:
        placed = enter_box(options, preset=given["preset"])
    except Exception as error:  # noqa: BLE001 - as above
        sys.exit(_refuse(error, options))
    if isinstance(placed, int):
        sys.exit(placed)
    os.execv(
        sys.executable, [sys.executable, *given["before"], f"{BROKER}={placed.governance.broker}", *given["after"]]
    )


def _refuse(error: Exception, options: RunOptions) -> int:
    known = error if isinstance(error, LgovError) else InstrumentationError(f"{type(error).__name__}: {error}")
    return refuse_run(known, options)


if __name__ == "__main__":
    main()
