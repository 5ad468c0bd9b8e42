"""Calls, rewards and transitions made in an eighth of the time that their own constructors take.

Converting is mostly the making of these three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lgov_core.transitions.values import Transition
from lgov_core.types import Attempt, CapturedCall, Reward, Rollout


def draft_class(of: type[Any]) -> type[Any]:
    """A class whose objects are filled field by field and then become ``of``."""
    return type(f"_{of.__name__}Draft", (), {"__slots__": tuple(of.__dataclass_fields__)})


CallDraft = draft_class(CapturedCall)
RewardDraft = draft_class(Reward)
_TransitionDraft = draft_class(Transition)


def complete(call: CapturedCall, attempt: int | None, tool_call_ids: tuple[str, ...]) -> None:
    """Sets what is known only when all spans are read, on a call that nobody has been given yet."""
    object.__setattr__(call, "attempt", attempt)
    object.__setattr__(call, "tool_call_ids", tool_call_ids)


def transition_of(
    rollout: Rollout,
    attempt: Attempt,
    call: CapturedCall,
    turn: int,
    mask: tuple[int, ...],
    rewards: Mapping[str, float],
    truncated: bool,
    parent_response_id: str | None,
) -> Transition:
    """The transition of ``call``, without credit. ``mask`` has the length of its reply."""
    draft = _TransitionDraft()
    draft.run_id = rollout.run_id
    draft.weights_version = call.weights_version
    draft.model = call.model
    draft.task_id = rollout.task_id
    draft.rollout_id = rollout.rollout_id
    draft.attempt = attempt.attempt
    draft.turn = turn
    draft.response_id = call.response_id
    draft.agent = call.agent
    draft.prompt_ids = call.prompt_ids
    draft.response_ids = call.response_ids
    draft.response_mask = mask
    draft.logprobs = call.logprobs
    draft.temperature = call.temperature
    draft.finish_reason = call.finish_reason
    draft.outcome = attempt.outcome
    draft.rewards = rewards
    draft.value_to_go = None
    draft.advantages = None
    draft.loss_weight = 0.0
    draft.truncated = truncated
    draft.credit = None
    draft.choice = call.choice
    draft.tool_call_ids = call.tool_call_ids
    draft.parent_response_id = parent_response_id
    draft.value = None
    draft.set_aside = False
    draft.own_rewards = None
    draft.__class__ = Transition
    return draft
