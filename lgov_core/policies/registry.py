"""The policies that a rule of a policy file may ``use``, by name; each is imported when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from lgov_core.errors import PluginError
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies.base import Policy
from lgov_core.policies.policy_set import ConstantPolicy
from lgov_core.types import Effect, PolicyFactory


def allow(*, name: str, reason: str = "") -> Policy:
    """A policy that allows whatever its rule covers."""
    return ConstantPolicy(Effect.ALLOW, name=name, reason=reason)


def deny(*, name: str, reason: str = "") -> Policy:
    """A policy that denies whatever its rule covers."""
    return ConstantPolicy(Effect.DENY, name=name, reason=reason)


_HOMES: Final = {
    "agent_os": "lgov_core.policies.agent_os:AgentOSPolicy",
    "allow": "lgov_core.policies.registry:allow",
    "approval": "lgov_core.policies.approvals.approval:ApprovalPolicy",
    "cost": "lgov_core.policies.budgets.cost:CostControlPolicy",
    "deny": "lgov_core.policies.registry:deny",
    "pii": "lgov_core.policies.content.pii:PIIPolicy",
    "provenance": "lgov_core.policies.provenance.policy:ProvenancePolicy",
    "secrets": "lgov_core.policies.content.secrets:SecretsPolicy",
    "egress": "lgov_core.policies.network.egress:EgressPolicy",
    "path": "lgov_core.policies.paths.path:PathPolicy",
    "shell": "lgov_core.policies.shell:ShellPolicy",
    "loop": "lgov_core.policies.budgets.loop:LoopPolicy",
    "rate": "lgov_core.policies.budgets.rate:RateLimitPolicy",
    "sql": "lgov_core.policies.sql.policy:SQLPolicy",
    "tool": "lgov_core.policies.tools.tool:ToolPolicy",
}


class _Builtin(Mapping[str, PolicyFactory]):
    """Names and factories; looking a factory up imports its module."""

    def __getitem__(self, use: str) -> PolicyFactory:
        module, _, attribute = _HOMES[use].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)

    def __contains__(self, use: object) -> bool:  # without importing
        return use in _HOMES


#: Pass another mapping as ``registry`` to widen it.
BUILTIN_POLICIES: Final[Mapping[str, PolicyFactory]] = _Builtin()


def available_policies() -> Mapping[str, PolicyFactory]:
    """The built-in policies and those of installed plugins (`lgov_core.hookspecs.lgov_policies`).

    Raises `PluginError` when a plugin cannot be loaded, gives something else than factories by name, or a name that is
    taken: it would be unclear which of the two policies judges.
    """
    manager = make_plugin_manager(builtin=())
    found: dict[str, PolicyFactory] = {}
    for impl in reversed(manager.hook.lgov_policies.get_hookimpls()):
        try:
            given: dict[Any, Any] = dict(cast(Any, impl.function)())
        except Exception as error:
            raise PluginError(
                f"plugin {impl.plugin_name} does not give its policies: {type(error).__name__}: {error}",
                hint="repair or uninstall it",
            ) from error
        for name, factory in given.items():
            if not isinstance(name, str) or not callable(factory):
                raise PluginError(f"plugin {impl.plugin_name}: {name!r}: {factory!r} is not a policy by name")
            if name in BUILTIN_POLICIES or name in found:
                raise PluginError(
                    f"plugin {impl.plugin_name}: there is a policy {name!r} already", hint="rename or uninstall one"
                )
            found[name] = cast(PolicyFactory, factory)
    return {**BUILTIN_POLICIES, **found} if found else BUILTIN_POLICIES
