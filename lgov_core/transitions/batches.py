"""Batches as a ladder: each step is a type that says what has been computed, and is made from the step below.

    RecordedBatch --reward()--> RewardedBatch --assign()--> CreditedBatch --tokens()--> TokenBatch

So what a trainer takes, a `CreditedBatch` or a `TokenBatch`, cannot be had without advantages. All are immutable and may be
shared between threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lgov_core.errors import TransitionError
from lgov_core.store import TraceStore
from lgov_core.transitions.build import make_transitions
from lgov_core.transitions.credit.advantages import assign_credit
from lgov_core.transitions.reading.records import Records, read_store
from lgov_core.transitions.reading.select import Selection
from lgov_core.transitions.tokens.chains import Chain, make_chains
from lgov_core.transitions.tokens.tree import TokenTree, make_tree
from lgov_core.transitions.transition_set import TransitionSet
from lgov_core.types import CreditRules


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """What is on record of some rollouts; nothing has been computed."""

    records: Records

    @classmethod
    def of_store(cls, store: TraceStore, rollout_ids: Sequence[str] | None = None) -> RecordedBatch:
        """The given rollouts in ``store`` (None: all). Raises `StoreError`."""
        return cls(read_store(store, rollout_ids))

    def reward(
        self, selection: Selection | None = None, *, need_logprobs: bool = True, keep_infrastructure: bool = False
    ) -> RewardedBatch:
        """The selected calls as transitions, each with its rewards. See `make_transitions`."""
        options = {"need_logprobs": need_logprobs, "keep_infrastructure": keep_infrastructure}
        return RewardedBatch(make_transitions(self.records, selection, **options))


@dataclass(frozen=True, slots=True)
class RewardedBatch:
    """Transitions with their rewards by dimension; what they are worth has not been computed."""

    data: TransitionSet

    def assign(self, rules: CreditRules | None = None) -> CreditedBatch:
        """The same transitions with credit. Raises `TransitionError` as `assign_credit` does."""
        return CreditedBatch(assign_credit(self.data, rules))


@dataclass(frozen=True, slots=True)
class CreditedBatch:
    """Transitions with advantages for each response token.

    Raises `TransitionError` when made of transitions of which one has none, or not one for each token.
    """

    data: TransitionSet

    def __post_init__(self) -> None:
        for one in self.data.transitions:
            if one.advantages is None or len(one.advantages) != len(one.response_ids):
                raise TransitionError(
                    f"transition {one.response_id} has no advantages", hint="make the batch by RewardedBatch.assign"
                )

    def tokens(self) -> TokenBatch:
        """The transitions as sequences of tokens. Raises `TransitionError` where a call has no log-probabilities."""
        return TokenBatch(self, tuple(make_chains(self.data.transitions)))

    def trees(self) -> Mapping[str, TokenTree]:
        """One token trie for each task, over all calls of its rollouts."""
        return {
            task: make_tree([one for rollout in rollouts for one in rollout])
            for task, rollouts in self.data.groups().items()
        }


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Sequences of tokens with masks, log-probabilities, advantages and weights; what a forward pass is run on."""

    credited: CreditedBatch
    chains: tuple[Chain, ...]

    def __post_init__(self) -> None:
        for chain in self.chains:
            for name, values in (("log-probabilities", chain.logprobs), ("advantages", chain.advantages)):
                if values is None:
                    raise TransitionError(
                        f"a turn of agent {chain.agent} in rollout {chain.rollout_id} has no {name}",
                        hint="build transitions with need_logprobs" if name[0] == "l" else "assign credit first",
                    )

    @property
    def trained_tokens(self) -> int:
        """How many tokens are trained on."""
        return sum(sum(chain.mask) for chain in self.chains)
