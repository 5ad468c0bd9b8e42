"""TRL's GRPO, measured by its own interpreter for `tests.bench.public_peers`. Reads the load as JSON, prints a JSON line."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

given = json.load(sys.stdin)
os.environ["OMP_NUM_THREADS"] = str(given["threads"])
os.environ["HF_HUB_OFFLINE"] = "1"

import reasoning_gym  # type: ignore[import-not-found]  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # type: ignore[import-not-found]  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]  # noqa: E402

tasks = reasoning_gym.create_dataset("chain_sum", seed=0, size=10**9, min_terms=2, max_terms=2, max_digits=1)
sampled = 0
rewards: list[float] = []


def score(completions: Any, number: list[int], completion_ids: Any, **_: Any) -> list[float]:
    """The package's own score of each reply; counts the tokens of a batch."""
    global sampled
    sampled += sum(map(len, completion_ids))
    texts = [completion[0]["content"].strip() for completion in completions]
    found = [float(tasks.score_answer(text, tasks[which])) for text, which in zip(texts, number, strict=True)]
    rewards.append(sum(found) / len(found))
    return found


def train(folder: str) -> tuple[float, float]:
    """Trains, and returns the seconds that it took, on the clock and of the processor."""
    torch.set_num_threads(given["threads"])
    count = given["tasks"] * given["group"]
    config = GRPOConfig(
        output_dir=folder, seed=given["seed"], use_cpu=True, bf16=False, save_strategy="no", report_to=[],
        disable_tqdm=True, logging_strategy="no", per_device_train_batch_size=count, gradient_accumulation_steps=1,
        steps_per_generation=1, num_generations=given["group"], max_completion_length=given["tokens"],
        max_steps=given["updates"], learning_rate=given["rate"], lr_scheduler_type="constant", adam_beta1=0.9,
        adam_beta2=0.999, weight_decay=0.0, max_grad_norm=1.0, beta=0.0, epsilon=0.2, loss_type="grpo",
        scale_rewards="group", temperature=1.0, shuffle_dataset=False, gradient_checkpointing=False,
    )  # fmt: skip
    rows = [
        {"prompt": [{"role": "user", "content": question}], "number": given["first"] + place}
        for place, question in enumerate(given["questions"])
    ]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32),
        reward_funcs=score,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(given["model"]),
    )
    began, cpu_began = time.perf_counter(), time.process_time()
    trainer.train()
    return time.perf_counter() - began, time.process_time() - cpu_began


with tempfile.TemporaryDirectory() as place:
    seconds, cpu_s = train(place)
print(json.dumps({"name": "TRL", "seconds": seconds, "cpu_s": cpu_s, "sampled_tokens": sampled, "rewards": rewards}))
