"""Rollouts as TRL's ``rollout_func`` returns them."""

from __future__ import annotations

from dataclasses import replace

from lgov_core.transitions import TransitionSet
from lgov_core.transitions.rows import trl_rollouts
from lgov_core.transitions.transition_set import Transition
from lgov_core.types import Outcome

FIRST = Transition(
    run_id="run",
    weights_version=0,
    model="m",
    task_id="task",
    rollout_id="r1",
    attempt=1,
    turn=0,
    response_id="a",
    agent="clerk",
    prompt_ids=(1, 2),
    response_ids=(3,),
    response_mask=(1,),
    logprobs=(-0.5,),
    temperature=1.0,
    finish_reason="stop",
    outcome=Outcome.SUCCEEDED,
    rewards={"air": 0.25},
)
SECOND = replace(
    FIRST, turn=1, response_id="b", prompt_ids=(1, 2, 3, 9), response_ids=(4, 5), response_mask=(1, 1),
    logprobs=(-0.25, -0.125), rewards={"task": 1.0, "air": 0.25},
)  # fmt: skip
OTHER = replace(FIRST, rollout_id="r2", response_id="c", rewards={"task": 0.5})


def test_a_rollout_is_one_row_with_a_mask_over_what_others_said() -> None:
    found = trl_rollouts(TransitionSet((FIRST, SECOND, OTHER)))
    assert found.columns == {
        "prompt_ids": [[1, 2], [1, 2]],
        "completion_ids": [[3, 9, 4, 5], [3]],
        "env_mask": [[1, 0, 1, 1], [1]],
        "logprobs": [[-0.5, 0.0, -0.25, -0.125], [-0.5]],
        "task_id": ["task", "task"],
        "rollout_id": ["r1", "r2"],
        "held_out": [False, False],
        "reward_air": [0.5, 0.0],
        "reward_task": [1.0, 0.5],
    }
    assert found.left_out == {}


def test_what_trl_has_no_place_for_is_counted() -> None:
    rewritten = replace(SECOND, prompt_ids=(1, 8))
    found = trl_rollouts(TransitionSet((FIRST, rewritten, replace(OTHER, logprobs=None))))
    assert found.columns["rollout_id"] == []
    assert found.left_out == {"several_chains": 1, "no_logprobs": 1}


def test_what_is_masked_inside_a_reply_stays_masked() -> None:
    half = replace(SECOND, response_mask=(1, 0))
    found = trl_rollouts(TransitionSet((FIRST, half)))
    assert found.columns["env_mask"] == [[1, 0, 1, 0]]
    assert found.columns["logprobs"] == [[-0.5, 0.0, -0.25, 0.0]]
