"""Which algorithms there are and what runs them: the table behind ``lgov train``. Loads nothing heavy.

A run is a function ``run(job: TrainingJob) -> Mapping[str, Any]`` that is found by its name here and imported when it is
called. It returns figures as JSON values, and raises `LgovError` for what cannot be done.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lgov_core._util.words import suggest_name
from lgov_core.errors import SettingsError
from lgov_core.train.settings import TrainSettings

if TYPE_CHECKING:
    from lgov_core.gateway.server import MountedApp


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A request to ``lgov train``.

    ``agent`` is ``module:function`` or ``file.py:function``; ``folder`` is where the run leaves everything. ``traces`` is a
    store of recorded rollouts, for what learns from those. ``resume`` continues with the run in ``folder``. ``say`` writes one
    line for people. ``mounted`` is served beside the endpoint, where that is in this process.
    """

    settings: TrainSettings
    folder: Path
    agent: str | None = None
    traces: str | None = None
    resume: bool = False
    say: Callable[[str], None] = print
    mounted: MountedApp | None = None


Run = Callable[[TrainingJob], Mapping[str, Any]]

#: What runs reinforcement learning: name → (``module:function``, a line for people).
BACKENDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "torch": ("lgov_core.server.local:run_local", "one process of this machine (extra train)"),
        "verl": ("lgov_core.integrations.verl.training:run_on_verl", "verl on Ray (extra verl)"),
    }
)

#: What finds the checkpoints of backends with a layout of their own: ``module:function`` of a path, which returns the
#: folder of the whole model, or None.
CHECKPOINTS: Final = ("lgov_core.integrations.verl.checkpoints:find_sealed",)

#: Reinforcement learning by name; see `lgov_core.train.algorithms.algorithms`.
REINFORCEMENT: Final[Sequence[str]] = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce++", "ppo", "gdpo")

#: What else can be learnt from traces: name → ``module:function``. No backend takes part.
OTHERS: Final[Mapping[str, str]] = MappingProxyType(
    {"sft": "lgov_core.server.sft:run_sft", "prompt": "lgov_core.server.prompt:run_prompt"}
)


def algorithm_name(name: str) -> str:
    """The algorithm as it is written here: case and ``-`` for ``_`` do not count. Raises `SettingsError` for none."""
    algorithms = (*REINFORCEMENT, *OTHERS)
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    for form in (plain, plain.replace("_", ""), plain.replace(".", "_")):
        if form in algorithms:
            return form
    raise SettingsError(
        f"there is no algorithm {name!r}", hint=suggest_name(plain, algorithms, f"there are {', '.join(algorithms)}")
    )


def find_run(algorithm: str, backend: str = "torch") -> Run:
    """Returns what runs an algorithm on a backend. Raises `SettingsError` for names unknown, and for what is not installed."""
    algorithm = algorithm_name(algorithm)
    if backend not in BACKENDS:
        hint = suggest_name(backend, BACKENDS, f"there are {', '.join(BACKENDS)}")
        raise SettingsError(f"there is no backend {backend!r}", hint=hint)
    if algorithm in OTHERS and backend != "torch":
        raise SettingsError(
            f"{algorithm} is not reinforcement learning, and {backend} runs no other",
            hint=f"leave --backend out, or choose one of {', '.join(REINFORCEMENT)}",
        )
    try:
        return _loaded(OTHERS.get(algorithm) or BACKENDS[backend][0])
    except ModuleNotFoundError as error:
        what = f"algorithm {algorithm}" if algorithm in OTHERS else f"backend {backend}"
        extra = "verl" if backend == "verl" and algorithm not in OTHERS else "train,gateway"
        if error.name is not None and error.name.startswith("lgov_core"):
            raise SettingsError(f"{what} is not part of this version of lgov") from error
        raise SettingsError(f"{what} needs {error.name}", hint=f'pip install "lgov[{extra}]"') from error


def find_foreign_checkpoint(path: Path) -> Path | None:
    """The folder of the whole model in the checkpoint that ``path`` names, where another backend wrote it; else None."""
    return next((folder for finder in CHECKPOINTS if (folder := _loaded(finder)(path)) is not None), None)


def _loaded(entry_point: str) -> Any:
    module, _, function = entry_point.partition(":")
    return getattr(importlib.import_module(module), function)
