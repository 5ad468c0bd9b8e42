"""The embedded engine as training servers use it: with one model, under whatever name an agent calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from lgov_core.errors import EndpointError
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.protocol import ANY_MODEL, ChatRequest
from lgov_core.gateway.serving.attribution import caller
from lgov_core.train.policy_section import PolicySection
from lgov_core.transitions.reading.select import matches


class PolicyEngine(EmbeddedEngine):
    """The embedded engine with the model under training: it answers whatever model a call names.

    With ``routes`` each call is answered by one of these policies: the one that it asks for as its model, else the first
    that has the calling agent. A call of another agent is refused (400), since nothing would be trained on it.
    """

    served_as: str | None = None
    routes: Mapping[str, PolicySection] = MappingProxyType({})

    @property
    def models(self) -> Sequence[str]:
        """The model's own name, a further one, and every other."""
        own = list(super().models)
        return (*own, *([] if self.served_as in (None, *own) else [str(self.served_as)]), ANY_MODEL)

    def _policy_of(self, request: ChatRequest) -> str:
        if not self.routes or request.model in self.routes:
            return super()._policy_of(request)
        agent = caller().agent
        for name, policy in self.routes.items():
            if agent is not None and matches(agent, policy.agents):
                return name
        raise EndpointError(
            f"no policy is for {'a call without an agent' if agent is None else f'agent {agent!r}'}",
            hint=f"name it in training.policies, or ask for model {' or '.join(self.routes)}",
        )
