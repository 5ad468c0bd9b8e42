"""The callback handler of an armed process: it asks anew who governs each time something happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from lgov_core.types import Span
from lgov_langchain.callback import LgovCallbackHandler

if TYPE_CHECKING:
    from lgov_core.governor import Governor


class _ActingGovernor:
    """Hands spans to whoever governs when they arrive; to nobody once the process is disarmed."""

    def __init__(self, acting: Callable[[], Governor | None]) -> None:
        self._acting = acting

    def observe(self, event: Span) -> None:
        if (governor := self._acting()) is not None:
            governor.observe(event)


class ArmedCallbackHandler(LgovCallbackHandler):
    """As `LgovCallbackHandler`, for whichever governor ``acting`` answers; while it answers None nothing is kept."""

    def __init__(self, acting: Callable[[], Governor | None], *, capture_content: bool = False) -> None:
        relay: Any = _ActingGovernor(acting)
        super().__init__(relay, capture_content=capture_content)
        self._acting = acting

    def _begin(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        operation: str | None = None,
        name: str = "",
        attributes: dict[str, Any] | None = None,
    ) -> None:
        if self._acting() is not None:
            super()._begin(run_id, parent_run_id, operation, name, attributes)
