"""The model at the start: built or loaded, then warmed up for a short while on the setting's imperfect log."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lgov_core.models import LanguageModel, build_tiny, load_model
from lgov_core.train.algorithms.algorithms import SupervisedConfig
from lgov_core.train.algorithms.supervised import supervised
from lgov_core.train.layout.rows import TrainRow
from lgov_core.train.loop.policy_model import lora_policy
from settings.plan import Plan
from settings.setting import Conversation, World

#: A logged conversation with more tokens is left out: one of them would take as long as many others.
LONGEST = 1024

Progress = Callable[[int, int, float], None]


def warm_model(
    world: World, plan: Plan, folder: Path, sources: Sequence[Path], progress: Progress
) -> tuple[Path, dict[str, float]]:
    """The folder of the model with which every seed begins, and the seconds that it took to make (wall clock, CPU time).

    It is made once for each plan and code (``sources``) and kept in ``folder``.
    """
    made = folder / f"warm-{warm_key(plan, sources)}"
    if not made.exists():
        part = folder / f"{made.name}-{os.getpid()}"
        shutil.rmtree(part, ignore_errors=True)
        began, cpu_began = time.monotonic(), time.process_time()
        _made(world, plan, plan.warm_seed, progress).save(part)
        spent = {
            "seconds": round(time.monotonic() - began, 1),
            "cpu_seconds": round(time.process_time() - cpu_began, 1),
        }
        (part / "spent.json").write_text(json.dumps(spent))
        part.rename(made)
    spent = json.loads((made / "spent.json").read_text())
    return made, spent


def warm_key(plan: Plan, sources: Sequence[Path]) -> str:
    """A digest of all of the plan that the warm start depends on, and of the Python and YAML files in ``sources``."""
    kept = ("model", "layers", "warm_seed", "warm_steps", "warm_batch", "warm_rate")
    digest = hashlib.sha256(json.dumps({name: getattr(plan, name) for name in kept}).encode())
    for folder in sources:
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.yaml")]) if folder.is_dir() else [folder]:
            digest.update(f"{path.relative_to(folder.parent)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _made(world: World, plan: Plan, seed: int, progress: Progress) -> LanguageModel:
    chance = random.Random(f"log/{seed}")

    def rows(model: LanguageModel, count: int) -> list[TrainRow]:
        found: list[TrainRow] = []
        while len(found) < count:
            drawn = [conversation_row(model, one) for one in world.draw_log(chance)]
            found += [row for row in drawn if len(row.ids) <= LONGEST]
        return found[:count]

    config = SupervisedConfig(
        steps=plan.warm_steps,
        batch=plan.warm_batch,
        learning_rate=plan.warm_rate,
        precision="float32" if plan.model == "tiny" else "auto",
    )
    if plan.model == "tiny":
        model = build_tiny(_texts(world), seed=seed, layers=plan.layers)
        supervised(model.module, lambda count: rows(model, count), config, progress)
        return model
    model = load_model(plan.model, dtype="float32", tool_format="compact")
    policy = lora_policy(model.module, rank=16, seed=seed)
    supervised(policy.module, lambda count: rows(model, count), config, progress)
    model.module.load_state_dict(dict(policy.served()), strict=False)
    return model


def conversation_row(model: LanguageModel, conversation: Conversation) -> TrainRow:
    """A conversation as the tokens that the endpoint would see, the assistant's turns masked for training."""
    ids: list[int] = []
    mask: list[int] = []
    for turn, message in enumerate(conversation.messages):
        if message["role"] != "assistant":
            continue
        prompt = model.render(conversation.messages[:turn], conversation.tools)
        if prompt[: len(ids)] != ids:
            raise AssertionError("the prompts of a logged conversation do not extend one another")
        reply = model.encode_reply(message, conversation.tools)
        mask += [*([0] * (len(prompt) - len(ids))), *([1] * len(reply))]
        ids = [*prompt, *reply]
    zeros = (0.0,) * len(ids)
    return TrainRow(tuple(ids), tuple(mask), zeros, zeros, zeros, 1.0)


def _texts(world: World) -> list[str]:
    """What the tokenizer learns its words from."""
    chance = random.Random("words")
    texts = [text for text in world.texts(chance)]
    for _ in range(400):
        for conversation in world.draw_log(chance):
            for message in conversation.messages:
                texts.append(str(message.get("content") or ""))
                for call in message.get("tool_calls", ()):
                    arguments = json.loads(call["function"]["arguments"]).values()
                    texts.append(" ".join([f"@{call['function']['name']}", *arguments]))
    return texts
