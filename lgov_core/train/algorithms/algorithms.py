"""The algorithms by name, what each sets, and what runs it: the tables behind ``lgov train``. Loads nothing heavy.

An algorithm of reinforcement learning is a choice of advantage (`CreditRules`) and of loss (`UpdateConfig`).
Formulas are those of the papers where a rollout is one model call. For rollouts of several calls the return is replaced by the
return from each call on (``scheme="return_to_go"``), which is the same number for one call; every other scheme can be chosen.
G rollouts of one task are a group, R their returns, g the returns from a turn on, r the ratio, A the advantage. The KL to the
reference enters the loss (k3), not the rewards, for every algorithm that has one.
Which is biased, and what to use when: docs/how-to/algorithms.md.

A run is a function of a `lgov_core.train.settings.TrainingJob` that is found by its name (`find_run`) and imported when it
is called. It returns figures as JSON values, and raises `LgovError` for what cannot be done.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, get_type_hints

from msgspec import Meta

from lgov_core._util.schema import Mistake, checked
from lgov_core.errors import LgovError, SettingsError, TrainError, suggest_name
from lgov_core.plugins import load_plugin_file, make_part, named_by_plugins
from lgov_core.train.sections import FINITE, Above0, AtLeast0, Count, TrainingSection, Whole, check_values
from lgov_core.transitions import SCHEMES, CreditRules

LOSSES: Final = ("clip", "sequence", "cispo", "plain")
#: The kinds of what `lgov_core.hookspecs.lgov_training` names, each with the names that lgov has itself.
KINDS: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {"loss": LOSSES, "scheme": tuple(SCHEMES), "sampler": ("in_turn", "curriculum"), "callback": ()}
)

#: How far one update may move a policy, in nats a token: after one that moves it further the learning rate is halved.
MOST_MOVED: Final = 0.5


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """Settings of the update. The defaults held on every seed tried; docs/how-to/algorithms.md has those that collapsed.

    **Loss.** ``loss`` is its form: ``clip`` (PPO's), ``sequence`` (GSPO's ratio of a whole call), ``cispo`` or ``plain`` (no
    ratio); formulas in `lgov_core.train.algorithms.losses`; or a function of the same tensors that gives a `PolicyLoss`.
    ``clip_low`` and ``clip_high`` bound the ratio to [1 - low, 1 + high]; ``dual_clip`` is the second bound where the advantage
    is negative (None: none). ``kl`` is β, the weight of the KL to the reference, ``entropy`` that of an entropy bonus. How
    tokens, calls and rollouts count is not set here but by `CreditRules.loss`.

    **Steps.** ``epochs`` passes are made over the rows of one update, each in ``minibatches`` steps of the optimiser
    (whole rollouts, in an order drawn from ``seed``). ``stop_kl`` ends the epochs early once the policy is that far, in
    nats a token, from where the update began. ``tokens_per_batch`` bounds the tokens of one forward pass: gradients are
    accumulated over as many as it takes, so it is memory, not learning. ``packing`` is ``auto``, ``tree`` (what rows begin
    with in common is computed once) or ``rows``.

    **Optimiser.** AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) with ``learning_rate``, ``beta1``, ``beta2`` and
    ``weight_decay``. The rate rises over ``warmup_steps`` updates from a first fraction of it, then stays (``constant``), or
    falls to ``final_rate`` of it over ``total_steps`` updates (``linear``, ``cosine``). ``max_grad_norm`` clips the gradient.
    ``precision`` is what passes compute in; weights and optimiser stay as they are. ``auto`` is bfloat16 where the device
    computes with it, else float32.

    **Off-policy.** Each token's ratio is taken to its recorded log-probability. A token that older weights sampled is
    corrected: its ratio is taken to the weights at the start of the update, and it counts by how much more likely they
    make it than it was, at most ``importance_cap`` times (``correction`` ``always``: all tokens, ``never``: none). Tokens of
    weights more than ``drop_older_than`` versions old are left out (None: none are).

    **Safety.** A KL to the reference above ``max_kl`` nats a token, on average, is an error before the step. Each update that
    moves the policy by more than `MOST_MOVED` halves the learning rate of those after it.

    **Critic.** With ``critic`` a value head is trained beside the policy: ``value_clip`` bounds how far its values move in one
    update (None: not at all), ``value_rate`` is its learning rate, ``value_width`` the width of its hidden layer.

    Raises `TrainError` for a value without meaning.
    """

    learning_rate: Above0 = 2e-4
    epochs: Count = 2
    kl: AtLeast0 = 0.02
    clip_low: AtLeast0 = 0.2
    clip_high: AtLeast0 = 0.28
    max_grad_norm: Above0 = 1.0
    tokens_per_batch: Count = 2048
    loss: str | Callable[..., Any] = "clip"
    dual_clip: Annotated[float, Meta(gt=1.0, le=FINITE)] | None = None
    entropy: AtLeast0 = 0.0
    minibatches: Count = 1
    stop_kl: Above0 | None = None
    beta1: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.95
    weight_decay: AtLeast0 = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Whole = 0
    total_steps: Count | None = None
    final_rate: AtLeast0 = 0.1
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    correction: Literal["stale", "always", "never"] = "stale"
    importance_cap: Above0 = 2.0
    drop_older_than: Whole | None = None
    max_kl: Above0 = 5.0
    critic: bool = False
    value_clip: Above0 | None = 0.2
    value_rate: Above0 = 1e-3
    value_width: Count = 64
    seed: int = 0
    packing: Literal["auto", "tree", "rows"] = "auto"

    def __post_init__(self) -> None:
        check_values(self)
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise TrainError(f"UpdateConfig.loss must be one of {', '.join(LOSSES)}, not {self.loss!r}")
        if self.schedule != "constant" and self.total_steps is None:
            raise TrainError(
                f"UpdateConfig.schedule {self.schedule} needs total_steps", hint="give the number of updates of the run"
            )

    def rate_at(self, step: int, total: int | None = None) -> float:
        """The fraction of the learning rate that update number ``step`` (from 0) of ``total`` (`total_steps`) uses."""
        warm = min(1.0, (step + 1) / (self.warmup_steps + 1))
        total = total or self.total_steps
        if self.schedule == "constant" or total is None:
            return warm
        span = max(1, total - self.warmup_steps)
        done = min(1.0, max(0, step - self.warmup_steps) / span)
        remaining = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return warm * (self.final_rate + (1 - self.final_rate) * remaining)


@dataclass(frozen=True, slots=True)
class SupervisedConfig:
    """``steps`` optimiser steps of ``batch`` rows; linear warm-up over 10 steps, then linear decay to a tenth.

    ``precision`` is as in `UpdateConfig`. ``tokens_per_pass`` bounds the padded tokens of one forward pass (speed and memory,
    not learning).
    """

    steps: int = 300
    batch: int = 64
    learning_rate: float = 2e-3
    max_grad_norm: float = 1.0
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    tokens_per_pass: int = 1024


#: Below the floor a group counts as one in which all are alike; the papers divide by the deviation itself.
_IN_DEVIATIONS: Final = CreditRules(std_floor=1e-6, deviation="sample", apart=False)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A named choice: ``credit`` says what each token is worth, ``update`` what is done with it.

    ``extra_groups`` is how many times as many groups as an update asks for may be collected in place of alike ones.
    """

    name: str
    credit: CreditRules
    update: UpdateConfig
    extra_groups: int = 0


