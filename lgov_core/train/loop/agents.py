"""Several agents on one model, each with weights of its own: some are trained while the others stay as they are."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lgov_core.errors import TrainError
from lgov_core.train.loop.loop import Iteration, Task, TrainingLoop
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.train.loop.training_run import Resumed


def adapter_policy(serving: Any, *, rank: int = 16, seed: int = 0) -> PolicyModel:
    """Low-rank additions to every linear layer of ``serving`` learn; the reference is ``serving`` without them.

    ``serving`` is the module that an embedded engine decodes with; its weights are shared, not copied, and frozen, so that
    any number of agents costs one model. What is served are the additions alone, for
    `lgov_core.gateway.engine.served_policy.ServedPolicy.publish` (LoRA: Hu et al. 2021, arXiv 2106.09685, section 4.1, with
    alpha = 2 · rank). torch's global random state is left as it was. Needs the extra ``train`` (peft).
    """
    from peft import LoraConfig, get_peft_model

    shared: dict[int, Any] = {id(parameter): parameter for parameter in serving.parameters()}
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: Any = get_peft_model(copy.deepcopy(serving, shared), config)

    def served() -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        base: Any = module.get_base_model()
        for name, layer in base.named_modules():
            if hasattr(layer, "get_delta_weight") and hasattr(layer, "base_layer"):
                found[f"{name}.lora_A.weight"] = layer.lora_A["default"].weight.detach().clone()
                found[f"{name}.lora_B.weight"] = layer.lora_B["default"].weight.detach() * layer.scaling["default"]
        return found

    return PolicyModel(module, served, reference_mode=module.disable_adapter)


class AlternatingSchedule:
    """Trains agents one after the other: in each step one of them, on its own calls, while the others are frozen.

    ``loops`` are the training loops by agent, each with a folder, a `Selection` of its agent's calls and the publisher of
    its weights (`EmbeddedEngine.policy`) of its own; an agent without a loop is never trained. ``order`` names whose turn it
    is, again and again (each once, unless given: ``("writer", "writer", "checker")`` trains the writer twice as often).
    Raises `TrainError` when it cannot be. Call from one thread.
    """

    def __init__(self, loops: Mapping[str, TrainingLoop], order: Sequence[str] | None = None) -> None:
        self.loops = dict(loops)
        self.order = tuple(self.loops if order is None else order)
        if not self.order or set(self.order) != set(self.loops):
            named = ", ".join(self.order) or "no agent"
            raise TrainError(f"the order names {named}; there are loops for {', '.join(self.loops) or 'no agent'}")
        folders = {loop.run.folder.resolve() for loop in self.loops.values()}
        publishers = {id(loop.engine) for loop in self.loops.values()}
        if min(len(folders), len(publishers)) < len(self.loops):
            raise TrainError("two agents have one folder, or one publisher", hint="each needs its own")
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
        """Who is trained next."""
        return self.order[self.done % len(self.order)]

    def resume(self) -> dict[str, Resumed]:
        """Goes on where all of them were when they were killed; whose turn it was stays so."""
        return {name: loop.resume() for name, loop in self.loops.items()}

    def iterate(self, tasks: Sequence[Task], group: int, **more: Any) -> tuple[str, Iteration]:
        """One step of the agent whose turn it is; ``more`` goes to `TrainingLoop.iterate`. Returns the agent's name too."""
        name = self.turn
        return name, self.loops[name].iterate(tasks, group, **more)
