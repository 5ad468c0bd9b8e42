"""Which policy answers a call, and the embedded engine as training servers use it: one model under every name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from lgov_core.errors import EndpointError
from lgov_core.gateway.access import caller
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.protocol import ANY_MODEL
from lgov_core.train.sections import PolicySection
from lgov_core.transitions.calls import matches
from lgov_core.wire.exchange import ChatRequest


def policy_of(request: ChatRequest, routes: Mapping[str, PolicySection]) -> str:
    """The policy that a call asks for as its model, else the first that has the calling agent.

    A call of another agent is refused (400), since nothing would be trained on it.
    """
    if request.model in routes:
        return request.model
    agent = caller().agent
    for name, policy in routes.items():
        if agent is not None and matches(agent, policy.agents):
            return name
    raise EndpointError(
        f"no policy is for {'a call without an agent' if agent is None else f'agent {agent!r}'}",
        hint=f"name it in training.policies, or ask for model {' or '.join(routes)}",
    )


class PolicyEngine(EmbeddedEngine):
    """The embedded engine with the model under training: it answers whatever model a call names.

    With ``routes`` each call is answered by one of these policies: see `policy_of`.
    """

    served_as: str | None = None
    routes: Mapping[str, PolicySection] = MappingProxyType({})

    @property
    def models(self) -> Sequence[str]:
        """The model's own name, a further one, and every other."""
        own = list(super().models)
        return (*own, *([] if self.served_as in (None, *own) else [str(self.served_as)]), ANY_MODEL)

    def _policy_of(self, request: ChatRequest) -> str:
        return policy_of(request, self.routes) if self.routes else super()._policy_of(request)