def grpo() -> Algorithm:
    """GRPO: A = (g - mean(g)) / std(R), clipped ratio, every rollout's tokens averaged first, KL to the reference.

    Source: Shao et al. 2024, arXiv 2402.03300, eq. 3 and 4 (outcome supervision). The deviation is that of the sample, as in
    verl and TRL. Biased: groups whose rollouts are nearly alike weigh more (division by the deviation), and tokens of long
    replies less (arXiv 2503.20783, section 3.1). The clip is symmetric.
    """
    return Algorithm(
        "grpo",
        replace(_IN_DEVIATIONS, loss="rollout_tokens"),
        UpdateConfig(clip_low=0.2, clip_high=0.2, kl=0.02),
    )


def dr_grpo() -> Algorithm:
    """Dr. GRPO: A = g - mean(g), every token the same weight 1 / (rollouts x constant), clipped ratio, no KL.

    Source: Liu et al. 2025, arXiv 2503.20783, section 3.2. The constant is ``loss_length``. Unbiased up to a factor for
    rollouts of one call; with ``leave_one_out=True`` for several as well.
    """
    return Algorithm("dr_grpo", CreditRules(loss="rollouts"), UpdateConfig(clip_low=0.2, clip_high=0.2, kl=0.0))


def dapo() -> Algorithm:
    """DAPO: GRPO's advantage, the clip wider upwards (0.2, 0.28), all tokens the same, alike groups left out, no KL.

    Source: Yu et al. 2025, arXiv 2503.14476, eq. 8 to 12. Groups in which all rollouts are alike are not part of the
    batch (``skip_equal``), and further ones are collected in their place (dynamic sampling, section 3.2), here at most
    twice as many as were asked for. Its penalty on long replies is
    `lgov_core.transitions.advantages.penalise_length`, and off unless used. Biased as GRPO by the deviation.
    """
    return Algorithm(
        "dapo",
        replace(_IN_DEVIATIONS, loss="tokens", skip_equal=True),
        UpdateConfig(clip_low=0.2, clip_high=0.28, kl=0.0),
        extra_groups=2,
    )


