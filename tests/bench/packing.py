"""What the trie of tokens saves an update: tokens and seconds beside one row per call and beside exact-prefix merging.

Run it with ``python -m tests.bench.packing``, and ``--json`` for the figures alone. The model is SmolLM2 (pulled when it is
not there, 93 MB), float32, all weights trained. Measured is what one update computes from its rows: laying out, forward,
policy loss, backward; the optimiser's step, the same for all, is not in it. Everybody gets the same calls and may run
the same number of tokens in a pass. Contenders take turns, and each figure is the best of its repeats: seconds on the clock,
and CPU seconds of the process, which say more where the machine has other work.

Each contender's gradient is compared with that in double precision, where all layouts agree (to 1e-13 here, and see
``tests/train/test_tree_layout.py``): so much single precision costs it. Two gradients in single precision differ from each
other by about as much as from that, so what one is beside the other says nothing. ``--no-exact`` leaves it out.

The calls, of four rollouts with five turns each: system prompt 200 tokens, task 40, reply 30, observation 40, at random.

- append-only: a conversation that goes on, each prompt is all that was said;
- rebuilt context: each prompt is the system prompt, the task and the last exchange;
- two agents: as before, and two system prompts take turns.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from lgov_core.errors import ModelError
from lgov_core.models import load_model, pull_smollm2
from lgov_core.train.layout.layouts import Layout, PaddedRows, TokenTrie
from lgov_core.train.layout.rows import TrainRow, make_rows, trained_column
from lgov_core.transitions import Transition
from lgov_core.types import Outcome
from tests.double_precision import double

#: How many times fewer seconds than one row per call the trie is meant to take.
GOALS = {"append-only": 4.0, "rebuilt context": 2.5, "two agents": 2.0}
ROLLOUTS, TURNS = 4, 5
SYSTEM, TASK, REPLY, OBSERVATION = 200, 40, 30, 40


def calls(kind: str, vocabulary: int, rollouts: int, turns: int) -> list[Transition]:
    chance = random.Random(kind)

    def text(length: int) -> tuple[int, ...]:
        return tuple(chance.randrange(5, vocabulary - 5) for _ in range(length))

    systems, task = (text(SYSTEM), text(SYSTEM)), text(TASK)
    made: list[Transition] = []
    for rollout in range(rollouts):
        said: tuple[int, ...] = ()
        last: tuple[int, ...] = ()
        credit = chance.uniform(-1, 1)
        for turn in range(turns):
            agent = turn % 2 if kind == "two agents" else 0
            reply = text(REPLY)
            made.append(
                Transition(
                    run_id="bench",
                    weights_version=0,
                    model="smollm2",
                    task_id="task",
                    rollout_id=f"rollout {rollout}",
                    attempt=1,
                    turn=turn,
                    response_id=f"{rollout}-{turn}",
                    agent=f"agent {agent}",
                    prompt_ids=systems[agent] + task + (said if kind == "append-only" else last),
                    response_ids=reply,
                    response_mask=(1,) * REPLY,
                    logprobs=(-1.0,) * REPLY,
                    temperature=1.0,
                    finish_reason="stop",
                    outcome=Outcome.SUCCEEDED,
                    rewards={},
                    advantages=(credit * (0.8 + 0.1 * turn),) * REPLY,
                    loss_weight=1 / (rollouts * turns * REPLY),
                )
            )
            last = reply + text(OBSERVATION)
            said += last
    return made


class Contender:
    """A layout and the rows it is given."""

    def __init__(self, name: str, layout: Layout, rows: Sequence[TrainRow]) -> None:
        self.name = name
        self.layout = layout
        self.rows = rows
        self.tokens = 0
        self.seconds = self.cpu_seconds = float("inf")
        self.gradients: list[torch.Tensor] = []

    def run(self, module: Any, tokens: int) -> None:
        """One update's computation; keeps the best time."""
        module.zero_grad(set_to_none=True)
        began, cpu_began = time.perf_counter(), time.process_time()
        batches = self.layout.batches(self.rows, tokens)
        for batch in batches:
            logprobs = self.layout.logprobs(module, batch)
            advantages = torch.tensor(trained_column(batch, "advantages"), dtype=logprobs.dtype)
            weights = torch.tensor(trained_column(batch, "weights"), dtype=logprobs.dtype)
            ratio = torch.exp(logprobs - logprobs.detach())
            surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
            (-(surrogate * weights).sum()).backward()
        self.seconds = min(self.seconds, time.perf_counter() - began)
        self.cpu_seconds = min(self.cpu_seconds, time.process_time() - cpu_began)
        self.tokens = self.layout.work(batches)

    def keep_gradients(self, module: Any) -> None:
        self.gradients = [value.grad.clone() for value in module.parameters() if value.grad is not None]


