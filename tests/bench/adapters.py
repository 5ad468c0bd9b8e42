"""CPU that an adapter adds to one model call and to one tool call of an agent, and to the turn that both make.

``make bench``, or ``python -m tests.bench.adapters [NAME …]``. A real agent of each framework talks over HTTP to a scripted
model in a process of its own. The variants take turns within one process, instrumented, warmed up and uninstrumented
again, each round
in another order, so that a slow moment of the machine falls on all alike; what counts is the median of the differences to
the bare runs beside them, given with the interval that holds the true median in 95 of 100 cases. Beside it stands the same
for the moments in which nothing else ran: how far apart the quickest tenth of both lies.

The bare framework's own CPU swings by more than what is measured here, mostly on the network's side. So each framework is
measured once more, *paired*: in a process pinned to one CPU, the scripted model's answers come from within it in place of
the network, and one variant takes turns with bare, some tenths of a second each, warmed up first. No other variant is in that
process, as none would be in a program: what one loads and patches slows down the others. What others do on a machine makes a
run slower and never quicker, and hardly ever leaves one alone for as long as a whole run takes. So each run is timed in
parts, from one time that it comes to its model or to a tool to the next; what it takes undisturbed is the sum of what the
quickest twentieth of each part takes, and a process's figure is by how much a variant's sum is behind that of the bare
one. Where a process's code and objects come to lie in memory moves that figure too, and so do minutes in which others use the
same caches all the time, and no number of runs tells; so it is asked of several processes, and what is printed is their
median, with the same kind of interval. It holds all that the others hold, except what the network's system calls push out of
the caches; on a machine that others use it is the one to compare.

These runs come in two shapes: with one tool call in each turn, and with three at once. What the second costs more, shared
among the tool calls it has more, is *a tool call*; what is left of a run without its tool calls, shared among its model calls
(one more than turns: the last asks for no tool), is *a model call*, with its share of what belongs to the run, such as the
span of the agent. The variants:

- *bare*: the framework alone, also without lgov's callback handler, which stays with LangChain once it was instrumented;
- *empty handler*: the least that a framework with callbacks lets anybody add: LangChain with a handler, the Agents SDK with
  a tracing processor, whose methods for agents, model calls and tool calls do nothing at all;
- *capture*: instrumented by a governor that only watches; the spans of the model call and the tool call, with their content,
  go to the sink of a store that keeps none (what a store on disk costs is part of *recorded*);
- *governed*: instrumented, one rule that allows, spans shown to nobody;
- *recorded*: the same with the audit record and a trace store on disk, content included;
- *OpenInference*: the framework's usual observability instrumentor, with a span processor that drops everything.

CPU is that of the whole process: threads that write for a variant count too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.adapter_agents import FRAMEWORKS, script
from tests.bench.adapter_timing import beside_bare, median_of, over_http

#: Rounds in which each variant has its turn.
ROUNDS = 40
#: How often a variant takes turns with bare, without a network, in each of how many processes: for capture, which has a goal
#: to be held against, and for each of the others.
PAIRS, PROCESSES, OTHERS = 12, 16, 5
#: What capture may cost, in microseconds of CPU a call.
GOAL_US = 150


@dataclass(frozen=True, slots=True)
class Measured:
    """What a variant costs in microseconds of CPU: the whole for *bare*, what is added for the others.

    ``turn`` over HTTP and ``undisturbed`` for the moments in which nothing else ran; paired, without a network,
    ``paired_turn`` and its parts, ``model_call`` and ``tool_call``. Each but ``undisturbed`` as the median and the bounds of
    its 95 % interval.
    """

    turn: Sequence[float]
    undisturbed: float
    paired_turn: Sequence[float]
    model_call: Sequence[float]
    tool_call: Sequence[float]


def serve() -> None:
    """The scripted model, until standard input ends."""
    from lgov_core.testing import ScriptedModelServer

    with ScriptedModelServer(script) as server:
        print(server.base_url, flush=True)
        sys.stdin.read()


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=FRAMEWORKS)
    parser.add_argument("--over-http", help=argparse.SUPPRESS)
    parser.add_argument("--beside-bare", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="what each variant costs, see Measured")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="%(default)s by default")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="in each process, %(default)s by default")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="for capture, %(default)s by default")
    parser.add_argument("--others", type=int, default=OTHERS, help="for each other variant, %(default)s by default")
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    if arguments.over_http:
        return print(json.dumps(over_http(arguments.over_http, arguments.rounds)))
    if arguments.beside_bare:
        return print(json.dumps(beside_bare(*arguments.beside_bare, arguments.pairs)))
    serving = [sys.executable, "-m", "tests.bench.adapters", "--serve"]
    server = subprocess.Popen(serving, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    env = {**os.environ, "OPENAI_BASE_URL": server.stdout.readline().strip(), "OPENAI_API_KEY": "none"}
    env["PYTHONHASHSEED"] = "0"  # AutoGen's bare tool call takes 45 or 210 us, by the order of a set of names
    results: dict[str, dict[str, Measured]] = {}
    try:
        if not arguments.json:
            print(
                f"{'CPU in µs':46} {'a turn':>8} {'95 %':>12} {'undisturbed':>12} {'paired':>7} {'95 %':>12}"
                f" {'model call':>11} {'95 %':>12} {'tool call':>10} {'95 %':>12}"
            )
        for framework in arguments.names:
            over = _asked(["--over-http", framework, "--rounds", str(arguments.rounds)], env)
            beside: dict[str, list[Any]] = {variant: [] for variant in over}
            asked_of = {
                variant: arguments.processes if variant == "capture" else arguments.others
                for variant in over.keys() - {"bare"}
            }
            for number in range(max(asked_of.values(), default=0)):
                for variant in [one for one, processes in asked_of.items() if number < processes]:
                    if sys.stderr.isatty():
                        print(
                            f"\r{framework}: {variant}, {number + 1} of {asked_of[variant]}\033[K\r",
                            end="",
                            file=sys.stderr,
                        )
                    how = ["--beside-bare", framework, variant, "--pairs", str(arguments.pairs)]
                    for one, parts in _asked(how, env).items():
                        beside[one].append(parts)
            results[framework] = {
                variant: Measured(*turn, *map(median_of, zip(*beside[variant], strict=True)))
                for variant, turn in over.items()
            }
            if not arguments.json:
                write(framework, results[framework])
    finally:
        server.communicate()
    if arguments.json:
        said = {name: {variant: asdict(one) for variant, one in found.items()} for name, found in results.items()}
        print(json.dumps(said, indent=2))
    return None


def _asked(what: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """What this module prints when it is asked so in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.adapters", *what], env=env, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(what)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def write(framework: str, measured: Mapping[str, Measured]) -> None:
    """The lines of one framework."""
    peer = measured.get("OpenInference")
    for variant, one in measured.items():
        said: list[str] = []
        if variant == "capture":
            calls = {"model call": one.model_call, "tool call": one.tool_call}
            said += [f"{what} NOT met" for what, (median, _, _) in calls.items() if median > GOAL_US] or ["both met"]
            said += [f"{what} not for certain" for what, (_, low, high) in calls.items() if low <= GOAL_US < high]
            said[0] = f"goal {GOAL_US} a call: {said[0]}"
        if variant in ("capture", "governed") and peer is not None:
            said.append(f"OpenInference adds {peer.paired_turn[0] / one.paired_turn[0]:.1f} times as much")
        what = "bare, the whole" if variant == "bare" else f"{variant}, added"
        print(
            f"{framework:16}{what:30} {_columns(one.turn, 8, 12)} {one.undisturbed:12.0f} {_columns(one.paired_turn, 7, 12)}"
            f" {_columns(one.model_call, 11, 12)} {_columns(one.tool_call, 10, 12)}  {'; '.join(said)}",
            flush=True,
        )


def _columns(value: Sequence[float], width: int, interval: int) -> str:
    median, low, high = value
    return f"{median:{width}.0f} {f'{low:.0f}–{high:.0f}':>{interval}}"


if __name__ == "__main__":
    main()
