"""The losses of the algorithms, as pure functions of tensors: one number for each trained token, nothing summed yet.

Written for T trained tokens, all tensors float of shape (T,): ``logprobs`` l under the weights being trained (with
gradient), ``old`` l₀ under those that the ratio r = exp(l - l₀) compares them with, ``advantages`` A. ``sequences`` (int64,
shape (T,)) says to which model call a token belongs, as numbers from 0. What they return is to be *minimised*, and summed
with the tokens' weights: how tokens, calls and rollouts count against one another is in the weights
(`CreditRules.loss`), so each form can be aggregated in every way. `tests/train/test_references.py` compares them with
verl's ``core_algos``.

Log-ratios are bounded to ±20, so that a token which was all but impossible gives no infinity.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lgov_core.errors import TrainError
from lgov_core.train.algorithms.algorithms import UpdateConfig

Tensor = torch.Tensor

#: Bound of log-ratios. exp(20) is 5e8: far outside every clip range, and finite in float32 with any advantage.
LOG_BOUND = 20.0
#: Bound of the log-ratio of a whole call, as in verl.
SEQUENCE_LOG_BOUND = 10.0
#: What one token may add to the KL term at most, as in verl.
KL_BOUND = 10.0


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """``loss`` of each token, and ``clipped``: bool, where the clip range took the gradient (or, for cispo, bounded it)."""

    loss: Tensor
    clipped: Tensor


def policy_loss(
    config: UpdateConfig, logprobs: Tensor, old: Tensor, advantages: Tensor, sequences: Tensor
) -> PolicyLoss:
    """The form that ``config`` names, with its clip range, or its own function. Raises `TrainError` if that gives no loss."""
    low, high = config.clip_low, config.clip_high
    if not isinstance(config.loss, str):
        result = config.loss(logprobs, old, advantages, sequences)
        if not isinstance(result, PolicyLoss) or {result.loss.shape, result.clipped.shape} != {logprobs.shape}:
            name = getattr(config.loss, "__name__", config.loss)
            raise TrainError(f"{name} gave no PolicyLoss of {len(logprobs)} tokens", hint="see losses.PolicyLoss")
        return result
    if config.loss == "plain":
        return plain_loss(logprobs, advantages)
    if config.loss == "cispo":
        return cispo_loss(logprobs, old, advantages, low=low, high=high)
    if config.loss == "sequence":
        return sequence_loss(logprobs, old, advantages, sequences, low=low, high=high)
    return clip_loss(logprobs, old, advantages, low=low, high=high, dual=config.dual_clip)


def clip_loss(
    logprobs: Tensor, old: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None = None
) -> PolicyLoss:
    """-min(r·A, clip(r, 1 - low, 1 + high)·A); with ``dual`` c, where A < 0, never more than -c·A.

    Sources: PPO, Schulman et al. 2017, arXiv 1707.06347, eq. 7; low ≠ high: DAPO, arXiv 2503.14476, eq. 10; the second
    bound: dual-clip PPO, Ye et al. 2020, arXiv 1912.09729. verl's ``vanilla`` is this with ``dual=3``.
    """
    plain = _clipped(_ratio(logprobs, old), advantages, low, high)
    if dual is None:
        return plain
    limit = -advantages * dual
    over = (advantages < 0) & (plain.loss > limit)
    return PolicyLoss(torch.where(over, limit, plain.loss), (plain.clipped | over).detach())


def sequence_loss(
    logprobs: Tensor, old: Tensor, advantages: Tensor, sequences: Tensor, *, low: float, high: float
) -> PolicyLoss:
    """-min(s·A, clip(s, 1 - low, 1 + high)·A) with s = exp(mean over the call's tokens of l - l₀), the call's own ratio.

    Source: GSPO, Zheng et al. 2025, arXiv 2507.18071. In its token form (GSPO-token), which this is, the value of s is the
    call's and its gradient reaches each token through that token's own l, so that tokens of one call may have advantages
    of their own; where they are equal it is GSPO. Every token of a call must be there.
    """
    gap = (logprobs - old).detach()
    count = int(sequences.max()) + 1 if len(sequences) else 0
    sums = torch.zeros(count, dtype=gap.dtype, device=gap.device).index_add(0, sequences, gap)
    lengths = torch.zeros(count, dtype=gap.dtype, device=gap.device).index_add(0, sequences, torch.ones_like(gap))
    mean = (sums / lengths.clamp(min=1))[sequences]
    ratio = torch.exp((logprobs - logprobs.detach() + mean).clamp(max=SEQUENCE_LOG_BOUND))
    return _clipped(ratio, advantages, low, high)


def cispo_loss(logprobs: Tensor, old: Tensor, advantages: Tensor, *, low: float, high: float) -> PolicyLoss:
    """-sg(clip(r, 1 - low, 1 + high))·A·l: the ratio is bounded and then a constant, so every token keeps a gradient.

    Source: CISPO, MiniMax-M1, arXiv 2506.13585. With ``low`` 1 or more there is no bound from below, as there.
    """
    ratio = _ratio(logprobs, old).detach()
    bounded = ratio.clamp(1 - low, 1 + high)
    return PolicyLoss(-bounded * advantages * logprobs, bounded != ratio)


def plain_loss(logprobs: Tensor, advantages: Tensor) -> PolicyLoss:
    """-A·l: the policy gradient without a ratio (REINFORCE, Williams 1992; RLOO, arXiv 2402.14740, section 3).

    Right only for the first step after the tokens were sampled. verl's ``gpg``.
    """
    return PolicyLoss(-advantages * logprobs, torch.zeros_like(advantages, dtype=torch.bool))


def kl_to_reference(logprobs: Tensor, reference: Tensor) -> Tensor:
    """k3 = exp(l_ref - l) - (l_ref - l) - 1 for each token: at least 0, and KL(π, π_ref) in expectation under π.

    Sources: Schulman 2020, http://joschu.net/blog/kl-approx.html; GRPO, arXiv 2402.03300, eq. 4. Bounded to 10 a token, as
    verl's ``low_var_kl``: beyond it there is no gradient, and one token cannot be the whole update.
    """
    gap = (reference - logprobs).clamp(-LOG_BOUND, LOG_BOUND)
    return (gap.exp() - gap - 1).clamp(max=KL_BOUND)


def importance_weights(now: Tensor, recorded: Tensor, cap: float) -> Tensor:
    """min(exp(l_now - l_recorded), cap), without gradient: how much more likely a token is now than when it was sampled.

    Sources: truncated importance sampling, Ionides 2008; beside a clipped ratio to newer weights: the decoupled objective of
    Hilton et al. 2022, arXiv 2110.00641, used for asynchronous training by AReaL, arXiv 2505.24298. Biased by the cap, and
    by weighing tokens, not whole sequences. verl's ``rollout_is="token"``.
    """
    return (now - recorded).clamp(-LOG_BOUND, LOG_BOUND).exp().clamp(max=cap).detach()


def value_loss(values: Tensor, before: Tensor, targets: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """½·max((V - G)², (clip(V, V₀ - clip, V₀ + clip) - G)²) for each value, and where the second is the larger.

    ``values`` V has gradients, ``before`` V₀ is what the critic said before the update, ``targets`` G. ``clip`` None:
    ½·(V - G)². Source: PPO's reference implementation (Schulman et al. 2017; Huang et al. 2022, "The 37 implementation
    details of PPO", detail 9); verl's ``compute_value_loss``.
    """
    straight = (values - targets).square()
    if clip is None:
        return 0.5 * straight, torch.zeros_like(targets, dtype=torch.bool)
    bounded = (torch.minimum(torch.maximum(values, before - clip), before + clip) - targets).square()
    return 0.5 * torch.maximum(straight, bounded), (bounded > straight).detach()


def _clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> PolicyLoss:
    straight = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - low, 1 + high)
    return PolicyLoss(torch.maximum(straight, bounded), (bounded > straight).detach())


def _ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    return (logprobs - old).clamp(-LOG_BOUND, LOG_BOUND).exp()
