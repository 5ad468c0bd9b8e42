"""The entry point for ``opentelemetry-instrument python agent.py``: governs by the policy that ``LGOV_POLICY`` names.

Best effort, and no substitute for ``lgov run``: OpenTelemetry logs what an instrumentor raises and runs the program all
the same, and ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS`` turns it off. So any error here ends the process with status 78
instead of being raised. Without ``LGOV_POLICY`` (or a ``policy`` in lgov.toml) it does nothing:
lgov being installed does not mean that every instrumented program wants to be governed.
"""

from __future__ import annotations

import atexit
from typing import Any, NoReturn

from lgov_core.governance import Governance
from lgov_core.process.governed import GovernedProcess, end_process, say


class LgovInstrumentor:
    """An instrumentor as OpenTelemetry's auto-instrumentation wants it: `instrument` and `uninstrument`."""

    _process: GovernedProcess | None = None

    def instrument(self, **kwargs: Any) -> None:
        """Opens the policy and the record, and governs every framework that is or will be imported.

        Ends the process with 78 when that cannot be done. Does nothing without a policy in the settings. OpenTelemetry's
        own arguments are not used.
        """
        from lgov_core.scope import RolloutScope, carry_into_threads, enter_scope
        from lgov_core.types import new_id

        try:
            governance = Governance.from_settings()
            if governance.policy is None or self._process is not None:
                return
            self._process = GovernedProcess(governance, _refuse)
            enter_scope(RolloutScope(new_id("rol"), of_process=True)).__enter__()  # for as long as the process lives
            carry_into_threads()
            self._process.guard.install()
            atexit.register(self._process.close)
        except BaseException as error:  # noqa: BLE001 - raised, it would be logged, and the program would run
            _refuse(f"{type(error).__name__}: {error}")

    def uninstrument(self, **kwargs: Any) -> None:
        """Refuses: what governs a process cannot be switched off from inside it."""
        say("a governed process stays governed: uninstrument() does nothing")


def _refuse(reason: str) -> NoReturn:
    end_process(lambda: say(f"stopped: {reason}"))
