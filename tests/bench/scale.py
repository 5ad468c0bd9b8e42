"""What a large store, a large policy file and a start cost: seconds and memory at two sizes, ten times apart.

``python -m tests.bench.scale`` fills a SQLite store with 100,000 calls of 10,000 rollouts, and another with ten times as many,
and measures what reads them, each in a process of its own. What takes time in proportion takes ten times as long in the second,
and what reads a page the same time. The conversations are short, as those of an agent with a few tools.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lgov_core.store import open_store
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout

TURNS = 10
#: Rollouts that are written at a time.
BATCH = 200


def calls_of(number: int) -> Iterator[CapturedCall]:
    """The calls of a rollout: each repeats what was said before."""
    tokens: tuple[int, ...] = tuple(range(40))
    messages = [{"role": "system", "content": "You answer questions about staff."}]
    for turn in range(TURNS):
        messages = [*messages, {"role": "user", "content": f"Question {number} {turn}?"}]
        prompt = (*tokens, *(number * 31 % 5000 + turn * 7 + place for place in range(12)))
        response = tuple(place * 3 + turn for place in range(8))
        reply = {"choices": [{"message": {"role": "assistant", "content": f"Answer {turn}."}}]}
        logprobs = tuple(-0.25 * (place + 1) for place in range(8))
        at = 1.7e9 + number + turn / 100
        yield CapturedCall(
            f"c{number}-{turn}", "tiny", {"model": "tiny", "messages": messages}, reply, prompt, response,
            logprobs, "stop", 0, 1.0, 1.0, at, at + 0.005, f"r{number}", 1, "clerk",
        )  # fmt: skip
        tokens, messages = prompt + response, [*messages, {"role": "assistant", "content": f"Answer {turn}."}]


def fill(address: str, rollouts: int) -> None:
    """Writes ``rollouts`` finished rollouts, eight of a task."""
    with open_store(address) as store:
        for first in range(0, rollouts, BATCH):
            numbers = range(first, min(first + BATCH, rollouts))
            store.add_rollouts([Rollout(f"r{number}", f"t{number // 8}", "run", {}) for number in numbers])
            for number in numbers:
                store.start_attempt(f"r{number}", 1)
            for future in [store.submit_call(call) for number in numbers for call in calls_of(number)]:
                future.result()
            store.add_rewards(
                [Reward(float(number % 3 == 0), rollout_id=f"r{number}", attempt=1) for number in numbers]
            )
            for number in numbers:
                store.finish_attempt(f"r{number}", 1, Outcome.SUCCEEDED)


def policy_file(path: Path, rules: int) -> None:
    """A policy file of ``rules`` rules, each about a tool of its own."""
    each = "  - {name: rule-%d, tools: [tool_%d], use: tool, with: {allow: [tool_%d]}}"
    path.write_text("\n".join(["version: 1", "rules:", *(each % ((number,) * 3) for number in range(rules))]) + "\n")


def measured(command: list[str], folder: Path, *ends: int) -> tuple[float, float]:
    """The seconds that ``command`` takes, and the most memory that it holds, in MB. It ends with 0 or one of ``ends``."""
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, *ends):
        raise SystemExit(f"{command} failed: {said.decode()[-2000:]}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def rows(folder: Path, rollouts: int) -> Iterator[tuple[str, tuple[float, float]]]:
    """What is measured at a size, in the order in which it is done."""
    python, lgov = [sys.executable], [sys.executable, "-m", "lgov_core"]
    store = f"store-{rollouts}.sqlite"
    yield "append", measured([*python, "-m", "tests.bench.scale", "--fill", store, str(rollouts)], folder)
    yield "count, and list the last attempts", measured([*lgov, "traces", "list", store, "--limit", "50"], folder)
    yield "show one attempt", measured([*lgov, "traces", "show", store, f"r{rollouts // 2}"], folder)
    yield "doctor", measured([*lgov, "doctor", store], folder, 1)  # 1: a finding
    yield "transitions", measured([*lgov, "transitions", store, "--out", f"{store}.parquet"], folder)


def best(count: int, command: list[str], folder: Path) -> tuple[float, float]:
    """The fastest of ``count`` runs: a start is slow the first time."""
    return min(measured(command, folder) for _ in range(count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000, help=f"of {TURNS} calls each, in the larger store")
    parser.add_argument("--fill", nargs=2, metavar=("STORE", "ROLLOUTS"), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="write JSON to standard output instead of the table")
    options = parser.parse_args()
    if options.fill:
        fill(options.fill[0], int(options.fill[1]))
        return
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for size in (options.rollouts // 10, options.rollouts):
            for what, figures in rows(folder, size):
                found.setdefault(what, []).append(figures)
        for rules in (200, 2000):
            policy_file(folder / f"{rules}.yaml", rules)
            load = f"from lgov_core import load_policy_file; load_policy_file('{rules}.yaml')"
            found.setdefault("load a policy file of 200 and 2,000 rules", []).append(
                best(3, [sys.executable, "-c", load], folder)
            )
        starts: dict[str, list[str]] = {
            "lgov --help": ["-m", "lgov_core", "--help"],
            "import lgov_core": ["-c", "import lgov_core"],
            "python without anything": ["-c", ""],
        }
        for what, arguments in starts.items():
            found[what] = [best(5, [sys.executable, *arguments], folder)]
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'':44}{'seconds':>18}{'MB':>14}")
    for what, figures in found.items():
        seconds = " ".join(f"{second:8.2f}" for second, _ in figures)
        print(f"{what:44}{seconds:>18}{' '.join(f'{size:6.0f}' for _, size in figures):>14}")


if __name__ == "__main__":
    main()