def gspo() -> Algorithm:
    """GSPO: GRPO's advantage, one ratio for a whole call (the geometric mean of its tokens'), a clip of 3e-4 and 4e-4.

    Source: Zheng et al. 2025, arXiv 2507.18071; the clip range is that of its experiments. A call is a sequence; each counts
    the same within its rollout, and each rollout the same (``loss="turns"``). Biased as GRPO by the deviation, and by the
    geometric mean.
    """
    return Algorithm(
        "gspo",
        replace(_IN_DEVIATIONS, loss="turns"),
        UpdateConfig(loss="sequence", clip_low=3e-4, clip_high=4e-4, kl=0.0),
    )


def cispo() -> Algorithm:
    """CISPO: GRPO's advantage, the log-probability weighted by a bounded, constant ratio, all tokens the same, no KL.

    Source: MiniMax 2025, arXiv 2506.13585. No token's gradient is switched off, however far its ratio is. There is no bound
    from below, as there; the upper bound of the ratio here is 5 (``clip_high`` 4). Biased as GRPO by the deviation, and by
    the bound.
    """
    return Algorithm(
        "cispo",
        replace(_IN_DEVIATIONS, loss="tokens"),
        UpdateConfig(loss="cispo", clip_low=1.0, clip_high=4.0, kl=0.0),
    )


def rloo() -> Algorithm:
    """RLOO: A = g - mean of the *other* rollouts, -A·log π without a ratio, one pass.

    Source: Ahmadian et al. 2024, arXiv 2402.14740; Kool et al. 2019. Every token counts 1 / rollouts (``loss="rollouts"``).
    Unbiased: the gradient of the expected return, for rollouts of several calls too
    (`tests/transitions/test_credit_mdp.py`), less that of the KL. More than one epoch would be biased, for nothing
    corrects for the step in between.
    """
    return Algorithm(
        "rloo", CreditRules(leave_one_out=True, loss="rollouts"), UpdateConfig(loss="plain", epochs=1, kl=0.02)
    )


def reinforce_plus_plus() -> Algorithm:
    """REINFORCE++: A = g, normalised over all tokens of the batch; no groups; clipped ratio, KL to the reference.

    Source: Hu et al. 2025, arXiv 2501.03262. Needs no group: one rollout a task will do. ``baseline="turn"`` makes it the
    paper's variant with a group's mean (there REINFORCE++-baseline). Biased a little: the batch's mean and deviation hold
    the rollout itself.
    """
    return Algorithm(
        "reinforce++",
        CreditRules(baseline="none", normalise_batch=True, min_group=1),
        UpdateConfig(clip_low=0.2, clip_high=0.2, kl=0.02),
    )


def ppo() -> Algorithm:
    """PPO: A from a critic by GAE over turns (λ 0.95), normalised over the batch; clipped ratio, KL to the reference.

    Sources: Schulman et al. 2017, arXiv 1707.06347, eq. 7; GAE: Schulman et al. 2016, arXiv 1506.02438, eq. 16; a step is a
    turn, not a token (as arXiv 2512.17008). The critic is a value head on the policy's own states, which it does not
    change; its loss is clipped. Needs no group. Biased by as much as the critic is wrong, if λ or the discount is below 1.
    """
    return Algorithm(
        "ppo",
        CreditRules(scheme="gae", normalise_batch=True, min_group=1),
        UpdateConfig(clip_low=0.2, clip_high=0.2, kl=0.02, critic=True, dual_clip=3.0),
    )


