"""Runs programs written for ``agent_os``, ``agent_lightning_gov`` and ``agentlightning`` without these packages."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from lgov_core.rl_governance.emitter import FlightRecorderEmitter as FlightRecorderAdapter

__all__ = ["FlightRecorderAdapter", "emit_reward", "install"]

_LOG = logging.getLogger(__name__)

#: The modules of lgov in which the names of each module are looked up, in this order.
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "agent_os": ("",),
    "agent_os.policies": (".policies",),
    "agent_os.integrations": (),
    "agent_os.integrations.agent_lightning": ("", ".runner", ".reward", ".emitter", ".environment"),
    "agent_lightning_gov": ("", ".runner", ".reward", ".emitter", ".environment"),
    "agent_lightning_gov.runner": (".runner",),
    "agent_lightning_gov.reward": (".reward",),
    "agent_lightning_gov.environment": (".environment",),
    "agent_lightning_gov.emitter": (".emitter",),
    "agentlightning": ("", ".compat"),
    "agentlightning.contrib": (),
    "agentlightning.contrib.agent_os": (".runner", ".reward", ".emitter", ".compat"),
}


def install() -> tuple[str, ...]:
    """Makes the modules that are not installed importable, with the names of lgov. Returns which.

    A package that is installed or loaded is left as it is, with all below it. Calling it again does nothing more.
    """
    added: list[str] = []
    for name, sources in _MODULES.items():
        parent, _, child = name.rpartition(".")
        if name in sys.modules or (parent not in added if parent else importlib.util.find_spec(name) is not None):
            continue
        sys.modules[name] = module = _Renamed(name, sources)
        if parent:
            setattr(sys.modules[parent], child, module)
        added.append(name)
    return tuple(added)


class _Renamed(ModuleType):
    """A module whose names are those of modules of lgov, looked up when they are used."""

    def __init__(self, name: str, sources: tuple[str, ...]) -> None:
        super().__init__(name, f"Names of lgov under the name of {name}.")
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        vars(self)["__path__"] = []
        self._sources = sources

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            for source in self._sources:
                module = importlib.import_module(f"lgov_core{source}")
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(
            f"lgov has no {self.__name__}.{name}; docs/reference/rl-governance.md lists what replaces it"
        )


def emit_reward(reward: float | Mapping[str, float], **_details: Any) -> None:
    """Warns that the reward is lost, as there is no store of agentlightning to write it to."""
    _LOG.warning("emit_reward(%s) is not used: with lgov the agent returns its reward, or several by name", reward)
