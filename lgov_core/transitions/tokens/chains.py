"""Chains: the turns of one agent whose tokens extend one another, as one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lgov_core._util.prefixes import PrefixIndex
from lgov_core.transitions.transition_set import Transition, by_rollout


@dataclass(frozen=True, slots=True)
class Link:
    """One transition in a chain: its reply is at ``start`` to ``stop`` (without) of the chain's tokens."""

    transition: Transition
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Chain:
    """One sequence of N tokens that holds one turn or several of one agent in one attempt.

    ``ids`` (int, length N) begin with the first turn's prompt; then come its reply, what the tools or the surroundings
    said, the next reply, and so on. ``mask`` (length N) is 1 where a model chose the token and it may be trained on; all
    that was said to the model is 0. ``logprobs`` (length N) are those recorded, 0.0 where the mask is 0; None if one of the
    turns has none. ``advantages`` and ``weights`` (length N) are each token's own, 0.0 where the mask is 0; None if
    one of the turns has no credit yet. ``prompt_length`` is how many tokens come before the first reply.
    """

    rollout_id: str
    attempt: int
    task_id: str
    agent: str | None
    model: str
    temperature: float
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    advantages: tuple[float, ...] | None
    weights: tuple[float, ...] | None
    links: tuple[Link, ...]

    @property
    def prompt_length(self) -> int:
        """How many tokens come before the first reply."""
        return self.links[0].start

    def as_row(self) -> dict[str, Any]:
        """The chain as one row of plain JSON types.

        ``prompt_ids`` are the first turn's, ``response_ids`` all that follows; the lists after them have its length.
        """
        at = self.prompt_length
        last = self.links[-1].transition
        rewards: dict[str, float] = {}
        for link in self.links:
            for name, value in link.transition.rewards.items():
                rewards[name] = rewards.get(name, 0.0) + value
        return {
            "rollout_id": self.rollout_id,
            "attempt": self.attempt,
            "task_id": self.task_id,
            "agent": self.agent,
            "model": self.model,
            "prompt_ids": list(self.ids[:at]),
            "response_ids": list(self.ids[at:]),
            "response_mask": list(self.mask[at:]),
            "logprobs": None if self.logprobs is None else list(self.logprobs[at:]),
            "advantages": None if self.advantages is None else list(self.advantages[at:]),
            "loss_weights": None if self.weights is None else list(self.weights[at:]),
            "sampling": {"temperature": self.temperature},
            "rewards": rewards,
            "outcome": None if last.outcome is None else last.outcome.value,
            "held_out": last.held_out,
            "turns": [
                {
                    "turn": link.transition.turn,
                    "response_id": link.transition.response_id,
                    "choice": link.transition.choice,
                    "start": link.start - at,
                    "stop": link.stop - at,
                    "weights_version": link.transition.weights_version,
                    "rewards": dict(link.transition.rewards),
                    "return": link.transition.value_to_go,
                    "credit": link.transition.credit,
                }
                for link in self.links
            ],
        }


def make_chains(transitions: Sequence[Transition]) -> list[Chain]:
    """Joins the turns of each agent in an attempt; every transition is in exactly one chain.

    A turn goes on the chain with the longest sequence that its prompt begins with, exactly, token by token, among those
    of the same rollout, attempt, agent, model and temperature; agents whose turns alternate so get a chain each. A turn
    whose context was rewritten, or whose tokens drifted, begins a chain of its own, and a choice that was set aside is one.
    Chains are in the order of their first turns. Pure; callable from any thread.
    """
    chains: list[list[Transition]] = []
    for turns in by_rollout(transitions).values():
        ends: dict[tuple[str | None, str, float], PrefixIndex[tuple[int, ...]]] = {}
        for turn in turns:
            own = ends.setdefault((turn.agent, turn.model, turn.temperature), PrefixIndex())
            number = None if turn.set_aside else own.take_longest(turn.prompt_ids)
            if number is None:
                number = len(chains)
                chains.append([])
            chains[number].append(turn)
            if not turn.set_aside:
                own.add(turn.prompt_ids + turn.response_ids, number)
    return [_chain(turns) for turns in chains]


def _chain(turns: Sequence[Transition]) -> Chain:
    first, last = turns[0], turns[-1]
    ids = last.prompt_ids + last.response_ids
    mask = [0] * len(ids)
    links: list[Link] = []
    for turn in turns:
        start = len(turn.prompt_ids)
        links.append(Link(turn, start, start + len(turn.response_ids)))
        mask[start : links[-1].stop] = turn.response_mask
    advantages = _on_chain(links, len(ids), [turn.advantages for turn in turns])
    weights = _on_chain(links, len(ids), [[turn.loss_weight] * len(turn.response_ids) for turn in turns])
    return Chain(
        first.rollout_id,
        first.attempt,
        first.task_id,
        first.agent,
        first.model,
        first.temperature,
        ids,
        tuple(mask),
        _on_chain(links, len(ids), [turn.logprobs for turn in turns]),
        advantages,
        None if advantages is None else weights,
        tuple(links),
    )


def _on_chain(
    links: Sequence[Link], length: int, of_turns: Sequence[Sequence[float] | None]
) -> tuple[float, ...] | None:
    """Values of the turns' response tokens at their places in the chain, else 0.0; None where a turn has none."""
    found = [0.0] * length
    for link, values in zip(links, of_turns, strict=True):
        if values is None:
            return None
        kept = zip(values, link.transition.response_mask, strict=True)
        found[link.start : link.stop] = [value if mask else 0.0 for value, mask in kept]
    return tuple(found)
