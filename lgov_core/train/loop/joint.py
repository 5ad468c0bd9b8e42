"""Several policies on one model, trained in the same step: what a `TrainingLoop` takes for one, made of many.

Each policy has adapters, an optimiser and served weights of its own; all have one batch, one update and one version number,
so that what is durable of a step is durable of all of them. A row belongs to the policy that wrote it: its model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

import torch

from lgov_core.errors import TrainError
from lgov_core.train.algorithms.update import PolicyUpdate
from lgov_core.train.algorithms.update_metrics import UpdateMetrics
from lgov_core.train.layout.rows import TrainRow
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.train.loop.training_run import Progress, Publisher
from lgov_core.transitions import CreditRules, TransitionSet, assign_credit

#: Figures that are counts; the others are means over tokens.
_COUNTS: Final = {one.name for one in fields(UpdateMetrics) if isinstance(one.default, int)}


@dataclass(frozen=True, slots=True)
class JointMetrics(UpdateMetrics):
    """What an update did to all policies together (sums, and means over trained tokens), and to each of ``policies``."""

    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


def joint_policy(policies: Mapping[str, PolicyModel]) -> PolicyModel:
    """All ``policies`` as one: names of weights begin with the policy's, ``NAME.`` trained and ``NAME/`` served."""
    module = torch.nn.ModuleDict({name: one.module for name, one in policies.items()})

    def served() -> dict[str, torch.Tensor]:
        return {f"{name}/{key}": value for name, one in policies.items() for key, value in one.served().items()}

    return PolicyModel(module, served)


class JointPublisher:
    """Publishes what `joint_policy` serves, each policy's to its own publisher, all under one version."""

    def __init__(self, publishers: Mapping[str, Publisher]) -> None:
        self._publishers = dict(publishers)

    @property
    def weights_version(self) -> int:
        """The highest version in use."""
        return max(one.weights_version for one in self._publishers.values())

    def publish(self, state_dict: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        """See `Publisher`."""
        chosen = self.weights_version + 1 if version is None else version
        for name, publisher in self._publishers.items():
            start = f"{name}/"
            own = {key.removeprefix(start): value for key, value in state_dict.items() if key.startswith(start)}
            publisher.publish(own, chosen)
        return chosen


class JointUpdate:
    """A `Learner` of several policies: each row updates the policy that wrote it. Takes learners without a critic.

    Advantages are those of whole rollouts: a turn is credited with what was earned from it on, whichever policy's turns
    followed.
    """

    def __init__(self, learners: Mapping[str, PolicyUpdate]) -> None:
        self.learners = dict(learners)
        critics = [name for name, one in self.learners.items() if one.head is not None]
        if critics:
            raise TrainError(
                f"policy {critics[0]!r} has a critic, which several policies cannot have", hint="use grpo, for example"
            )

    def credit(self, data: TransitionSet, rules: CreditRules) -> TransitionSet:
        """`assign_credit`."""
        return assign_credit(data, rules)

    def update(
        self, rows: Sequence[TrainRow], progress: Progress | None = None, *, version: int | None = None
    ) -> JointMetrics:
        """Updates one policy after the other. When one of them raises `TrainError`, all are as they were before."""
        if other := {row.model for row in rows} - self.learners.keys():
            raise TrainError(f"rows were written by {', '.join(sorted(other))}, which is not trained")
        weights = {
            name: [parameter.detach().clone() for parameter in one.parameters] for name, one in self.learners.items()
        }
        states = copy.deepcopy(self.state_dict())
        made: dict[str, UpdateMetrics] = {}
        try:
            for name, learner in self.learners.items():
                own = [row for row in rows if row.model == name]
                made[name] = learner.update(own, progress, version=version)
        except TrainError:
            with torch.no_grad():
                for name, learner in self.learners.items():
                    for parameter, before in zip(learner.parameters, weights[name], strict=True):
                        parameter.copy_(before)
            self.load_state_dict(states)
            raise
        return _joint(made)

    def state_dict(self) -> dict[str, Any]:
        """Those of all learners, by policy."""
        return {name: one.state_dict() for name, one in self.learners.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned. Raises `TrainError` when it is of other policies."""
        if state.keys() != self.learners.keys():
            raise TrainError(
                f"the state is of {', '.join(state) or 'no policy'}, and the policies are {', '.join(self.learners)}",
                hint="resume with the same training.policies",
            )
        for name, one in self.learners.items():
            one.load_state_dict(state[name])


def _joint(made: Mapping[str, UpdateMetrics]) -> JointMetrics:
    found = {name: asdict(one) for name, one in made.items()}
    tokens = sum(one.tokens for one in made.values())
    values: dict[str, Any] = {}
    for one in fields(UpdateMetrics):
        known = [each for each in found.values() if each[one.name] is not None]
        values[one.name] = None
        if known:
            shares = (1 if one.name in _COUNTS else each["tokens"] / max(tokens, 1) for each in known)
            values[one.name] = sum(each[one.name] * share for each, share in zip(known, shares, strict=True))
    return JointMetrics(**values, policies=found)
