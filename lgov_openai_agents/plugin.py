"""Tells lgov which module is the OpenAI Agents SDK, and that this release cannot govern it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from lgov_core.adapter import Adapter
from lgov_core.errors import ArmError
from lgov_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from lgov_core.governor import Governor

#: Files that the SDK has and a program's own package of that very common name has not, taken together.
_SDK_FILES = ("guardrail.py", "run.py", "model_settings.py")


def installed() -> bool:
    """Whether ``import agents`` means the OpenAI Agents SDK, found out without importing it."""
    spec = importlib.util.find_spec("agents")
    if spec is None or not spec.submodule_search_locations:
        return False
    return any(
        all((Path(folder) / name).is_file() for name in _SDK_FILES) for folder in spec.submodule_search_locations
    )


def arm(governor: Governor) -> None:
    """Always raises `ArmError`: an Agents SDK program must not run believing that it is governed."""
    raise ArmError(
        "this release of lgov cannot govern the OpenAI Agents SDK",
        hint="run the program without lgov, or use LangChain, which this release governs",
    )


def disarm() -> None:
    """Nothing was armed."""


@hookimpl
def lgov_framework() -> Adapter:
    """The OpenAI Agents SDK adapter: it can do nothing at any point."""
    return Adapter(
        name="openai-agents",
        modules=("agents",),
        tested={},
        surface={},
        installed=installed,
        arm=arm,
        disarm=disarm,
    )
