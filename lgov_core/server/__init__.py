"""The server of the training pair: endpoint, queue of rollouts and training loop in one process.

``python -m lgov_core.server --model M --algorithm grpo`` starts one; `TrainingServer` is the same for programs. Agents run
elsewhere, with `lgov_core.Client`. Nothing heavy is loaded until a server is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgov_core.server.training import ServerOptions, TrainingServer

__all__ = ["ServerOptions", "TrainingServer"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from lgov_core.server import training

        return getattr(training, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