def gdpo() -> Algorithm:
    """GDPO: each reward channel normalised by its group as in GRPO, then summed, then normalised over the batch.

    Source: arXiv 2601.05242. So a channel of large numbers (a penalty of 100) cannot drown one of small ones; weights between
    channels are ``channel_weights``. A channel with a bound (AIR) is added as it is. Biased as GRPO by the deviation.
    """
    return Algorithm(
        "gdpo",
        replace(_IN_DEVIATIONS, apart=True, loss="rollout_tokens", normalise_batch=True),
        UpdateConfig(clip_low=0.2, clip_high=0.2, kl=0.02),
    )


#: The algorithms by name.
ALGORITHMS: Final[Mapping[str, Callable[[], Algorithm]]] = MappingProxyType(
    {make().name: make for make in (grpo, dr_grpo, dapo, gspo, cispo, rloo, reinforce_plus_plus, ppo, gdpo)}
)
_CREDIT: Final = {field.name for field in fields(CreditRules)}
_UPDATE: Final = {field.name for field in fields(UpdateConfig)}
#: The types of their fields.
_HINTS: Final = {
    "credit": get_type_hints(CreditRules, include_extras=True),
    "update": get_type_hints(UpdateConfig, include_extras=True),
}
#: `CreditRules.loss` and `UpdateConfig.loss` have one name; so has each here.
_RENAMED: Final = {"loss_weighting": ("credit", "loss"), "loss_form": ("update", "loss")}
#: Overrides that have a setting of their own.
_SETTINGS: Final = {
    **{name: f"training.{name}" for name in ("learning_rate", "max_grad_norm", "tokens_per_batch", "packing", "seed")},
    "discount": "training.discount", "epochs": "training.update_epochs", "kl": "training.kl_coef",
    "precision": "model.dtype", "critic": "training.algorithm: ppo",
    "total_steps": "training.steps: the run knows how many updates it makes",
}  # fmt: skip
#: Overrides that change something only beside such a value of another field.
_ONLY_WITH: Final[Mapping[str, tuple[str, Sequence[Any]]]] = {
    **dict.fromkeys(("clip_low", "clip_high"), ("loss_form", ("clip", "sequence", "cispo"))),
    "dual_clip": ("loss_form", ("clip",)), "final_rate": ("schedule", ("linear", "cosine")),
    **dict.fromkeys(("state", "step_weight"), ("scheme", ("gigpo",))), "gae_lambda": ("scheme", ("gae",)),
    **dict.fromkeys(("value_clip", "value_rate", "value_width"), ("critic", (True,))),
}  # fmt: skip


def algorithm(name: str, **overrides: Any) -> Algorithm:
    """The algorithm ``name`` (case and ``-`` for ``_`` do not count), with fields of its parts replaced by ``overrides``.

    These are fields of `CreditRules` and `UpdateConfig`; ``loss_weighting`` is `CreditRules.loss`, ``loss_form`` is
    `UpdateConfig.loss`. Raises `SettingsError` for names that there are not, with the nearest one, and `TransitionError` or
    `TrainError` for values without meaning.
    """
    canonical = algorithm_name(name)
    if canonical not in ALGORITHMS:
        raise SettingsError(
            f"{canonical} is not a reinforcement learning algorithm", hint=f"there are {', '.join(REINFORCEMENT)}"
        )
    preset = ALGORITHMS[canonical]()
    parts: dict[str, dict[str, Any]] = {"credit": {}, "update": {}}
    for key, value in overrides.items():
        section, field = _place(key)
        parts[section][field] = value
    return replace(
        preset, credit=replace(preset.credit, **parts["credit"]), update=replace(preset.update, **parts["update"])
    )


def _place(key: str) -> tuple[str, str]:
    if key == "loss":
        raise SettingsError(
            "loss can be two things", hint="write loss_weighting (CreditRules) or loss_form (UpdateConfig)"
        )
    if key in _RENAMED:
        return _RENAMED[key]
    if key in _CREDIT:
        return "credit", key
    if key in _UPDATE:
        return "update", key
    names = sorted((_CREDIT | _UPDATE | set(_RENAMED)) - {"loss"})
    raise SettingsError(
        f"an algorithm has no setting {key}", hint=suggest_name(key, names, f"there are {', '.join(names)}")
    )


