"""The setting ``training.policies``: which agents have weights of their own. Loads nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lgov_core.errors import SettingsError

#: What a policy may be called: a part of the names of its weights.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class PolicySection:
    """A policy: it answers ``agents`` (names or globs), and is not trained when ``frozen``."""

    agents: tuple[str, ...]
    frozen: bool = False


def read_policies(value: Any, what: str) -> dict[str, PolicySection]:
    """The policies that ``value`` names: ``NAME: {agents: [...], frozen: true}``, ``NAME: frozen`` or ``NAME:`` alone.

    Without agents a policy answers the agent of its name. Raises `SettingsError`, which begins with ``what``.
    """
    if not isinstance(value, Mapping):
        raise SettingsError(f"{what} is {value!r}", hint="write names of policies below it")
    policies = {str(name): _read(str(name), raw, what) for name, raw in value.items()}
    if policies and all(policy.frozen for policy in policies.values()):
        raise SettingsError(f"{what} are all frozen", hint="leave frozen out for those that are to be trained")
    return policies


def _read(name: str, raw: Any, what: str) -> PolicySection:
    keys: Any = {"frozen": True} if raw == "frozen" else {} if raw is None else raw
    if isinstance(keys, Mapping) and not keys.keys() - {"agents", "frozen"} and _NAME.fullmatch(name):
        agents, frozen = keys.get("agents", [name]), keys.get("frozen", False)
        if isinstance(agents, list | tuple) and isinstance(frozen, bool):
            names = tuple(agent for agent in agents if isinstance(agent, str) and agent)
            if names and len(names) == len(agents):
                return PolicySection(names, frozen)
    raise SettingsError(
        f"{what}: {name} is {raw!r}",
        hint="write NAME: {agents: [...]} or NAME: frozen; a name has letters, digits, - and _",
    )
