"""The source of rollouts that verl asks: existing agents, governed, in worker processes, against an endpoint on verl's servers.

verl makes one `GovernedRollouts` in the process of its task runner, by the setting
``actor_rollout_ref.rollout.agent.agent_loop_manager_class``. Importing this module imports verl, and registers the
advantage estimator of lgov, which computes nothing.
"""

# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import contextlib
import importlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.core_algos import register_adv_est
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from lgov_core.errors import TrainError, UpstreamError
from lgov_core.gateway.protocol import ANY_MODEL
from lgov_core.gateway.token_engine import Generated, TokenEngine, TokenPrompt
from lgov_core.integrations.verl.checkpoints import Steps, only_job
from lgov_core.integrations.verl.job import ESTIMATOR, Host, VerlJob
from lgov_core.integrations.verl.rows import QueueRow, QueueRows, batch_figures, mini_batch_tasks, queue_rows
from lgov_core.models import load_model
from lgov_core.store import RolloutQueue, open_store
from lgov_core.train.loop.collecting import UsableSteps
from lgov_core.train.loop.run_files import BatchRecord, read_batch, write_batch
from lgov_core.transitions import Selection, Transition, assign_credit, build_transitions
from lgov_core.types import Rollout, new_id


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One task of a step: verl's id of it, lgov's, and what the agent gets."""

    uid: str
    task_id: str
    payload: Mapping[str, Any]


class GovernedRollouts:
    """Runs rollouts when verl asks for them, and puts the rows to train on into verl's TransferQueue.

    Holds the endpoint of the agents, the store and the `Host` until the process ends. `generate_sequences` is called by
    one thread and returns when all rollouts are done and queued: nothing else could continue meanwhile in verl's
    synchronous mode, and a failure so ends the job instead of leaving it waiting. Raises `TrainError` for another mode.
    """

    def __init__(self, config: Any, llm_client: Any) -> None:
        from omegaconf import OmegaConf

        mode = str(config.trainer.v1.trainer_mode)
        if mode != "sync":
            raise TrainError(f"verl's trainer mode {mode!r} is not supported", hint="trainer.v1.trainer_mode=sync")
        if llm_client is None:
            raise TrainError("verl gave no client of its servers")
        self.job = VerlJob.from_dict(OmegaConf.to_container(config.lgov, resolve=True))
        job = self.job
        job.folder.mkdir(parents=True, exist_ok=True)
        self._alone = contextlib.ExitStack()
        self._alone.enter_context(only_job(job.folder))
        self.store: RolloutQueue = open_store(job.store)
        self.store.fail_open_attempts("the run was interrupted")
        self.model = load_model(job.model, weights=False, tool_format=job.tool_format)
        engine = TokenEngine(
            self.model,
            _Sampler(llm_client),
            also=(*([] if job.served_as is None else [job.served_as]), ANY_MODEL),
            context_tokens=job.verl.context_tokens,
            max_new_tokens=job.reply_tokens,
        )
        engine.name = "verl"
        module, _, function = job.host.partition(":")
        self.host: Host = getattr(importlib.import_module(module), function)(job, engine, self.store)
        self.steps = Steps(job.folder)
        self._config = config
        self._before: int | None = None
        self._usable = UsableSteps()

    @classmethod
    def create(
        cls, config: Any, llm_client: Any = None, teacher_client: Any = None, reward_loop_worker_handles: Any = None
    ) -> GovernedRollouts:
        """Makes the manager, as verl calls it. Teachers and verl's reward workers are not used: rewards are lgov's."""
        return cls(config, llm_client)

    def generate_sequences(self, batch: Any) -> None:
        """One step's rollouts. ``batch`` is verl's: ``uid``, ``extra_info`` and ``global_steps`` are read."""
        validating = batch["validate"] if "validate" in batch else False  # noqa: SIM401 - a TensorDict, not a dict
        if validating:
            raise TrainError("verl's validation runs no agents", hint="trainer.test_freq=-1")
        step = int(_plain(batch["global_steps"]))
        prompts = [
            _Prompt(str(uid), str(info["task_id"]), json.loads(info["payload"]))
            for uid, info in zip(_plain(batch["uid"]), _plain(batch["extra_info"]), strict=True)
        ]
        self._begin(step)
        for prompt in prompts:
            transfer_queue.kv_put(key=prompt.uid, partition_id="train", tag={"status": "running"})
        recorded = read_batch(self.steps.batches, step)
        record, transitions = self._collect(step, prompts) if recorded is None else recorded
        queued = self._rows(transitions, prompts)
        rows = list(queued.rows) or [self._nothing(prompts[0], queued, step)]
        self._one_update_of(len(rows))
        keys, fields, tags = _queued(rows, step)
        transfer_queue.kv_batch_put(
            keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id="train"
        )
        for prompt in prompts:
            transfer_queue.kv_put(key=prompt.uid, partition_id="train", tag={"status": "finished"})
        self.host.report({"phase": "train", "step": step, **record.figures})

    def _one_update_of(self, rows: int) -> None:
        """Makes verl's trainer, which reads the size of a mini-batch in every step, take that many rows as one update."""
        job = self.job
        self._config.actor_rollout_ref.actor.ppo_mini_batch_size = mini_batch_tasks(
            rows, group=job.group, mini_batches=job.verl.mini_batches, shards=job.verl.nodes * job.verl.gpus
        )

    def close(self) -> None:
        """Ends workers and endpoint. verl does not call it: at the end of a job its process ends."""
        self.host.close()
        self.store.close()
        self._alone.close()

    def _begin(self, step: int) -> None:
        """The rollouts of ``step`` are asked for: the update before is made, and the servers have its weights."""
        if self._before is None:
            self.steps.metrics.repair()
            if step > 1 or self.steps.waiting(0):
                self.steps.resumed(self.job.run_id, step - 1)
        elif step != self._before + 1:
            raise TrainError(f"verl asks for the rollouts of step {step} after those of step {self._before}")
        self._before = step
        if step > 1:
            self.steps.acknowledge(step - 1)

    def _collect(self, step: int, prompts: Sequence[_Prompt]) -> tuple[BatchRecord, Sequence[Transition]]:
        """Runs a step's rollouts and records their results."""
        began = time.monotonic()
        rollouts = [
            Rollout(new_id("ro"), prompt.task_id, self.job.run_id, dict(prompt.payload))
            for prompt in prompts
            for _ in range(self.job.group)
        ]
        results = self.host.collect_rollouts(rollouts)
        ids = [rollout.rollout_id for rollout in rollouts]
        data = build_transitions(self.store, ids, Selection(agents=self.job.agents))
        self._usable.check(results, len(data.transitions))
        data = assign_credit(data, self.job.credit)
        queued = self._rows(data.transitions, prompts)
        figures = {
            **batch_figures(data, results, self.job.credit, dropped_spans=self.store.dropped_spans),
            "rows": len(queued.rows),
            "left_out": dict(queued.left_out),
            "collect_s": round(time.monotonic() - began, 3),
        }
        return write_batch(self.steps.batches, step, data.transitions, figures), data.transitions

    def _rows(self, transitions: Sequence[Transition], prompts: Sequence[_Prompt]) -> QueueRows:
        """The rows of a step. Raises `TrainError` for transitions of other tasks than verl asks for."""
        uids = {prompt.task_id: prompt.uid for prompt in prompts}
        numbers: Counter[str] = Counter()
        sessions: dict[str, tuple[str, int]] = {}
        for transition in transitions:
            if transition.task_id not in uids:
                raise TrainError(
                    f"the batch on record is of task {transition.task_id}, which verl does not ask for now",
                    hint="the run cannot be resumed: its tasks or their order have changed",
                )
            if transition.rollout_id not in sessions:
                sessions[transition.rollout_id] = (uids[transition.task_id], numbers[transition.task_id])
                numbers[transition.task_id] += 1
        update = self.job.update
        return queue_rows(
            transitions,
            sessions,
            temperature=self.job.verl.temperature,
            context_tokens=self.job.verl.context_tokens,
            apart=update.loss == "gspo",
            all_of_them=update.kl > 0 or update.entropy > 0,
        )

    def _nothing(self, prompt: _Prompt, queued: QueueRows, step: int) -> QueueRow:
        """The one row of a step in which nothing can be trained on: verl cannot take none. It is worth 0."""
        if queued.left_out.get("other_temperature"):
            raise TrainError(
                f"every call of step {step} was sampled at another temperature than {self.job.verl.temperature:g}",
                hint="let the agent leave temperature out, or set the job's temperature to the agent's",
            )
        end = self.model.end_id
        return QueueRow(f"{prompt.uid}_0_0", (end,), (end,), (1,), (0.0,), (0.0,), (step - 1, step - 1), 0)


