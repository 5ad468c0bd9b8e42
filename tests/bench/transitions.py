"""What it costs to make transitions: spans in memory become calls, rewards and transitions, 1,000 to 100,000 calls.

Run it with ``python -m tests.bench.transitions``, and ``--json`` for the figures alone. Times are CPU seconds of the process.
Those of converting, ours and the peer's, are the best of as many runs as fit in three seconds, and of five at least: on a
machine that others use too, one run differs from the next by more than what is measured. Each rollout has ten calls, each
call a chat span with its tokens and a reward span; prompts grow from turn to turn. Where agentlightning 0.3.0 is installed
beside lgov, its ``TracerTraceToTriplet`` converts the same rollouts, as spans in its own format, one rollout after the other.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from lgov_core.transitions import assign_credit, make_transitions, read_spans
from lgov_core.transitions.tokens import make_chains, make_tree
from lgov_core.types import Span

TURNS = 10
#: Calls a second that the conversion is meant to reach.
#: A call of the largest set may cost so many times one of the smallest: converting is linear.
GOAL = 2.0
#: Tokens of the first prompt, of each reply, and of what a tool answers.
SMALL = (16, 16, 8)
LARGE = (192, 64, 32)
SIZES = (1_000, 10_000, 100_000)


def spans_of(calls: int, shape: tuple[int, int, int]) -> list[Span]:
    """Rollouts of ten calls each, in groups of eight, as an exporter hands them over: children first."""
    chance = random.Random(calls)
    words = [
        number + 300 for number in range(32_000)
    ]  # one object for each token, as they come from a tokenizer's table
    first, reply_size, answer_size = shape
    spans: list[Span] = []
    for rollout in range(calls // TURNS):
        name, trace, root, at = f"ro_{rollout}", f"{rollout:032x}", f"{rollout:08x}00000000", rollout * 100.0
        context = chance.choices(words, k=first)
        for turn in range(TURNS):
            response = f"resp_{rollout}_{turn}"
            reply = chance.choices(words, k=reply_size)
            told = {
                "gen_ai.operation.name": "chat",
                "gen_ai.response.id": response,
                "gen_ai.request.model": "m",
                "gen_ai.response.finish_reasons": ["stop"],
                "lgov.prompt_token_ids": list(context),
                "lgov.response_token_ids": reply,
                "lgov.response_logprobs": [-0.5] * reply_size,
                "lgov.weights_version": 3,
            }
            paid = {"lgov.reward.value": 0.1, "lgov.reward.dimension": "air", "gen_ai.response.id": response}
            began = at + turn
            spans.append(_span("chat m", f"{rollout:08x}1{turn:07x}", began, told, name, root, trace))
            spans.append(_span("lgov.reward", f"{rollout:08x}2{turn:07x}", began, paid, name, root, trace))
            context = [*context, *reply, *chance.choices(words, k=answer_size)]
        run = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "write",
            "lgov.task_id": f"task_{rollout // 8}",
            "lgov.outcome": "succeeded",
        }
        spans.append(_span("lgov.reward", f"{rollout:08x}30000000", at, {"lgov.reward.value": 1.0}, name, root, trace))
        spans.append(_span("invoke_agent write", root, at, run, name, None, trace))
    return spans


def _span(
    name: str, span_id: str, at: float, told: dict[str, Any], rollout: str, parent: str | None, trace: str
) -> Span:
    return Span(name, span_id, at, at + 0.5, told, rollout, 1, parent, trace, (), True)


def best(run: Callable[[], Any], fewest: int = 5, seconds: float = 3.0) -> tuple[float, Any]:
    """CPU seconds of the fastest of several runs (``fewest`` or more, as ``seconds`` allow), and what it gave."""
    took, found, runs, spent = float("inf"), None, 0, 0.0
    while runs < fewest or spent < seconds:
        found = None
        began = time.process_time()
        found = run()
        lasted = time.process_time() - began
        took, runs, spent = min(took, lasted), runs + 1, spent + lasted
    return took, found


def measure(calls: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    spans = spans_of(calls, shape)
    converting, data = best(lambda: make_transitions(read_spans(spans)))
    if len(data.transitions) != calls or data.diagnostics:
        raise AssertionError(f"{calls} calls became {len(data.transitions)} transitions; {data.counts()}")
    crediting, credited = best(lambda: assign_credit(data), 1, 0.0)
    chaining, chains = best(lambda: make_chains(credited.transitions), 1, 0.0)
    if len(chains) != calls // TURNS:
        raise AssertionError(f"{calls // TURNS} rollouts became {len(chains)} chains")
    tokens = sum(len(one.prompt_ids) + len(one.response_ids) for one in data.transitions)
    group = [one for rollout in next(iter(data.groups().values())) for one in rollout]
    growing, tree = best(lambda: make_tree(group), 3, 0.0)
    return {
        "calls": calls,
        "tokens_a_call": round(tokens / calls),
        "convert_us": converting / calls * 1e6,
        "calls_a_second": calls / converting,
        "credit_us": crediting / calls * 1e6,
        "chains_us": chaining / calls * 1e6,
        "tree_us": growing / len(group) * 1e6,
        "tree_saves": tree.statistics()["saved_factor"],
    }


def measure_peer(calls: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """agentlightning's converter on the same rollouts, one after the other, as its trainer calls it."""
    from agentlightning.adapter import TracerTraceToTriplet  # type: ignore[import-not-found]
    from agentlightning.types import OtelResource, TraceStatus  # type: ignore[import-not-found]
    from agentlightning.types import Span as PeerSpan  # type: ignore[import-not-found]

    rollouts: dict[str, list[Any]] = {}
    for number, span in enumerate(spans_of(calls, shape)):
        told = dict(span.attributes)
        name = span.name
        if name == "chat m":
            name = "openai.chat.completion"
            told |= {
                "prompt_token_ids": told.pop("lgov.prompt_token_ids"),
                "response_token_ids": told.pop("lgov.response_token_ids"),
            }
        elif name == "lgov.reward":
            name = "agentlightning.annotation"
            told = {
                "agentlightning.reward.0.name": "primary",
                "agentlightning.reward.0.value": told["lgov.reward.value"],
            }
        else:
            told = {"agent.name": "write"}
        made = PeerSpan(
            rollout_id=span.rollout_id,
            attempt_id="1",
            sequence_id=number,
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_id=span.parent_id,
            name=name,
            status=TraceStatus(status_code="OK"),
            attributes=told,
            events=[],
            links=[],
            start_time=span.started_at,
            end_time=span.ended_at,
            context=None,
            parent=None,
            resource=OtelResource(attributes={}, schema_url=""),
        )
        rollouts.setdefault(span.rollout_id or "", []).append(made)
    adapter = TracerTraceToTriplet()
    took, found = best(lambda: sum(len(adapter.adapt(spans)) for spans in rollouts.values()))
    return {"calls": calls, "triplets": found, "convert_us": took / calls * 1e6, "calls_a_second": calls / took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="write JSON only")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="calls of the largest set")
    given = parser.parse_args()
    sizes = [size for size in SIZES if size <= given.largest]
    rows = [measure(size, SMALL) for size in sizes]
    large = [measure(size, LARGE) for size in sizes if size <= 10_000]
    peer = measure_peer(1_000, SMALL) if importlib.util.find_spec("agentlightning") else None
    linear = rows[-1]["convert_us"] / rows[0]["convert_us"]
    result = {
        "rows": rows,
        "large": large,
        "peer": peer,
        "cost_of_a_call_largest_to_smallest": linear,
        "goal": GOAL,
        "met": linear <= GOAL,
        "times_faster": peer and rows[0]["calls_a_second"] / peer["calls_a_second"],
    }
    if given.json:
        json.dump(result, sys.stdout, indent=2)
        print()
        return
    print(
        f"{'calls':>8} {'tokens':>7} {'convert':>9} {'a second':>10} {'credit':>8} {'chains':>8} {'tree':>8}   (us a call, CPU)"
    )
    for row in [*rows, *large]:
        print(
            f"{row['calls']:>8} {row['tokens_a_call']:>7} {row['convert_us']:>9.1f} {row['calls_a_second']:>10,.0f}"
            f" {row['credit_us']:>8.1f} {row['chains_us']:>8.1f} {row['tree_us']:>8.1f}"
        )
    met = "met" if result["met"] else "NOT met"
    print(f"a call of the largest set costs {linear:.2f} times one of the smallest (goal: {GOAL:g} at most): {met}")
    if peer:
        print(f"agentlightning 0.3.0: {peer['convert_us']:.0f} us a call, {peer['calls_a_second']:,.0f} a second")
        print(f"lgov is {result['times_faster']:.1f} times faster")
    else:
        print("agentlightning is not installed here; nothing to compare with")


if __name__ == "__main__":
    main()
