"""Several policies on one model: trained in the same step, or in turns.

**In the same step** (`JointUpdate`) each policy has adapters, an optimiser and served weights of its own; all have one batch,
one update and one version number, so that what is durable of a step is durable of all of them. A row belongs to the policy
that wrote it: its model. **In turns** (`AlternatingSchedule`) each has a loop of its own.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

import torch

from lgov_core.errors import TrainError
from lgov_core.gateway.protocol import EngineControl
from lgov_core.train.algorithms.update import PolicyUpdate, UpdateMetrics
from lgov_core.train.layout.rows import TrainRow
from lgov_core.train.loop.loop import Iteration, RolloutTask, TrainingLoop
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.train.loop.training_run import Progress, Resumed
from lgov_core.transitions import CreditRules, TransitionSet, assign_credit

#: Figures that are counts; the others are means over tokens.
_COUNTS: Final = {figure.name for figure in fields(UpdateMetrics) if isinstance(figure.default, int)}


@dataclass(frozen=True, slots=True)
class JointMetrics(UpdateMetrics):
    """The effect of an update on all policies together (sums, and means over trained tokens), and on each of ``policies``."""

    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


def joint_policy(policies: Mapping[str, PolicyModel]) -> PolicyModel:
    """All ``policies`` as one: names of weights begin with the policy's, ``NAME.`` trained and ``NAME/`` served."""
    module = torch.nn.ModuleDict({name: policy.module for name, policy in policies.items()})

    def served() -> dict[str, torch.Tensor]:
        return {f"{name}/{key}": value for name, policy in policies.items() for key, value in policy.served().items()}

    return PolicyModel(module, served)


class JointControl:
    """The `EngineControl` of what `joint_policy` serves: each policy has its own, and all have one version."""

    def __init__(self, controls: Mapping[str, EngineControl]) -> None:
        self._controls = dict(controls)

    @property
    def weights_version(self) -> int:
        """The highest version in use."""
        return max(control.weights_version for control in self._controls.values())

    def pause(self) -> None:
        """Pauses all, or none where one of them raises."""
        with contextlib.ExitStack() as stack:
            for control in self._controls.values():
                control.pause()
                stack.callback(control.resume)
            stack.pop_all()

    def publish(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        """Publishes to one after the other."""
        chosen = self.weights_version + 1 if version is None else version
        for name, control in self._controls.items():
            start = f"{name}/"
            control.publish(
                {key.removeprefix(start): value for key, value in weights.items() if key.startswith(start)}, chosen
            )
        return chosen

    def resume(self) -> None:
        """Resumes all."""
        with contextlib.ExitStack() as stack:
            for control in self._controls.values():
                stack.callback(control.resume)


class JointUpdate:
    """A `Learner` of several policies: each row updates the policy that wrote it. Takes learners without a critic.

    Advantages are those of whole rollouts: a turn is credited with what was earned from it on, whichever policy's turns
    followed.
    """

    def __init__(self, learners: Mapping[str, PolicyUpdate]) -> None:
        self.learners = dict(learners)
        self.planned: int | None = None
        critics = [name for name, learner in self.learners.items() if learner.head is not None]
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
            name: [parameter.detach().clone() for parameter in learner.parameters]
            for name, learner in self.learners.items()
        }
        states = copy.deepcopy(self.state_dict())
        updates: dict[str, UpdateMetrics] = {}
        try:
            for name, learner in self.learners.items():
                learner.planned = self.planned
                own = [row for row in rows if row.model == name]
                updates[name] = learner.update(own, progress, version=version)
        except TrainError:
            with torch.no_grad():
                for name, learner in self.learners.items():
                    for parameter, before in zip(learner.parameters, weights[name], strict=True):
                        parameter.copy_(before)
            self.load_state_dict(states)
            raise
        return _joint(updates)

    def state_dict(self) -> dict[str, Any]:
        """Those of all learners, by policy."""
        return {name: learner.state_dict() for name, learner in self.learners.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned. Raises `TrainError` when it is of other policies."""
        if state.keys() != self.learners.keys():
            raise TrainError(
                f"the state is of {', '.join(state) or 'no policy'}, and the policies are {', '.join(self.learners)}",
                hint="resume with the same training.policies",
            )
        for name, learner in self.learners.items():
            learner.load_state_dict(state[name])


def _joint(updates: Mapping[str, UpdateMetrics]) -> JointMetrics:
    by_policy = {name: asdict(metrics) for name, metrics in updates.items()}
    tokens = sum(metrics.tokens for metrics in updates.values())
    values: dict[str, Any] = {}
    for figure in fields(UpdateMetrics):
        measured = [each for each in by_policy.values() if each[figure.name] is not None]
        values[figure.name] = None
        if measured:
            shares = (1 if figure.name in _COUNTS else each["tokens"] / max(tokens, 1) for each in measured)
            values[figure.name] = sum(each[figure.name] * share for each, share in zip(measured, shares, strict=True))
    return JointMetrics(**values, policies=by_policy)


class AlternatingSchedule:
    """Trains one agent a step, on its own calls, while the others are frozen.

    ``loops`` are training loops by agent, each with its own folder, `Selection` and `EngineControl`
    (`EmbeddedEngine.policy`); an agent without a loop is never trained. ``order`` is repeated (default: each once;
    ``("writer", "writer", "checker")`` trains the writer twice as often). Raises `TrainError` for loops that share one
    of these. Call from one thread.
    """

    def __init__(self, loops: Mapping[str, TrainingLoop], order: Sequence[str] | None = None) -> None:
        self.loops = dict(loops)
        self.order = tuple(self.loops if order is None else order)
        if not self.order or set(self.order) != set(self.loops):
            named = ", ".join(self.order) or "no agent"
            raise TrainError(f"the order names {named}; there are loops for {', '.join(self.loops) or 'no agent'}")
        folders = {loop.run.folder.resolve() for loop in self.loops.values()}
        engines = {id(loop.engine) for loop in self.loops.values()}
        if min(len(folders), len(engines)) < len(self.loops):
            raise TrainError("two agents have one folder, or one engine", hint="each needs its own")
        everything = [name for name, loop in self.loops.items() if loop.selection.everything]
        if everything:
            raise TrainError(
                f"agent {everything[0]!r} would be trained on the calls of all agents",
                hint=f"pass selection=Selection(agents=({everything[0]!r},)) to its loop",
            )

    @property
    def done(self) -> int:
        """How many updates are done, of all agents together."""
        return sum(loop.done for loop in self.loops.values())

    @property
    def turn(self) -> str:
        """The agent that is trained next."""
        return self.order[self.done % len(self.order)]

    def resume(self) -> dict[str, Resumed]:
        """Resumes all loops; the turn is kept."""
        return {name: loop.resume() for name, loop in self.loops.items()}

    def iterate(self, tasks: Sequence[RolloutTask], group: int, **more: Any) -> tuple[str, Iteration]:
        """One step of the agent whose turn it is, and its name; ``more`` goes to `TrainingLoop.iterate`."""
        name = self.turn
        return name, self.loops[name].iterate(tasks, group, **more)
