"""The sections of ``config.yaml``: a section is a frozen dataclass, a key one of its fields, whose type says which values are
allowed. Loads nothing heavy.

The text below each field is its row of ``docs/reference/settings.md``. A default of None means that the algorithm,
the engine or the command decides; the text says how.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from msgspec import Meta

from lgov_core._util.schema import Mistake, checked
from lgov_core.errors import SettingsError, TrainError

#: The largest number: infinity and what is not a number are above it.
FINITE: Final = sys.float_info.max

Text = Annotated[str, Meta(pattern=r"\S")]
Names = Annotated[tuple[Text, ...], Meta(description="a list of texts")]
#: A count that may be 0.
Whole = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Number = Annotated[float, Meta(ge=-FINITE, le=FINITE)]
AtLeast0 = Annotated[float, Meta(ge=0.0, le=FINITE)]
Above0 = Annotated[float, Meta(gt=0.0, le=FINITE)]


def check_values(value: Any) -> None:
    """Raises `TrainError` for a field of a dataclass with a value that its ``Annotated`` or ``Literal`` type does not allow."""
    for name, kind in _checked_kinds(type(value)).items():
        try:
            checked(getattr(value, name), kind)
        except Mistake as mistake:
            raise TrainError(
                f"{type(value).__name__}.{name} must be {mistake.expected}, not {getattr(value, name)!r}"
            ) from None


@functools.cache
def _checked_kinds(owner: type) -> Mapping[str, Any]:
    hints = get_type_hints(owner, include_extras=True)
    return {
        name: hint
        for name, hint in hints.items()
        if any(get_origin(kind) in (Annotated, Literal) for kind in (hint, *get_args(hint)))
    }


@dataclass(frozen=True, slots=True)
class PolicySection:
    """A policy of ``training.policies``: it answers ``agents`` (names or globs), and is not trained when ``frozen``."""

    agents: Names
    frozen: bool = False


#: The name of a policy is a part of the names of its weights.
_POLICY_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


def read_policies(value: Any, what: str) -> dict[str, PolicySection]:
    """The policies that ``value`` names: ``NAME: {agents: [...], frozen: true}``, ``NAME: frozen`` or ``NAME:`` alone.

    Without agents a policy answers the agent of its name. Raises `SettingsError`, which begins with ``what``.
    """
    if not isinstance(value, Mapping):
        raise SettingsError(f"{what} is {value!r}", hint="write names of policies below it")
    policies = {str(name): _read_policy(str(name), raw, what) for name, raw in value.items()}
    if policies and all(policy.frozen for policy in policies.values()):
        raise SettingsError(f"{what} are all frozen", hint="leave frozen out for those that are to be trained")
    return policies


def _read_policy(name: str, raw: Any, what: str) -> PolicySection:
    keys: Any = {"frozen": True} if raw == "frozen" else {} if raw is None else raw
    if isinstance(keys, Mapping) and not keys.keys() - {"agents", "frozen"} and _POLICY_NAME.fullmatch(name):
        try:
            policy = checked({"agents": [name], **keys}, PolicySection)
        except Mistake:
            pass
        else:
            if policy.agents:
                return policy
    raise SettingsError(
        f"{what}: {name} is {raw!r}",
        hint="write NAME: {agents: [...]} or NAME: frozen; a name has letters, digits, - and _",
    )


@dataclass(frozen=True, slots=True)
class ModelSection:
    """The model that is trained, and what samples it."""

    name: Text | None = None
    """``tiny``, ``smollm2``, a transformers folder, or a hub name."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The type that sampling and the update compute in. ``auto``: bfloat16 where the processor has it and the model has at
    least ten million parameters, else float32."""
    lora_rank: Whole | None = None
    """Rank of the adapters (LoRA); 0 trains all weights. Default: 16 from ten million parameters on, and always with the engine
    vllm; else 0. With ``--backend verl``: 0."""
    max_new_tokens: Count = 256
    """Maximum tokens of a reply. A prompt may be as long as the model's context."""
    max_batch: Count = 64
    """Maximum number of calls that the embedded engine decodes together."""
    tool_format: Text | None = None
    """How tools are written in the prompt: ``hermes``, ``examples``, ``compact`` or ``json``. Default: the model's."""
    served_as: Text | None = None
    """A further name of the model at the endpoint."""
    engine: Literal["embedded", "vllm"] = "embedded"
    """The engine that samples: ``embedded``, in the trainer's process, or ``vllm``."""
    engine_url: Text | None = None
    """Base URL of a vLLM that runs already, and reads this machine's files. Default: lgov starts one."""