def read_parts(
    training: TrainingSection, where: Callable[[tuple[str, ...]], str] = ".".join
) -> tuple[dict[str, Any], Callable[..., Any] | str, list[Callable[..., Any]]]:
    """The overrides of `algorithm`, the sampler and the callbacks that ``training`` names; of lgov's own parts the names.

    All are checked: names, options, and that they change something. ``where`` says where a key was set. Raises `SettingsError`.
    """
    with _told(where(("training", "plugins"))):
        named = named_by_plugins("lgov_training", KINDS, map(load_plugin_file, training.plugins))
    overrides: dict[str, Any] = {}
    for key, value in training.algorithm_options.items():
        with _told(where(("training", "algorithm_options", key))):
            section, name = _place(key)
            if key in _SETTINGS:
                raise SettingsError(f"{key} is not among algorithm_options", hint=f"write {_SETTINGS[key]}")
            kind = {"scheme": "scheme", "loss_form": "loss"}.get(key)
            overrides[key] = _part(kind, value, named) if kind else _value(key, value, _HINTS[section][name])
    if overrides.get("schedule", "constant") != "constant":
        overrides["total_steps"] = 1  # with each update the run says how many it makes
    name = algorithm_name(training.algorithm)
    with _told(where(("training", "algorithm_options"))):
        if name in OTHERS and (overrides or training.sampler or training.callbacks):
            raise SettingsError(f"{name} takes no algorithm_options, sampler or callbacks", hint="leave them out")
        chosen = algorithm("grpo" if name in OTHERS else name, **overrides)
        scheme = chosen.credit.scheme
        if (scheme == "gae") is not chosen.update.critic:
            raise SettingsError(f"{name} and the scheme {scheme} do not go together", hint="gae is ppo's")
    for key in overrides:
        with _told(where(("training", "algorithm_options", key))):
            _check_used(key, chosen)
    with _told(where(("training", "sampler"))):
        if training.curriculum and training.sampler not in (None, "curriculum"):
            raise SettingsError("training.curriculum is another sampler", hint="leave one of them out")
        sampler = _part("sampler", training.sampled_by, named)
    with _told(where(("training", "callbacks"))):
        callbacks: list[Any] = [_part("callback", raw, named) for raw in training.callbacks]
    with _told(where(("training", "stop_after_evaluations"))):
        if training.stop_after_evaluations and not training.evaluate_every:
            raise SettingsError("no evaluations are made during the training", hint="set training.evaluate_every")
    return overrides, sampler, callbacks


def _value(name: str, raw: Any, kind: Any) -> Any:
    """``raw`` as a value of type ``kind``; text may be a number: YAML 1.1 reads 5e-7 as text. Raises `SettingsError`."""
    try:
        return checked(raw, kind, strict=not isinstance(raw, str))
    except Mistake as mistake:
        raise SettingsError(f"{name} must be {mistake.expected}, not {raw!r}") from None


def _part(kind: str, raw: Any, named: Mapping[str, Mapping[str, Any]]) -> Callable[..., Any] | str:
    """The part that ``raw`` names: NAME, or {use: NAME, with: options}; a name for one of lgov's. Raises `SettingsError`."""
    fields: Any = raw if isinstance(raw, Mapping) else {"use": raw}
    use, options = fields.get("use"), fields.get("with") or {}
    if not isinstance(use, str) or not isinstance(options, Mapping) or fields.keys() - {"use", "with"}:
        raise SettingsError(f"the {kind} is {raw!r}", hint="write NAME or {use: NAME, with: {option: value}}")
    if use in KINDS[kind] and not options:
        return use
    if use not in named[kind]:
        names = [*named[kind], *([] if options else KINDS[kind])]
        hint = suggest_name(use, names, f"there are {', '.join(names) or 'none'}; plugins name more")
        raise SettingsError(f"there is no {kind} {use}{' with options' if options else ''}", hint=hint)
    plugin, factory = named[kind][use]
    return make_part(f"{kind} {use} of {plugin}", factory, options)


def _check_used(key: str, chosen: Algorithm) -> None:
    """Raises `SettingsError` for an option that changes nothing beside the other choices."""
    other, values = _ONLY_WITH.get(key, (key, None))
    section, name = _place(other)
    if values is not None and (value := getattr(getattr(chosen, section), name)) not in values:
        value = getattr(value, "__name__", value)
        raise SettingsError(f"{key} changes nothing where {other} is {value}", hint="leave it out")


@contextlib.contextmanager
def _told(origin: str) -> Generator[None]:
    """Says in front of errors where the setting is that they are about."""
    try:
        yield
    except LgovError as error:
        raise SettingsError(f"{origin}: {error.message}", hint=error.hint) from error


Run = Callable[[Any], Mapping[str, Any]]

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

#: Reinforcement learning by name.
REINFORCEMENT: Final[Sequence[str]] = tuple(ALGORITHMS)

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
