"""Runs a program as `lgov_core.process.run` does, in a box that the kernel holds: what ``lgov run --confine`` does.

The box is made before anything of the program's is loaded. Outside of it stay the audit record, the approvals and the
proxy that is the one way out; they end with this process, and the box with them.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lgov_core.errors import InstrumentationError, LgovError
from lgov_core.process.children import VARIABLE
from lgov_core.process.governed import DEFAULT_AUDIT, make_folder, policy_in, say, write_error
from lgov_core.process.invocation import Invocation, parse_command
from lgov_core.process.run import RunOptions, refuse_run, run_program
from lgov_core.types import new_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lgov_core.confine.box import Box, Layers
    from lgov_core.confine.denials import Denials
    from lgov_core.confine.plan import Plan
    from lgov_core.confine.reach import Attempts, Reach
    from lgov_core.policies.confinement import ConfinedPolicy

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
#: More places of the same kind are counted, not listed.
MAX_PLACES = 5


def run_confined(command: Sequence[str], options: RunOptions, *, strict: bool, preset: str | None) -> int:
    """Runs ``command`` governed and confined; returns its status, 78 when it could not be confined.

    ``strict`` wants every layer; without it, what there is counts, and the report and the record say what is missing.
    ``preset`` takes the place of the policy file's. Must be called with one thread. Returns in the program's process, too.
    """
    if VARIABLE in os.environ:
        return run_program(command, options)  # which says that it is governed already
    private = Path(tempfile.mkdtemp(prefix="lgov-box-"))
    try:
        if sys.platform != "linux":
            raise InstrumentationError(
                f"--confine needs Linux, and this is {sys.platform}",
                hint="run it in a Linux container or virtual machine",
            )
        invocation = parse_command(command)
        options, confined = _settled(options, invocation)
        placed = _start(invocation, options, confined, private, strict=strict, preset=preset)
    except Exception as error:  # noqa: BLE001 - whatever is broken here, the program must not run without the box
        shutil.rmtree(private, ignore_errors=True)
        return refuse_run(_known(error), options)
    if isinstance(placed, RunOptions):
        return run_program(command, placed)
    try:
        return _run_outside(*placed, options, confined)
    except Exception as error:  # noqa: BLE001 - the box ends when this process leaves it
        return refuse_run(_known(error), options)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _known(error: Exception) -> LgovError:
    return error if isinstance(error, LgovError) else InstrumentationError(f"{type(error).__name__}: {error}")


def _settled(options: RunOptions, invocation: Invocation) -> tuple[RunOptions, ConfinedPolicy]:
    from lgov_core.policies.confinement import read_confinement

    policy = (options.policy or policy_in(invocation.folder)).absolute()
    audit = (options.audit or DEFAULT_AUDIT).absolute()
    confined = read_confinement(policy)
    for file in (audit, *(Path(store) for store in confined.approval_stores() if store)):
        make_folder(file.parent)  # what is to be hidden must be there
    return replace(options, policy=policy, audit=audit, rollout_id=options.rollout_id or new_id("rol")), confined


def _start(
    invocation: Invocation,
    options: RunOptions,
    confined: ConfinedPolicy,
    private: Path,
    *,
    strict: bool,
    preset: str | None,
) -> tuple[Box, Plan, Reach, str] | RunOptions:
    """Makes the box. Returns the options of the program in the program's process, and what the outside needs outside."""
    from lgov_core.confine import box
    from lgov_core.confine.plan import make_plan
    from lgov_core.confine.reach import make_reach, model_endpoints

    assert options.audit is not None
    rules = confined.with_preset(preset)
    reach = make_reach(rules, model_endpoints(options.endpoint))
    for name in ("tmp", "home"):
        (private / name).mkdir()
    plan = make_plan(
        rules,
        confined,
        audit=options.audit,
        private=str(private),
        program=None if invocation.is_module else Path(invocation.target).absolute(),
        forwards=reach.forwards(),
    )
    token = secrets.token_hex(16)
    placed = box.start(plan, strict=strict, ports=[*plan.forwards, 0, 0])
    if isinstance(placed, box.Box):
        return placed, plan, reach, token
    os.environ.update(dict.fromkeys(_PROXIES, f"http://127.0.0.1:{placed.ports[-1]}"))
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "localhost,127.0.0.1,::1"
    return replace(options, broker=f"{placed.ports[-2]}:{token}")