class _Sampler:
    """Asks verl's servers, which balance the load and keep a conversation on one of them."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def __call__(self, prompt: TokenPrompt) -> Generated:
        params: dict[str, Any] = {
            "temperature": prompt.temperature,
            "top_p": prompt.top_p,
            "top_k": -1,
            "max_tokens": prompt.max_tokens,
            "logprobs": True,
        }
        if prompt.stop:
            params["stop"] = list(prompt.stop)
        if prompt.seed is not None:
            params["seed"] = prompt.seed
        answer = await self._client.generate(
            prompt.conversation, prompt_ids=list(prompt.prompt_ids), sampling_params=params
        )
        if answer.stop_reason in ("aborted", "abort"):
            raise UpstreamError("verl's server broke the call off", status=503, hint="its weights were being updated")
        first, last = (answer.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps"))
        return Generated(
            tuple(answer.token_ids),
            None if answer.log_probs is None else tuple(map(float, answer.log_probs)),
            int(last) if last is not None and first == last else None,
        )


def _queued(rows: Sequence[QueueRow], step: int) -> tuple[list[str], list[dict[str, Any]], list[dict[str, Any]]]:
    """Keys, fields and tags, as verl's own agent loops write them."""
    fields: list[dict[str, Any]] = []
    tags: list[dict[str, Any]] = []
    for row in rows:
        group, session, _ = row.key.rsplit("_", 2)
        oldest, newest = row.versions
        output = AgentLoopOutput(
            prompt_ids=list(row.prompt_ids),
            response_ids=list(row.response_ids),
            response_mask=list(row.response_mask),
            response_logprobs=list(row.logprobs),
            num_turns=row.turns,
            metrics=AgentLoopMetrics(),
            extra_fields={"min_global_steps": oldest, "max_global_steps": newest, "reward_extra_info": {}},
        )
        row_fields: dict[str, Any] = output.as_dict()
        ids = torch.cat([row_fields["prompts"], row_fields["responses"]])
        row_fields |= {
            "uid": group,
            "session_id": int(session),
            "loss_mask": row_fields["response_mask"],
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "rm_scores": torch.tensor(row.advantages, dtype=torch.float32),
            "multi_modal_inputs": {},
        }
        fields.append(row_fields)
        tags.append(
            {
                "status": "success",
                "prompt_len": len(row.prompt_ids),
                "response_len": len(row.response_ids),
                "seq_len": len(ids),
                "global_steps": step,
                "min_global_steps": oldest,
                "max_global_steps": newest,
            }
        )
    return [row.key for row in rows], fields, tags


def _plain(value: Any) -> Any:
    """A value of verl's batch as plain Python: a list of values, or one."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return getattr(value, "data", value)


@register_adv_est(ESTIMATOR)
def precomputed(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The advantages in ``token_level_rewards``, float32 of (rows, tokens), 0 where the mask is 0; twice,
    because verl wants returns too. Every row's own: nothing is summed over a row or taken from a rollout's last one.
    """
    advantages = token_level_rewards.float() * response_mask
    return advantages, advantages