@dataclass(frozen=True, slots=True)
class TrainingSection:
    """The batch of an update, and how the update is made."""

    algorithm: Text = "grpo"
    """``grpo``, ``dr_grpo``, ``dapo``, ``gspo``, ``cispo``, ``rloo``, ``reinforce++``, ``ppo`` or ``gdpo``; ``sft`` and
    ``prompt`` learn without reinforcement."""
    algorithm_options: Annotated[Mapping[str, Any], Meta(description="a mapping of options")] = field(
        default_factory=dict[str, Any]
    )
    """Fields of `CreditRules` and `UpdateConfig` that differ from the algorithm's, such as ``clip_high`` or ``schedule``;
    ``loss_form`` and ``scheme`` may name [your own](../how-to/algorithms.md#your-own-algorithm), as may ``sampler``."""
    plugins: Annotated[tuple[Path, ...], Meta(description="a list of files")] = ()
    """Files with plugins of your own, which name losses, schemes, samplers and callbacks. Installed plugins need no entry."""
    sampler: str | Mapping[str, Any] | None = None
    """Chooses the tasks of the next update: ``in_turn``, ``curriculum``, or a plugin's. Default: ``in_turn``."""
    callbacks: Annotated[tuple[str | Mapping[str, Any], ...], Meta(description="a list of names")] = ()
    """Callbacks of plugins, which get the figures of each update and evaluation."""
    learning_rate: Above0 | None = None
    """Learning rate of AdamW. Default: 2e-4; below ten million parameters without adapters 1e-3, which falls to a tenth
    (`schedule` linear); with ``--backend verl`` 1e-6, with adapters there 1e-5."""
    batch_size: Count | None = None
    """Tasks of one update, of ``sft`` rows. Default: 8; of ``sft`` and with ``--backend verl`` 32."""
    group_size: Count = 8
    """Rollouts of each task: the group that an advantage compares."""
    kl_coef: AtLeast0 | None = None
    """β, the weight of the KL to the first weights. 0: no KL, and none is measured. Default: the algorithm's (0.02 or 0)."""
    epochs: Count = 1
    """Passes over the tasks."""
    steps: Whole | None = None
    """Maximum number of updates; 0 only runs the test tasks. Default: as many as ``epochs`` make."""
    update_epochs: Count | None = None
    """Passes over the rollouts of one update. Default: 2; 1 for ``rloo``."""
    max_grad_norm: Above0 | None = None
    """Maximum norm of the gradient. Default: 1."""
    tokens_per_batch: Count | None = None
    """Maximum tokens of one forward pass, padding included. Changes memory, not what is learned. Default: 2048."""
    packing: Literal["auto", "tree", "rows"] = "auto"
    """Lets the update compute shared prefixes once: ``tree`` yes, ``rows`` no, ``auto`` where it saves enough."""
    max_staleness: Whole | None = None
    """How many updates older the weights of a rollout may be than those it trains; above 0 rollouts continue during the
    update. Default: 0; 1 with the engine vllm."""
    max_extra_groups: Whole | None = None
    """Maximum number of groups of other tasks that an update collects in place of groups in which all rollouts are alike.
    Default: twice ``batch_size`` for ``dapo``, else 0."""
    discount: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    """Discount factor of later rewards, for each turn. Default: 1."""
    evaluate_every: Whole = 0
    """Run the test tasks every N updates. 0: only before the first and after the last."""
    rollouts_per_test_task: Count = 1
    """Rollouts of each test task in an evaluation."""
    stop_after_evaluations: Count | None = None
    """End the training once the mean reward of the test tasks has not risen in this many evaluations. Default: never."""
    stop_on_collapse: bool = True
    """End the training once the policy [has collapsed](../how-to/training.md#why-it-does-not-learn-and-whether-it-cheats)."""
    checkpoint_every: Count = 5
    """Write a checkpoint every N updates, and after the last."""
    keep_weights: bool = False
    """Keep every version of the weights that was served, so that ``lgov demo --verify`` can recompute what was captured."""
    agents: Names = ()
    """Names or globs of the agents whose calls are trained on. Default: all."""
    policies: Mapping[str, PolicySection] = field(default_factory=dict[str, PolicySection])
    """Adapters of their own for agents that share the model, by name: the ``agents`` of each, or ``frozen`` for the model
    unchanged."""
    curriculum: bool = False
    """The same as the sampler ``curriculum``: draw tasks less often whose rollouts all passed, or all failed, in the last two
    updates."""
    seed: int = 0
    """Seed of the adapters, the order of tasks, and sampling. Only with ``nworkers`` 1 do two runs sample the same replies:
    else timing decides which calls are sampled together."""

    @property
    def sampled_by(self) -> str | Mapping[str, Any]:
        """The sampler that ``sampler`` and ``curriculum`` name."""
        return self.sampler or ("curriculum" if self.curriculum else "in_turn")

    @property
    def update_tasks(self) -> int:
        """The tasks of one update on one machine."""
        return self.batch_size or 8


