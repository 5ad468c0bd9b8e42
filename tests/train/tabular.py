"""Problems of which the best policy is known, and a policy for them that is a table of logits.

The table is a causal language model as the trainer sees one: a decoder from tokens to states and an output layer. The state
after a token is a unit vector that names the token and the one before it, so the model can be any policy over the prompts
here, and what an update does to it can be followed exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from lgov_core.transitions import Transition
from lgov_core.types import Outcome

VOCABULARY = 8
#: Tokens 0 to 4 are acts, the others say where the agent is.
ACTS = 5
START, LEFT, RIGHT = 5, 6, 7


class Table(torch.nn.Module):
    """Logits for each pair of tokens; all 0, the uniform policy, when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(VOCABULARY**2, VOCABULARY, bias=False)
        torch.nn.init.zeros_(self.head.weight)

    def get_decoder(self) -> Any:
        return self.states

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.head

    def states(self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool) -> Any:
        before = torch.nn.functional.pad(input_ids, (1, 0))[:, :-1]
        pairs = torch.nn.functional.one_hot(before * VOCABULARY + input_ids, VOCABULARY**2)
        return SimpleNamespace(last_hidden_state=pairs.to(self.head.weight.dtype))

    def logprobs(self, prompt: Sequence[int]) -> torch.Tensor:
        """Of the token after ``prompt``."""
        with torch.no_grad():
            states = self.states(
                input_ids=torch.tensor([list(prompt)]), attention_mask=torch.tensor([]), use_cache=False
            )
            return self.head(states.last_hidden_state[0, -1]).log_softmax(-1)


@dataclass(frozen=True)
class Problem:
    """``step(prompt, act)`` says what an act earns, and the next prompt (None: it is over). ``best`` is the highest mean."""

    name: str
    first: tuple[int, ...]
    step: Callable[[tuple[int, ...], int], tuple[float, tuple[int, ...] | None]]
    best: float
    noise: float = 0.0

    def value(self, table: Table, prompt: tuple[int, ...] | None = None) -> float:
        """The expected return of the policy, over all of its acts: no sampling."""
        prompt = self.first if prompt is None else prompt
        total = 0.0
        for act, chance in enumerate(table.logprobs(prompt).exp().tolist()):
            reward, following = self.step(prompt, act)
            total += chance * (reward + (0.0 if following is None else self.value(table, following)))
        return total

    def rollouts(self, table: Table, names: Mapping[str, str], generator: torch.Generator) -> list[Transition]:
        """One sampled rollout for each of ``names`` (rollout to task), as transitions."""
        asked: dict[tuple[int, ...], torch.Tensor] = {}
        found: list[Transition] = []
        for rollout, task in names.items():
            prompt: tuple[int, ...] | None = self.first
            turn = 0
            while prompt is not None:
                logprobs = asked.get(prompt)
                if logprobs is None:
                    logprobs = asked[prompt] = table.logprobs(prompt)
                act = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
                reward, following = self.step(prompt, act)
                reward += self.noise * float(torch.randn((), generator=generator))
                found.append(_transition(rollout, task, turn, prompt, act, float(logprobs[act]), reward))
                prompt, turn = following, turn + 1
        return found


def _transition(
    rollout: str, task: str, turn: int, prompt: tuple[int, ...], act: int, logprob: float, reward: float
) -> Transition:
    return Transition(
        run_id="run",
        weights_version=None,
        model="table",
        task_id=task,
        rollout_id=rollout,
        attempt=1,
        turn=turn,
        response_id=f"{rollout}/{turn}",
        agent=None,
        prompt_ids=prompt,
        response_ids=(act,),
        response_mask=(1,),
        logprobs=(logprob,),
        temperature=1.0,
        finish_reason="stop",
        outcome=Outcome.SUCCEEDED,
        rewards={"task": reward},
    )


def _bandit(prompt: tuple[int, ...], act: int) -> tuple[float, None]:
    return ((0.2, 0.5, 1.0, 0.8, 0.0)[act] if act < ACTS else 0.0), None


def _two_turns(prompt: tuple[int, ...], act: int) -> tuple[float, tuple[int, ...] | None]:
    """The act that pays at once (0.4) leads to where little is to be had; the other way the second act earns 1."""
    if prompt[-1] == START:
        return (0.4, (*prompt, act, LEFT)) if act == 0 else (0.0, (*prompt, act, RIGHT))
    if prompt[-1] == LEFT:
        return (0.2 if act == 1 else 0.0), None
    return (1.0 if act == 3 else 0.3 if act == 4 else 0.0), None


#: One act, and a noisy reward: the best earns 1.
BANDIT = Problem("bandit", (START,), _bandit, best=1.0, noise=0.1)
#: Two acts: to give up 0.4 at once for 1 later.
TWO_TURNS = Problem("two turns", (START, START), _two_turns, best=1.0, noise=0.1)
