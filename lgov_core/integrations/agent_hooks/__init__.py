"""AGENT-HOOKS-0.1, both ways: lgov's policies as an interceptor, and interceptors as a policy of a governor.

Needs the extra ``agent-hooks``. Names are looked up when they are first used, so importing this package loads nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lgov_core.errors import PolicyError

if TYPE_CHECKING:
    from lgov_core.integrations.agent_hooks.policy import InterceptorPolicy
    from lgov_core.integrations.agent_hooks.verdicts import LgovInterceptor

__all__ = ["InterceptorPolicy", "LgovInterceptor"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = "policy" if name == "InterceptorPolicy" else "verdicts"
        return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "agent_hooks":
            raise
        raise PolicyError(f"{name} needs agent-hooks-sdk", hint='pip install "lgov[agent-hooks]"') from error
