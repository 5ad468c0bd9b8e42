"""Tells lgov which modules are AutoGen, and that this release cannot govern it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from lgov_core.adapter import Adapter
from lgov_core.errors import ArmError
from lgov_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from lgov_core.governor import Governor


def installed() -> bool:
    """Whether AutoGen can be imported, found out without importing it."""
    return any(importlib.util.find_spec(name) is not None for name in ("autogen_agentchat", "autogen_core"))


def arm(governor: Governor) -> None:
    """Always raises `ArmError`: an AutoGen program must not run believing that it is governed."""
    raise ArmError(
        "this release of lgov cannot govern AutoGen",
        hint="run the program without lgov, or use LangChain, which this release governs",
    )


def disarm() -> None:
    """Nothing was armed."""


@hookimpl
def lgov_framework() -> Adapter:
    """The AutoGen adapter: it can do nothing at any point."""
    return Adapter(
        name="autogen",
        modules=("autogen_agentchat", "autogen_core"),
        tested={},
        surface={},
        installed=installed,
        arm=arm,
        disarm=disarm,
    )
