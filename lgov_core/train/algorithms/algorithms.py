"""The algorithms by name: each is a choice of advantage (`CreditRules`) and of loss (`UpdateConfig`). Loads nothing heavy.

Formulas are those of the papers where a rollout is one model call. For rollouts of several calls the return is replaced by the
return from each call on (``scheme="return_to_go"``), which is the same number for one call; every other scheme can be chosen.
G rollouts of one task are a group, R their returns, g the returns from a turn on, r the ratio, A the advantage. The KL to the
reference enters the loss (k3), not the rewards, for every algorithm that has one.

Which is biased, and what to use when: docs/concepts/updates.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final

from lgov_core._util.words import suggest_name
from lgov_core.errors import SettingsError
from lgov_core.train.algorithms.config import UpdateConfig
from lgov_core.train.algorithms.registry import REINFORCEMENT, algorithm_name
from lgov_core.transitions import CreditRules

#: Below this a group counts as one in which all are alike; the papers divide by the deviation itself.
_SMALLEST_DEVIATION: Final = 1e-6


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
        CreditRules(std_floor=_SMALLEST_DEVIATION, deviation="sample", apart=False, loss="rollout_tokens"),
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
        CreditRules(std_floor=_SMALLEST_DEVIATION, deviation="sample", apart=False, loss="tokens", skip_equal=True),
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
        CreditRules(std_floor=_SMALLEST_DEVIATION, deviation="sample", apart=False, loss="turns"),
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
        CreditRules(std_floor=_SMALLEST_DEVIATION, deviation="sample", apart=False, loss="tokens"),
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
    channels are ``channel_weights``. Note that AIR is a channel too: noise in it counts in full. Biased as GRPO by the
    deviation.
    """
    return Algorithm(
        "gdpo",
        CreditRules(
            std_floor=_SMALLEST_DEVIATION, deviation="sample", apart=True, loss="rollout_tokens", normalise_batch=True
        ),
        UpdateConfig(clip_low=0.2, clip_high=0.2, kl=0.02),
    )


#: The algorithms by name.
ALGORITHMS: Final[Mapping[str, Callable[[], Algorithm]]] = MappingProxyType(
    dict(zip(REINFORCEMENT, (grpo, dr_grpo, dapo, gspo, cispo, rloo, reinforce_plus_plus, ppo, gdpo), strict=True))
)
_CREDIT: Final = {field.name for field in fields(CreditRules)}
_UPDATE: Final = {field.name for field in fields(UpdateConfig)}
#: `CreditRules.loss` and `UpdateConfig.loss` have one name; so has each here.
_RENAMED: Final = {"loss_weighting": ("credit", "loss"), "loss_form": ("update", "loss")}


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
        section, field = _RENAMED.get(key) or _place(key)
        parts[section][field] = value
    return replace(
        preset, credit=replace(preset.credit, **parts["credit"]), update=replace(preset.update, **parts["update"])
    )


def _place(key: str) -> tuple[str, str]:
    if key == "loss":
        raise SettingsError(
            "loss can be two things", hint="write loss_weighting (CreditRules) or loss_form (UpdateConfig)"
        )
    if key in _CREDIT:
        return "credit", key
    if key in _UPDATE:
        return "update", key
    names = sorted((_CREDIT | _UPDATE | set(_RENAMED)) - {"loss"})
    raise SettingsError(
        f"an algorithm has no setting {key}", hint=suggest_name(key, names, f"there are {', '.join(names)}")
    )
