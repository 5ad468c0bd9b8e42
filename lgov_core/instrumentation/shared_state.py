"""Two objects that are one: a twin that has all that another object is, and adds something of its own."""

from __future__ import annotations

import threading
from typing import Any, Final

#: In the state of whatever has a twin.
_SHARED: Final = "_lgov_shared"
_LOCK: Final = threading.Lock()


def share_state(twin: Any, original: Any) -> dict[str, Any]:
    """Gives ``twin`` the attributes of ``original`` as its own, so that each has what is set on either, and returns them.

    Both need a ``__dict__``. The one that Python makes lies within its object, and CPython 3.13 loses what is in it once
    another object has it too; so ``original`` gets one that stands by itself first. Any number of twins may share it.
    Callable from any thread.
    """
    with _LOCK:
        state: dict[str, Any] = original.__dict__
        if _SHARED not in state:
            state = original.__dict__ = {**state, _SHARED: True}
    twin.__dict__ = state
    return state
