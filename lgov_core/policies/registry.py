"""The policies that a rule of a policy file may ``use``, by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Final, cast

from lgov_core.plugins import named_by_plugins
from lgov_core.policies.approvals.policy import ApprovalPolicy
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.budgets.cost import CostControlPolicy
from lgov_core.policies.budgets.counting import LoopPolicy, RateLimitPolicy
from lgov_core.policies.confinement import in_box
from lgov_core.policies.content.pii import PIIPolicy
from lgov_core.policies.content.secrets import SecretsPolicy
from lgov_core.policies.flow import FlowPolicy, ProvenancePolicy
from lgov_core.policies.network.egress import EgressPolicy
from lgov_core.policies.options import PolicyOptions, Text, takes
from lgov_core.policies.order import OrderPolicy
from lgov_core.policies.path import PathPolicy
from lgov_core.policies.pins import PinnedToolsPolicy
from lgov_core.policies.policy_set import ConstantPolicy
from lgov_core.policies.shell import ShellPolicy
from lgov_core.policies.sql.policy import SQLPolicy
from lgov_core.policies.tools import ToolPolicy
from lgov_core.types import Action, Decision, Effect, PolicyFactory


class AnswerOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of ``allow`` and ``deny``."""

    name: Text
    reason: str = ""


class AllowPolicy(ConstantPolicy):
    """A policy that allows whatever its rule covers."""

    @takes(AnswerOptions)
    def __init__(self, options: AnswerOptions) -> None:
        super().__init__(Effect.ALLOW, name=options.name, reason=options.reason)


class DenyPolicy(ConstantPolicy):
    """A policy that denies whatever its rule covers."""

    @takes(AnswerOptions)
    def __init__(self, options: AnswerOptions) -> None:
        super().__init__(Effect.DENY, name=options.name, reason=options.reason)


class BoxOptions(PolicyOptions, frozen=True):
    """The options of a `BoxPolicy`."""

    name: Text = "box"


class BoxPolicy(BoundedPolicy):
    """Lets a tool be called in a box only, where the kernel holds what it runs: for tools that run code.

    The box is that of ``lgov run --confine``; a container that others made is none. Evaluates ``pre_tool_call``.
    """

    permits = True

    @takes(BoxOptions)
    def __init__(self, options: BoxOptions) -> None:
        self.name, self.is_boxed = options.name, in_box()

    def judge(self, action: Action) -> Decision:
        """An allow in a box, a denial elsewhere."""
        reason = f"{action.name[:80]} runs in a box only, and this is none: start the program with lgov run --confine"
        return self.allow() if self.is_boxed else self.deny("box", reason)


class PolicyKinds(Mapping[str, PolicyFactory]):
    """Policy factories by name. One written as ``module:name`` is imported when it is first looked up."""

    def __init__(self, factories: Mapping[str, PolicyFactory | str]) -> None:
        self._factories = dict(factories)

    def __getitem__(self, name: str) -> PolicyFactory:
        factory = self._factories[name]
        if isinstance(factory, str):
            module, _, attribute = factory.partition(":")
            factory = self._factories[name] = cast(PolicyFactory, getattr(importlib.import_module(module), attribute))
        return factory

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def __len__(self) -> int:
        return len(self._factories)


#: Pass another mapping as ``registry`` to widen it.
BUILTIN_POLICIES: Final[Mapping[str, PolicyFactory]] = PolicyKinds(
    {
        "agent_os": "lgov_core.integrations.agent_os:AgentOSPolicy",
        "allow": AllowPolicy,
        "approval": ApprovalPolicy,
        "box": BoxPolicy,
        "cost": CostControlPolicy,
        "deny": DenyPolicy,
        "egress": EgressPolicy,
        "flow": FlowPolicy,
        "loop": LoopPolicy,
        "order": OrderPolicy,
        "path": PathPolicy,
        "pii": PIIPolicy,
        "pinned": PinnedToolsPolicy,
        "provenance": ProvenancePolicy,
        "rate": RateLimitPolicy,
        "secrets": SecretsPolicy,
        "shell": ShellPolicy,
        "sql": SQLPolicy,
        "tool": ToolPolicy,
    }
)


def options_of(factory: PolicyFactory) -> dict[str, inspect.Parameter]:
    """The parameters of ``factory``, by name: for a class of its ``__init__``, which `inspect.signature` misses in 3.11.2."""
    made_by = factory.__init__ if isinstance(factory, type) else factory
    return {name: parameter for name, parameter in inspect.signature(made_by).parameters.items() if name != "self"}


def available_policies() -> Mapping[str, PolicyFactory]:
    """The built-in policies and those of installed plugins (`lgov_core.hookspecs.lgov_policies`).

    Raises `PluginError` when a plugin cannot be loaded, gives something else than factories by name, or a name that is
    taken: it would be unclear which of the two policies judges.
    """
    named = named_by_plugins("lgov_policies", {"policy": BUILTIN_POLICIES})["policy"]
    return (
        {**BUILTIN_POLICIES, **{name: factory for name, (_, factory) in named.items()}} if named else BUILTIN_POLICIES
    )
