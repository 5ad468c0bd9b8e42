"""Evidence (d): the defaults of a training, chosen on six families of tasks and judged once on four others.

Stated before anything was run. Each training has `ROLLOUTS` rollouts, whatever its settings, on 32 tasks; 32 others are
held out and run twice before it and twice after it. Its gain is their mean reward after it, less that before (the same model
for all candidates, so the mean of what all of them measured there). `today` are the defaults as they
were: one candidate among the others. Of each candidate the gain is averaged over the six families of
`families.DEVELOPED`. Chosen is the candidate with the highest mean gain of those for which no family's interval is wholly
below 0. It is then compared once with `today`, on `families.JUDGED` and seeds of their own, and becomes the default if the
interval of that difference is above 0; otherwise nothing changes. Intervals draw families first, then tasks.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from families import DEVELOPED, FAMILIES, JUDGED, Family, Message, logged, tasks_of
from intervals import difference, interval, shown, table, verdict

from evidence import Options, run_all
from lgov_core import Client
from lgov_core.client.tasks import Resource, Task
from lgov_core.demo.warm_start import conversation_rows
from lgov_core.models import build_tiny
from lgov_core.server.local import serving
from lgov_core.train.algorithms.algorithms import SupervisedConfig
from lgov_core.train.algorithms.supervised import supervised
from lgov_core.train.settings import load_train_settings

SEEDS = 1
ROLLOUTS = 512
TASKS = 32
#: Seeds from here on are those that the chosen defaults are judged with.
JUDGING = 100
_SMALL: Mapping[str, Any] = {"batch_size": 8, "learning_rate": 1e-3}
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "today": {"batch_size": 32, "learning_rate": 2e-4},
    "updates": {"batch_size": 8, "learning_rate": 2e-4},
    "rate, updates": _SMALL,
    "rate 3e-3, updates": {**_SMALL, "learning_rate": 3e-3},
    "rate, updates, linear": {**_SMALL, "algorithm_options": {"schedule": "linear"}},
    "rate, updates, no KL": {**_SMALL, "kl_coef": 0.0},
    "rate, updates, entropy": {**_SMALL, "algorithm_options": {"entropy": 0.01}},
    "rate, updates, groups of 16": {**_SMALL, "batch_size": 4, "group_size": 16},
    # The further groups take the place of two of the eight updates.
    "rate, updates, further groups": {**_SMALL, "max_extra_groups": 8, "steps": 6},
}


def run_name(candidate: str, family: Family) -> str:
    return f"{list(CANDIDATES).index(candidate)}-{family.name}"


def warm(seed: int, folder: Path, quick: bool) -> None:
    """Makes the model of each family: it has imitated clumsy rollouts."""
    for family in JUDGED if seed >= JUDGING else DEVELOPED:
        chance = random.Random(f"log/{family.name}/{seed}")
        log = [talk for _ in range(16 if quick else 300) for talk in logged(family, chance)]
        corpus = [str(message.get("content") or message["tool_calls"]) for talk in log for message in talk]
        size = 32 if quick else 64
        model = build_tiny(
            corpus, seed=seed, hidden=size, layers=2, intermediate=3 * size, deviation=0.02, vocab_size=400
        )
        rows = [row for talk in log for row in conversation_rows(model, talk, family.tools)]
        config = SupervisedConfig(steps=3 if quick else 300, batch=16, learning_rate=4e-3)
        supervised(model.module, lambda count, rows=rows, chance=chance: chance.sample(rows, count), config)
        model.save(folder / family.name)


def one(name: str, seed: int, folder: Path, warmed: Path, quick: bool) -> dict[str, Any]:
    """One training: by held-out task the reward before and after it."""
    import torch
    from openai import OpenAI

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    began = time.monotonic()
    number, _, family_name = name.partition("-")
    family, chosen = FAMILIES[family_name], dict(list(CANDIDATES.values())[int(number)])
    group = chosen.setdefault("group_size", 8)
    if quick:
        chosen |= {"batch_size": 4, "steps": 1}
    chosen.setdefault("steps", ROLLOUTS // (chosen["batch_size"] * group))
    flags: dict[tuple[str, str], Any] = {("training", key): value for key, value in chosen.items()}
    flags |= {("model", "name"): str(warmed / family.name), ("model", "max_new_tokens"): 24}
    flags |= {
        ("training", "seed"): seed,
        ("training", "epochs"): chosen["steps"],
        ("training", "rollouts_per_test_task"): 2,
    }
    train, held_out = tasks_of(family, seed, 4 if quick else TASKS)
    earned: defaultdict[int, list[float]] = defaultdict(list)
    lock = threading.Lock()
    model = OpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=0, timeout=300)

    def agent(resource: Resource, task: Task) -> float:
        asking = model.with_options(base_url=resource.model_api)

        def ask(messages: list[Message], agent: str) -> Message:
            body: Any = {"model": resource.model, "messages": messages}
            if family.tools:
                body["tools"] = family.tools
            reply = asking.chat.completions.create(**body, extra_headers={"x-lgov-agent": agent})
            return {key: value for key, value in reply.choices[0].message.to_dict().items() if value is not None}

        reward = family.play(dict(task), ask)
        if resource.mode == "test":
            with lock:
                earned[task["number"]].append(reward)
        return reward

    with serving(load_train_settings(flags=flags, environ={}), folder) as server:
        client = Client(server.url, quiet=True)
        client.upload_data(train, held_out)
        result = client.train(agent, nworkers=32)
    model.close()
    values = [earned[task["number"]] for task in held_out]
    if any(len(four) != 4 for four in values):
        raise RuntimeError(f"held-out tasks of {name} were not run twice before and twice after: {values}")
    return {
        "seed": seed,
        "before": [round(sum(four[:2]) / 2, 4) for four in values],
        "after": [round(sum(four[2:]) / 2, 4) for four in values],
        "curve": [round(reward, 4) for reward in result.curves["reward"]],
        "rollouts": int(sum(result.curves["rollouts"])),
        "seconds": round(time.monotonic() - began, 1),
    }


Gains = dict[str, dict[str, list[float]]]


def run(options: Options) -> dict[str, Any]:
    some = 2 if options.quick else None
    candidates, developing, judging = list(CANDIDATES)[:some], DEVELOPED[:some], JUDGED[:some]
    developed, gains = _measure(options, candidates, developing)
    chosen = choose(gains)
    seeds = tuple(JUDGING + seed for seed in range(len(options.seeds) if options.quick else 3 * len(options.seeds)))
    judged, judged_gains = _measure(replace(options, seeds=seeds), dict.fromkeys(["today", chosen]), judging)
    runs = {**developed, **judged}
    return {
        "settings": {"rollouts": ROLLOUTS, "tasks": TASKS, "candidates": dict(CANDIDATES)},
        "judging_seeds": list(seeds),
        "developed": _intervals(gains),
        "chosen": chosen,
        "judged": _intervals(judged_gains),
        "difference": difference(list(judged_gains[chosen].values()), list(judged_gains["today"].values())),
        "before": {
            family.name: interval([run["before"] for run in runs[run_name("today", family)]])
            for family in (*developing, *judging)
        },
        "seconds": {name: [run["seconds"] for run in found] for name, found in runs.items()},
        "runs": runs,
    }


def _measure(
    options: Options, candidates: Iterable[str], families: Sequence[Family]
) -> tuple[dict[str, list[dict[str, Any]]], Gains]:
    """The runs, and the gain of each candidate on each family by held-out task, all seeds together."""
    candidates = list(candidates)
    names = {(candidate, family.name): run_name(candidate, family) for candidate in candidates for family in families}
    found = run_all(options, list(names.values()), {"rollouts": ROLLOUTS, "candidates": dict(CANDIDATES)})
    gains: Gains = {candidate: {} for candidate in candidates}
    for family in families:
        runs = {candidate: found[names[candidate, family.name]] for candidate in candidates}
        before = [_means([run["before"] for run in of_seed]) for of_seed in zip(*runs.values(), strict=True)]
        for candidate, own in runs.items():
            gains[candidate][family.name] = [
                after - first
                for run, start in zip(own, before, strict=True)
                for first, after in zip(start, run["after"], strict=True)
            ]
    return found, gains


def _means(columns: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) / len(values) for values in zip(*columns, strict=True)]


def choose(gains: Gains) -> str:
    """The rule: the highest mean gain of the candidates that are shown to harm no family; today's where there is none."""
    harmless = [
        name for name, families in gains.items() if all(interval([values])["high"] >= 0 for values in families.values())
    ]
    return max(harmless or ["today"], key=lambda name: interval(list(gains[name].values()))["mean"])


