"""The embedded engine as training servers use it: with one model, under whatever name an agent calls it."""

from __future__ import annotations

from collections.abc import Sequence

from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.protocol import ANY_MODEL


class PolicyEngine(EmbeddedEngine):
    """The embedded engine with the model under training: it answers whatever model a call names."""

    served_as: str | None = None

    @property
    def models(self) -> Sequence[str]:
        """The model's own name, a further one, and every other."""
        own = list(super().models)
        return (*own, *([] if self.served_as in (None, *own) else [str(self.served_as)]), ANY_MODEL)