@dataclass(frozen=True, slots=True)
class RuntimeSection:
    """Where agents run, and what is done around them."""

    nworkers: Count = 4
    """Rollouts that run at a time."""
    workers: Literal["threads", "processes"] | None = None
    """Run rollouts in threads of the client, or in processes. Default: processes for ``lgov train``, threads for ``Client``."""
    auto_instrumentation: bool = True
    """Instrument every installed framework."""
    air_enabled: bool = True
    """Pay intermediate rewards (AIR) for tool and model calls."""
    policy: Path | None = None
    """Policy file under which agents run. Default: nothing is evaluated."""
    confine: bool = False
    """Run worker processes in a box of the kernel's."""
    timeout_s: Above0 = 600.0
    """Seconds that an attempt may take."""
    max_attempts: Count = 3
    """Maximum tries of a rollout when a machine or a timeout breaks it."""

    def refuse_confinement(self) -> None:
        """Raises `SettingsError` where ``confine`` is set and agents would run in this process."""
        if self.confine:
            raise SettingsError(
                "runtime.confine is for worker processes, and here agents run in threads",
                hint="use lgov train, or run the program itself with lgov run --confine",
            )


@dataclass(frozen=True, slots=True)
class DataSection:
    """The task files, for ``lgov train`` and ``Trainer``: JSON lines, relative to the settings file."""

    train: Path | None = None
    """Tasks to train on."""
    test: Path | None = None
    """Held-out tasks: measured, never trained on."""


@dataclass(frozen=True, slots=True)
class SftSection:
    """Which recorded rollouts ``--algorithm sft`` imitates."""

    outcomes: Names = ("succeeded",)
    """Outcomes that an attempt may have ended with."""
    min_reward: Number | None = None
    """Least sum of an attempt's rewards in ``dimension``. Default: any."""
    dimension: Text = "task"
    """The dimension of rewards that ``min_reward`` and ``top_share`` compare."""
    top_share: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Share of each task's best attempts that is taken."""
    compliant: bool = True
    """Leave out attempts in which an act was denied."""
    held_out: Annotated[float, Meta(ge=0.0, le=0.5)] = 0.1
    """Share of the tasks that is measured and not trained on."""
    include_held_out: bool = False
    """Also imitate rollouts of mode test, val or eval."""