def _intervals(gains: Gains) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "all": interval(list(families.values())),
            **{family: interval([values]) for family, values in families.items()},
        }
        for name, families in gains.items()
    }


def tables(result: dict[str, Any]) -> str:
    """The result as tables in Markdown."""
    parts: list[str] = []
    for stage in ("developed", "judged"):
        names = list(result[stage]["today"])
        before = ["before", "", *(f"{result['before'][family]['mean']:.2f}" for family in names[1:])]
        rows = [
            [f"`{name}`", shown(found["all"], signed=True), *(f"{found[family]['mean']:+.2f}" for family in names[1:])]
            for name, found in result[stage].items()
        ]
        parts.append(table([f"gain, {stage}", *names], [before, *rows]))
    value = result["difference"]
    parts.insert(
        1,
        f"Chosen by the rule: `{result['chosen']}`. Less `today`, on the families that are judged (seeds "
        f"{', '.join(map(str, result['judging_seeds']))}): **{shown(value, signed=True)}**, {verdict(value)}.",
    )
    return "\n\n".join(parts)


def draw(result: dict[str, Any], path: Path) -> None:
    """Each candidate's gain by family."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(13, 4), layout="constrained")
    for axis, stage in zip(axes, ("developed", "judged"), strict=True):
        for number, (name, found) in enumerate(result[stage].items()):
            whole = found["all"]
            axis.plot(
                [value["mean"] for key, value in found.items() if key != "all"], [number] * (len(found) - 1), "o", ms=4
            )
            axis.errorbar(
                whole["mean"], number, xerr=[[whole["mean"] - whole["low"]], [whole["high"] - whole["mean"]]], fmt="ks"
            )
            axis.text(0.01, number + 0.15, name, transform=axis.get_yaxis_transform(), fontsize=8)
        axis.axvline(0, color="grey", lw=0.5)
        axis.set(xlabel=f"gain of the held-out reward ({stage})", yticks=[])
    figure.suptitle("Defaults: a dot is a family, the square their mean with its 95 % interval")
    figure.savefig(path, dpi=100, metadata={"Software": ""})
    plt.close(figure)
