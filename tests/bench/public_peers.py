"""The GRPO of lgov beside that of TRL: reward an hour and sampled tokens a second on the same public tasks.

Run it with ``python -m tests.bench.public_peers --peer .venv-trl/bin/python`` after ``make bench-trl``. Both train all
weights of the same model in float32 on the same entries of reasoning-gym's ``chain_sum`` (no tools), in the same order, with
the package's own score, the same groups, learning rate, limit of tokens and number of threads, one update for each batch, no KL
and AdamW with the same constants. lgov runs its server, client and an agent that asks over HTTP, and records everything; TRL
samples with transformers in its own process. The clock runs from the first task to the last update; what comes before it
(imports, loading) is not counted.

``gained an hour`` is the mean reward of the last quarter of the updates less that of the first, for an hour at that pace.
With few updates it is mostly chance, and its ratio says little: the tokens are what a short run compares.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.asynchronous import ask

PEER = Path(__file__).with_name("trl_peer.py")
#: The first number of the entries: those of training, as in evidence/public/tasks.py.
FIRST = 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """What both train: ``tasks`` groups of ``group`` replies of at most ``tokens`` tokens make an update."""

    model: str
    updates: int
    tasks: int
    group: int
    tokens: int
    rate: float
    threads: int
    seed: int

    @property
    def numbers(self) -> range:
        """The entries, each in one update."""
        return range(FIRST, FIRST + self.updates * self.tasks)


@dataclass(frozen=True, slots=True)
class Measured:
    """One training: seconds on the clock and of the processor, sampled tokens, and the mean reward of each update's replies."""

    name: str
    seconds: float
    cpu_s: float
    sampled_tokens: int
    rewards: Sequence[float]

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens a second, updates included."""
        return self.sampled_tokens / self.seconds

    @property
    def gained_per_hour(self) -> float:
        """The rise of the reward, for an hour."""
        part = max(1, len(self.rewards) // 4)
        gained = (sum(self.rewards[-part:]) - sum(self.rewards[:part])) / part
        return gained * 3600 / self.seconds


def dataset() -> Any:
    """The set: sums and differences of two numbers of one digit."""
    import reasoning_gym

    return reasoning_gym.create_dataset("chain_sum", seed=0, size=10**9, min_terms=2, max_terms=2, max_digits=1)


def measure(load: Load, folder: Path) -> Measured:
    """The training by lgov, in this process."""
    import torch

    from lgov_core import Client
    from lgov_core.server.local import serving
    from lgov_core.train.algorithms.algorithms import algorithm
    from lgov_core.train.settings import load_train_settings

    torch.set_num_threads(load.threads)
    tasks = dataset()

    def agent(resource: Any, task: Any) -> float:
        entry = tasks[task.number]
        return float(tasks.score_answer(ask(resource.model_api, entry["question"]).strip(), entry))

    flags: dict[tuple[str, str], Any] = {
        ("model", "name"): load.model, ("model", "dtype"): "float32", ("model", "lora_rank"): 0,
        ("model", "max_batch"): load.tasks * load.group, ("model", "max_new_tokens"): load.tokens,
        ("training", "batch_size"): load.tasks, ("training", "group_size"): load.group,
        ("training", "steps"): load.updates, ("training", "checkpoint_every"): load.updates,
        ("training", "seed"): load.seed,
    }  # fmt: skip
    chosen = algorithm("grpo", learning_rate=load.rate, epochs=1, minibatches=1, kl=0.0, beta2=0.999)
    with serving(load_train_settings(flags=flags, environ={}), folder, algorithm=chosen) as server:
        client = Client(server.url, quiet=True)
        client.upload_data([{"number": number} for number in load.numbers])
        began, cpu_began = time.perf_counter(), time.process_time()
        lines = client.train(agent, nworkers=load.tasks * load.group).metrics
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    lines = [line for line in lines if line["phase"] == "train"]
    return Measured(
        "lgov", seconds, cpu_s, sum(line["sampled_tokens"] for line in lines), [float(line["reward"]) for line in lines]
    )


def measure_peer(load: Load, python: str) -> Measured:
    """The training by TRL, in a process of its own interpreter."""
    entries = [dataset()[number] for number in load.numbers]
    given = {**asdict(load), "questions": [entry["question"] for entry in entries], "first": FIRST}
    done = subprocess.run([python, str(PEER)], input=json.dumps(given), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the peer failed: {done.stderr[-3000:]}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def model_folder(name: str, place: Path, seed: int) -> str:
    """The folder of ``smollm2``, or of a new model that knows the words of the tasks (``tiny``)."""
    from lgov_core.models import build_tiny, pull_smollm2

    if name == "smollm2":
        return str(pull_smollm2())
    tasks = dataset()
    build_tiny([tasks[FIRST + number]["question"] for number in range(500)], seed=seed).save(place / "tiny")
    return str(place / "tiny")


def main() -> None:
    """Prints a line for each, and the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peer", help="Python interpreter that can import trl and reasoning_gym")
    parser.add_argument("--model", choices=["tiny", "smollm2"], default="smollm2")
    parser.add_argument("--updates", type=int, default=24)
    parser.add_argument("--tasks", type=int, default=4, help="tasks an update")
    parser.add_argument("--group", type=int, default=8, help="replies a task")
    parser.add_argument("--tokens", type=int, default=32, help="the limit of a reply")
    parser.add_argument("--rate", type=float, default=1e-5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the figures alone")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        load = Load(
            model_folder(given.model, Path(place), given.seed), given.updates, given.tasks, given.group, given.tokens,
            given.rate, given.threads, given.seed,
        )  # fmt: skip
        found = [measure(load, Path(place) / "run")]
        if given.peer:
            found.append(measure_peer(load, given.peer))
    ratios = (
        {
            "tokens_per_s": found[0].tokens_per_s / found[1].tokens_per_s,
            "updates_per_hour": found[1].seconds / found[0].seconds,
            "cpu_s": found[0].cpu_s / found[1].cpu_s,
            "gained_per_hour": found[0].gained_per_hour / found[1].gained_per_hour
            if min(one.gained_per_hour for one in found) > 0
            else None,
        }
        if len(found) > 1
        else {}
    )
    if given.json:
        rows = [
            {**asdict(one), "tokens_per_s": one.tokens_per_s, "gained_per_hour": one.gained_per_hour} for one in found
        ]
        print(json.dumps({"load": {**asdict(load), "model": given.model}, "trainings": rows, "lgov_to_trl": ratios}))
        return
    print(
        f"{given.model}: {load.updates} updates of {load.tasks} tasks x {load.group} replies of at most {load.tokens} "
        f"tokens, {load.threads} threads"
    )
    for one in found:
        print(
            f"  {one.name:<10} {one.seconds:8.1f} s ({one.cpu_s:.1f} s of CPU)  {one.tokens_per_s:8.1f} sampled tokens/s  "
            f"reward {one.rewards[0]:.3f} -> {one.rewards[-1]:.3f}, gained an hour {one.gained_per_hour:+.3f}"
        )
    if not ratios:
        print("TRL is not there: no comparison (--peer PYTHON, make bench-trl)")
        return
    gained = ratios["gained_per_hour"]
    print(
        f"  lgov to TRL: tokens/s {ratios['tokens_per_s']:.2f}, updates an hour {ratios['updates_per_hour']:.2f}, CPU "
        f"{ratios['cpu_s']:.2f}, gained an hour {'not comparable: not both gained' if gained is None else f'{gained:.2f}'}"
    )


if __name__ == "__main__":
    sys.exit(main())
