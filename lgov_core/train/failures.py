"""Tells the machines' failures from the agent's."""

from __future__ import annotations

#: Exception classes (by module and name, for no framework may be imported here) that speak of the connection to the
#: model, not of the agent.
_INFRASTRUCTURE = {
    ("openai", "APIConnectionError"),
    ("openai", "APITimeoutError"),
    ("openai", "InternalServerError"),
}


def is_infrastructure(error: BaseException) -> bool:
    """Whether ``error``, or what caused it, speaks of the machines (connection, memory, disk) rather than of the agent."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, ConnectionError | MemoryError | OSError) and not isinstance(current, TimeoutError):
            return True
        for kind in type(current).__mro__:
            if (kind.__module__.partition(".")[0], kind.__name__) in _INFRASTRUCTURE:
                return True
        current = current.__cause__ or current.__context__
    return False
