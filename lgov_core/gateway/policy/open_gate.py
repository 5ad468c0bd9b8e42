"""Opens a gate for a policy file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lgov_core.gateway.policy.gate import PolicyGate
from lgov_core.governor import Governor, ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.types import Effect

if TYPE_CHECKING:
    from lgov_core.store import TraceStore


def open_gate(
    policy: str | os.PathLike[str],
    *,
    audit: str | os.PathLike[str],
    store: TraceStore | None = None,
    timeout_s: float = 2.0,
    redact: Sequence[str] = (),
    audit_key: Path | None = None,
    heads: Path | None = None,
) -> PolicyGate:
    """A gate for the policy file ``policy`` that commits its decisions to the audit record at ``audit``.

    The record is signed with ``audit_key`` (the user's key if None), its heads also go to ``heads`` (beside it if None), and it
    does not keep the values of arguments that are named in ``redact``. With a ``store``, what was denied or
    changed is written there as spans and rewards. The caller closes the gate. Raises `LgovError` for a file that does not
    load or a record that cannot be opened.
    """
    from lgov_core.air import AirPlugin
    from lgov_core.audit import AuditLog, default_signer
    from lgov_core.policies import load_policy_file

    rules = load_policy_file(Path(policy))
    signer = default_signer(audit_key)
    log = AuditLog(audit, policy_digest=rules.digest or "", signer=signer, heads=heads, redact=redact or None)
    try:
        plugins = [] if store is None else [AirPlugin(), _DenialSink(store)]
        return PolicyGate(Governor(rules, plugins=plugins, audit=log, timeout_s=timeout_s), owns=[log], store=store)
    except BaseException:
        log.close()
        raise


class _DenialSink:
    """Writes what policies denied or changed, or would have in shadow mode, to the store.

    What they allowed is in the audit record. Decisions have their reasons; arguments and results are in the recorded calls, as
    policies left them, and not in these spans.
    """

    def __init__(self, store: TraceStore) -> None:
        from lgov_core.trace.sink import StoreSink

        self._decisions = StoreSink(store)
        self._others = StoreSink(store, content=False)

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """See `lgov_core.hookspecs.lgov_observe`."""
        if not isinstance(event, ObservedDecision):
            self._others.lgov_observe(event)
        elif event.decision.effect > Effect.ALLOW or event.decision.unenforced:
            self._decisions.lgov_observe(event)