def apart(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The norm of the difference of two gradients over that of the second."""
    off = sum(float((a - b).double().square().sum()) for a, b in zip(found, expected, strict=True))
    return (off / sum(float(b.double().square().sum()) for b in expected)) ** 0.5


def exact_gradients(module: Any, rows: Sequence[TrainRow], tokens: int) -> list[torch.Tensor]:
    """The gradient in double precision."""
    precise = double(copy.deepcopy(module))
    exact = Contender("double precision", TokenTrie(), rows)
    exact.run(precise, tokens)
    exact.keep_gradients(precise)
    return exact.gradients


def measure(module: Any, kind: str, given: argparse.Namespace) -> dict[str, Any]:
    tokens, exact = given.tokens, not given.no_exact
    transitions = calls(kind, module.config.vocab_size, given.rollouts, given.turns)
    alone = make_rows([replace(one, rollout_id=one.response_id) for one in transitions])
    contenders = [
        Contender("one row per call", PaddedRows(), alone),
        Contender("exact-prefix merging", PaddedRows(), make_rows(transitions)),
        Contender("trie of tokens", TokenTrie(), make_rows(transitions)),
    ]
    expected = exact_gradients(module, make_rows(transitions), tokens) if exact else []
    errors: dict[str, float | None] = {}
    for repeat in range(given.repeats):
        for contender in contenders:
            contender.run(module, tokens)
            if repeat == 0:
                contender.keep_gradients(module)
                errors[contender.name] = apart(contender.gradients, expected) if exact else None
                contender.gradients = []
    calls_, merged, trie = contenders
    return {
        "kind": kind,
        "call_tokens": sum(len(one.prompt_ids) + len(one.response_ids) for one in transitions),
        "contenders": {
            one.name: {
                "tokens": one.tokens,
                "seconds": one.seconds,
                "cpu_seconds": one.cpu_seconds,
                "gradient_error": errors[one.name],
            }
            for one in contenders
        },
        "faster_than_calls": calls_.seconds / trie.seconds,
        "faster_than_merging": merged.seconds / trie.seconds,
        "less_cpu_than_calls": calls_.cpu_seconds / trie.cpu_seconds,
        "less_cpu_than_merging": merged.cpu_seconds / trie.cpu_seconds,
        "goal": GOALS[kind],
    }


def show(figures: dict[str, Any]) -> None:
    print(f"\n{figures['kind']}: {figures['call_tokens']:,} tokens of prompts and replies")
    for name, one in figures["contenders"].items():
        error = one["gradient_error"]
        off = "" if error is None else f"   gradient {error:.1e} from double precision"
        print(f"  {name:<22}{one['tokens']:>8,} tokens{one['seconds']:>9.2f} s{one['cpu_seconds']:>9.2f} s of CPU{off}")
    reached = "reached" if figures["faster_than_calls"] >= figures["goal"] else "NOT reached"
    print(
        f"  the trie takes {figures['faster_than_calls']:.2f} times fewer seconds than rows (goal {figures['goal']:g}: "
        f"{reached}), {figures['faster_than_merging']:.2f} times fewer than merging;\n"
        f"  {figures['less_cpu_than_calls']:.2f} and {figures['less_cpu_than_merging']:.2f} times less CPU",
        flush=True,
    )
    rows, trie = (figures["contenders"][name]["gradient_error"] for name in ("one row per call", "trie of tokens"))
    if rows is not None:
        print(f"  the error of the trie's gradient is {trie / rows:.2f} times that of rows", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=list(GOALS), action="append", help="which calls (default: all three)")
    parser.add_argument("--json", action="store_true", help="the figures alone")
    parser.add_argument("--repeats", type=int, default=3, help="how often each is measured; the best counts")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens in one pass, for everybody")
    parser.add_argument("--threads", type=int, help="threads that torch uses (default: its own choice)")
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS, help="how many")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each")
    parser.add_argument("--no-exact", action="store_true", help="do not compare gradients with double precision")
    parser.add_argument("--model", default="smollm2", help="smollm2, or a transformers folder")
    given = parser.parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    try:
        if given.model == "smollm2":
            pull_smollm2()
        module = load_model(given.model).module
    except ModelError as error:
        print(f"packing is not measured: {error}", file=sys.stderr)
        return 0
    module.requires_grad_(True)
    kinds = given.kind or list(GOALS)
    if given.json:
        found = [measure(module, kind, given) for kind in kinds]
        print(json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__, "kinds": found}))
        return 0
    print(
        f"{given.model}, float32, {torch.get_num_threads()} threads, torch {torch.__version__}, best of {given.repeats}"
    )
    for kind in kinds:
        show(measure(module, kind, given))
    return 0


if __name__ == "__main__":
    sys.exit(main())