@dataclass(frozen=True, slots=True)
class PromptSection:
    """How ``--algorithm prompt`` searches for a better prompt."""

    template: Path | None = None
    """File with the prompt to begin with."""
    name: Text = "prompt"
    """Name under which agents find it in ``resource.prompts``."""
    critic_url: Text | None = None
    """Base URL of the OpenAI-compatible model that criticises and rewrites."""
    critic_model: Text = "gpt-4.1-mini"
    """Name of that model."""
    critic_key_env: Text = "OPENAI_API_KEY"
    """Environment variable with its key."""
    upstream: Text | None = None
    """Base URL of the model that agents ask. Default: the model of ``model.name``."""
    rounds: Count = 3
    """Rounds of the search."""
    beam: Count = 2
    """The best templates that each round goes on from."""
    candidates: Count = 3
    """New templates that a round makes of each of them."""
    tasks: Count = 16
    """Tasks on which a round scores every template."""
    repeats: Count = 1
    """Rollouts of each of these tasks."""
    budget: Count | None = None
    """Maximum number of rollouts. Default: as many as the rounds make."""


@dataclass(frozen=True, slots=True)
class VerlSection:
    """For ``--backend verl``: see [beyond one machine](../how-to/scale.md#beyond-one-machine-verl-on-ray)."""

    nodes: Count = 1
    """Nodes of the Ray cluster."""
    gpus: Count = 1
    """GPUs of each node."""
    server: Text = "vllm"
    """The engine that samples: ``vllm`` or ``sglang``."""
    tensor_parallel: Count = 1
    """GPUs of one server."""
    gpu_memory: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.5
    """Share of a GPU's memory that the server takes; the trainer has the rest."""
    address: Text | None = None
    """Address of a Ray cluster, or ``auto``. Default: one is started here."""
    tokens_per_gpu: Count = 16384
    """Maximum tokens of one forward pass on a GPU."""
    offload: bool = False
    """Keep parameters and optimiser states in the CPU's memory while they are not used."""
    mini_batches: Count = 1
    """Optimiser steps of one pass."""
    max_ratio_weight: Above0 | None = 2.0
    """Maximum weight that corrects between server and trainer; null: no correction."""
    recompute: bool = True
    """Compute the old policy's log-probabilities again; false takes the server's, without correction."""
    context_tokens: Count = 8192
    """Maximum tokens of a conversation; longer ones are left out and counted."""
    temperature: Above0 = 1.0
    """Temperature at which agents must sample; calls at another are left out and counted."""
    overrides: Names = ()
    """Settings of verl's own, as its command line takes them."""
    listen: Text | None = None
    """Address and port of the endpoint. Default: a free port of this machine."""
    key_secret_file: Text | None = None
    """File with the secret of the endpoint's keys, relative to the working folder; needed where other machines reach it."""


@dataclass(frozen=True, slots=True)
class VllmSection:
    """For ``model.engine: vllm``: see [sampling with vLLM](../how-to/scale.md#sampling-with-vllm)."""

    python: Path = Path(".venv-vllm/bin/python")
    """Interpreter of the environment that has vLLM."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of vLLM's copy of the model. Default: ``model.dtype``."""
    gpu_memory: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.5
    """Share of a GPU's memory that vLLM takes."""
    context_tokens: Count | None = None
    """Maximum tokens of prompt and reply together. Default: the model's own."""
    start_s: Above0 = 600.0
    """Seconds that a start may take."""
    sleep: bool = False
    """vLLM leaves its GPU memory to each update; `training.max_staleness` is then 0 unless it is set."""
    arguments: Names = ()
    """Further arguments of ``vllm serve``; they win over lgov's."""
