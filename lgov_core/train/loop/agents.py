"""Several agents on one model, each with its own weights, trained in turns."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lgov_core.errors import TrainError
from lgov_core.train.loop.loop import Iteration, Task, TrainingLoop
from lgov_core.train.loop.policy_model import PolicyModel, adapters_of, with_adapters
from lgov_core.train.loop.training_run import Resumed


def adapter_policy(serving: Any, *, rank: int = 16, seed: int = 0) -> PolicyModel:
    """LoRA adapters on every linear layer of ``serving`` learn; the reference is ``serving`` without them.

    ``serving``, the module of an embedded engine, is shared and frozen, not copied: any number of agents costs one
    model. Only the adapters are served, by `ServedPolicy.publish` (Hu et al. 2021, arXiv 2106.09685, section 4.1, alpha
    = 2 · rank). torch's global random state is unchanged. Needs the extra ``train`` (peft).
    """
    shared: dict[int, Any] = {id(parameter): parameter for parameter in serving.parameters()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = with_adapters(copy.deepcopy(serving, shared), rank)

    def served() -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for name, layer in adapters_of(module):
            tensors[f"{name}.lora_A.weight"] = layer.lora_A["default"].weight.detach().clone()
            tensors[f"{name}.lora_B.weight"] = layer.lora_B["default"].weight.detach() * layer.scaling["default"]
        return tensors

    return PolicyModel(module, served, reference_mode=module.disable_adapter)


class AlternatingSchedule:
    """Trains one agent a step, on its own calls, while the others are frozen.

    ``loops`` are training loops by agent, each with its own folder, `Selection` and `EngineControl`
    (`EmbeddedEngine.policy`); an agent without a loop is never trained. ``order`` is repeated (default: each once;
    ``("writer", "writer", "checker")`` trains the writer twice as often). Raises `TrainError` for loops that share one
    of these. Call from one thread.
    """

    def __init__(self, loops: Mapping[str, TrainingLoop], order: Sequence[str] | None = None) -> None:
        self.loops = dict(loops)
        self.order = tuple(self.loops if order is None else order)
        if not self.order or set(self.order) != set(self.loops):
            named = ", ".join(self.order) or "no agent"
            raise TrainError(f"the order names {named}; there are loops for {', '.join(self.loops) or 'no agent'}")
        folders = {loop.run.folder.resolve() for loop in self.loops.values()}
        engines = {id(loop.engine) for loop in self.loops.values()}
        if min(len(folders), len(engines)) < len(self.loops):
            raise TrainError("two agents have one folder, or one engine", hint="each needs its own")
        everything = [name for name, loop in self.loops.items() if loop.selection.everything]
        if everything:
            raise TrainError(
                f"agent {everything[0]!r} would be trained on the calls of all agents",
                hint=f"pass selection=Selection(agents=({everything[0]!r},)) to its loop",
            )

    @property
    def done(self) -> int:
        """How many updates are done, of all agents together."""
        return sum(loop.done for loop in self.loops.values())

    @property
    def turn(self) -> str:
        """The agent that is trained next."""
        return self.order[self.done % len(self.order)]

    def resume(self) -> dict[str, Resumed]:
        """Resumes all loops; the turn is kept."""
        return {name: loop.resume() for name, loop in self.loops.items()}

    def iterate(self, tasks: Sequence[Task], group: int, **more: Any) -> tuple[str, Iteration]:
        """One step of the agent whose turn it is, and its name; ``more`` goes to `TrainingLoop.iterate`."""
        name = self.turn
        return name, self.loops[name].iterate(tasks, group, **more)
