"""Opens a gate for a policy file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lgov_core.gateway.policy.gate import PolicyGate
from lgov_core.governor import ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.types import Effect

if TYPE_CHECKING:
    from lgov_core.governance import Governance
    from lgov_core.store import TraceStore


def open_gate(governance: Governance, *, store: TraceStore | None = None) -> PolicyGate:
    """A gate that judges by the policy file of ``governance`` and commits its decisions to its record.

    With a ``store``, which stays the caller's, what was denied or changed is written there as spans and rewards, whatever
    store ``governance`` names. The caller closes the gate. Raises `LgovError` for a file that does not load or a record that
    cannot be opened.
    """
    from lgov_core.air import AirPlugin
    from lgov_core.audit import AuditLog

    plugins = [] if store is None else [AirPlugin(governance.reward_rules()), _DenialSink(store, governance.content)]
    # The recorded calls have the content.
    opened = replace(governance, store=None, content=False).open(plugins=plugins, rewards=False)
    assert isinstance(opened.audit, AuditLog)  # nothing serves inside a box
    return PolicyGate(opened.governor, owns=[opened.audit], store=store)


class _DenialSink:
    """Writes what policies denied or changed, or would have in shadow mode, to the store.

    What they allowed is in the audit record. Decisions have their reasons; arguments and results are in the recorded calls, as
    policies left them, and not in these spans.
    """

    def __init__(self, store: TraceStore, content: bool) -> None:
        from lgov_core.trace.sink import StoreSink

        self._decisions = StoreSink(store, content=content)
        self._others = StoreSink(store, content=False)

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """See `lgov_core.hookspecs.lgov_observe`."""
        if not isinstance(event, ObservedDecision):
            self._others.lgov_observe(event)
        elif event.decision.effect > Effect.ALLOW or event.decision.unenforced:
            self._decisions.lgov_observe(event)