def _run_outside(
    placed: Box, plan: Plan, reach: Reach, token: str, options: RunOptions, confined: ConfinedPolicy
) -> int:
    """Keeps the record, the approvals and the proxy until the program has ended; returns its status."""
    from lgov_core.audit import AuditLog, default_signer
    from lgov_core.confine.broker import BoxBroker
    from lgov_core.confine.denials import Denials
    from lgov_core.confine.proxy import Proxy
    from lgov_core.confine.reach import POLICY, Attempts
    from lgov_core.policies import ApprovalRequests

    assert options.audit is not None
    assert options.rollout_id is not None
    with closing(placed.channel), ExitStack() as opened:  # a box that is not released ends
        log = AuditLog(
            options.audit, policy_digest=confined.digest, signer=default_signer(), redact=options.redact or None
        )
        opened.callback(_close, log)
        stores = {
            store: ApprovalRequests(store or None, expires_s=longest)
            for store, longest in confined.approval_stores().items()
        }
        attempts = Attempts(log, options.rollout_id)
        said = _fields(placed.layers, plan)
        about = {"rollout_id": options.rollout_id, "policy": POLICY, "rule": "box", "reason": _summary(placed.layers)}
        log.append("confinement", {**about, **said}, arguments=None, content={})
        if placed.layers.missing:
            say(_summary(placed.layers))
        denials = Denials(log, options.rollout_id)
        if placed.refused is not None:
            denials.serve(placed.refused)
        proxy = Proxy(reach, attempts)
        BoxBroker(log, stores, token).serve(placed.listeners[-2])
        proxy.serve(placed.listeners[-1])
        for listener, port in zip(placed.listeners[:-2], plan.forwards, strict=False):
            proxy.forward(listener, port)
        placed.release()
        status = placed.wait()
        _report(placed.layers, attempts, denials, said, status, options)
    return status


def _close(log: Any) -> None:
    try:
        log.close()
    except LgovError as error:
        say(str(error))


def _fields(layers: Layers, plan: Plan) -> dict[str, Any]:
    rules = {name: value for name, value in asdict(plan.rules).items() if value not in (None, ())}
    return {"strict": layers.strict, "layers": layers.held, "missing": layers.missing, "rules": rules}


def _summary(layers: Layers) -> str:
    missing = "; ".join(f"without {name} ({why})" for name, why in layers.missing.items())
    held = ", ".join(f"{name} {what}".strip() for name, what in layers.held.items())
    return f"confined at best effort, {missing}: {held}" if missing else f"confined: {held}"


def _report(
    layers: Layers, attempts: Attempts, denials: Denials, said: Mapping[str, Any], status: int, options: RunOptions
) -> None:
    """Writes what the box held and what was asked of it to standard error. Outside, where the program cannot change it."""
    connections = {"allowed": dict(attempts.allowed), "denied": dict(attempts.denied)}
    if options.as_json:
        write_error(
            json.dumps(
                {"confinement": {**said, "connections": connections, "refused": denials.counts, "status": status}}
            )
        )
        return
    say(_summary(layers))
    for what, counts in (("allowed", attempts.allowed), ("denied", attempts.denied)):
        if counts:
            say(f"{counts.total()} connections {what}: {_places(counts)}")
    if denials.counts:
        say(f"{denials.counts.total()} system calls refused: {_places(denials.counts)}")
    if status > 128:
        limits = [name for name in ("memory", "cpu", "file_size") if name in said["rules"]]
        because = f"; the box limits {', '.join(limits)}" if limits else ""
        say(f"the program was ended by signal {status - 128}{because}")


def _places(counts: Counter[str]) -> str:
    shown = [f"{place} ({count})" for place, count in counts.most_common(MAX_PLACES)]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more} further places" if more else "")
