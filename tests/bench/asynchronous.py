"""What collecting rollouts while the model updates gains, where agents wait: seconds of the same training with and without.

Run it with ``python -m tests.bench.asynchronous``. A server trains a small model (random weights, all of them learn) by an
agent that asks the model, waits for a tool as for a page of the web, and asks again; server and client are one process,
with so many threads for agents. Once with ``max_staleness`` 0 (rollouts, update, rollouts, ...) and once with 1 (the rollouts
of an update go on while the one before it is made), in turns; the fastest of each kind is printed, in seconds on the clock.
``at best`` is what would be gained if neither slowed the other down. A call that was not recorded, or an attempt that was
made again, counts as dropped, and the bench then fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: What is said, so that the model has words of its own for it.
WORDS = "pay staff eng sales over under total mean count sum of the in by name page found"
ASKED = "total pay of the staff in sales by name"
TURNS = 2


@dataclass(frozen=True, slots=True)
class Load:
    """What is trained on: ``wait_s`` is how long the tool of each turn but the last takes."""

    updates: int
    tasks: int
    group: int
    workers: int
    reply: int
    wait_s: float

    @property
    def calls(self) -> int:
        """How many calls the agents make in all."""
        return self.updates * self.tasks * self.group * TURNS


@dataclass(frozen=True, slots=True)
class Measured:
    """One training: seconds on the clock, those of which updates were made and rollouts waited for, and what was recorded."""

    seconds: float
    update_s: float
    collect_s: float
    staleness: float
    staleness_max: int
    dropped: int


def ask(url: str, text: str) -> str:
    """One chat completion, as a program without any framework asks for it."""
    body = json.dumps({"model": "trained", "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["message"]["content"] or ""


def measure(load: Load, model: Path, folder: Path, max_staleness: int) -> Measured:
    """One training, from the first task to the last update."""
    from lgov_core import Client
    from lgov_core.server.local import serving
    from lgov_core.store import open_store
    from lgov_core.train.settings import load_train_settings

    def agent(resource: Any, task: Any) -> float:
        said = ask(resource.model_api, task.question)
        time.sleep(load.wait_s)  # the tool
        return len(set(ask(resource.model_api, f"page found {said} {ASKED}"))) / 100

    flags: Mapping[tuple[str, str], Any] = {
        ("model", "name"): str(model), ("model", "lora_rank"): 0, ("model", "max_new_tokens"): load.reply,
        ("training", "batch_size"): load.tasks, ("training", "group_size"): load.group,
        ("training", "steps"): load.updates, ("training", "epochs"): load.updates,
        ("training", "max_staleness"): max_staleness, ("training", "checkpoint_every"): load.updates,
    }  # fmt: skip
    with serving(load_train_settings(flags=flags, environ={}), folder) as server:
        client = Client(server.url, quiet=True)
        client.upload_data([{"question": f"{ASKED} {number}"} for number in range(load.tasks)])
        began = time.perf_counter()
        lines = client.train(agent, nworkers=load.workers).metrics
        seconds = time.perf_counter() - began
    store = open_store(folder / "store.sqlite", make=False)
    calls = sum(1 for _ in store.calls())
    again = sum(attempt.attempt > 1 for attempt in store.attempts())
    store.close()
    return Measured(
        seconds,
        sum(line["update_s"] for line in lines),
        sum(line["collect_s"] for line in lines),
        statistics.fmean(line["staleness"] for line in lines),
        max(line["staleness_max"] for line in lines),
        abs(load.calls - calls) + again + sum(line["dropped_spans"] for line in lines),
    )


def main() -> None:
    """Prints one line for each way, and what is gained."""
    parser = argparse.ArgumentParser(
        description="What collecting rollouts while the model updates gains, where agents wait."
    )
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=4, help="tasks an update")
    parser.add_argument("--group", type=int, default=4, help="rollouts a task")
    parser.add_argument("--workers", type=int, default=8, help="rollouts at a time")
    parser.add_argument("--reply", type=int, default=16, help="tokens a reply")
    parser.add_argument("--wait-ms", type=int, default=200, help="how long the tool takes")
    parser.add_argument("--runs", type=int, default=3, help="trainings of each kind; the fastest is printed")
    parser.add_argument("--json", action="store_true", help="the figures alone")
    given = parser.parse_args()
    load = Load(given.updates, given.tasks, given.group, given.workers, given.reply, given.wait_ms / 1000)
    import torch

    from lgov_core.models import build_tiny

    torch.set_num_threads(1)
    found: dict[int, list[Measured]] = {0: [], 1: []}
    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "model"
        build_tiny([WORDS] * 50, seed=0, max_positions=512).save(model)
        for run in range(given.runs):
            for max_staleness, measured in found.items():
                measured.append(measure(load, model, Path(place) / f"run-{run}-{max_staleness}", max_staleness))
    fastest = {key: min(measured, key=lambda one: one.seconds) for key, measured in found.items()}
    before = fastest[0]
    best = (before.update_s + before.collect_s) / max(before.update_s, before.collect_s)
    gain = before.seconds / fastest[1].seconds
    dropped = sum(one.dropped for measured in found.values() for one in measured)
    if given.json:
        shown = {key: asdict(measured) for key, measured in fastest.items()}
        print(json.dumps({"fastest": shown, "gain": gain, "at_best": best, "dropped": dropped}))
    else:
        print(
            f"{load.updates} updates of {load.tasks * load.group} rollouts, {TURNS} calls each, the tool takes "
            f"{given.wait_ms} ms, {load.workers} rollouts at a time; fastest of {given.runs}"
        )
        for key, one in fastest.items():
            print(
                f"  max_staleness {key}: {one.seconds:6.2f} s (updates {one.update_s:5.2f} s, "
                f"waited for rollouts {one.collect_s:5.2f} s)  staleness {one.staleness:.2f}, "
                f"at most {one.staleness_max}; calls dropped {sum(each.dropped for each in found[key])}"
            )
        print(f"  gain {gain:.2f}x (at best {best:.2f}x)")
    if dropped or max(one.staleness_max for one in found[1]) > 1 or any(one.staleness for one in found[0]):
        raise SystemExit("calls were dropped, or were made with older weights than allowed")


if __name__ == "__main__":
    main()
