"""What a decision costs: with a hundred rules, committed to the audit record, on SQL seen before and on new SQL.

Run it with ``make bench``. Times are wall clock in one thread. Where agent-os-kernel is installed, its evaluation of as
many rules on the tool's name is measured in the same run, and the ratio of the medians is shown.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from lgov_core import Action, AuditLog, Effect, Governor, Point, PolicySet, SQLPolicy, ToolPolicy
from lgov_core.policies import ConstantPolicy, Rule

RULES = 100


@dataclass(frozen=True, slots=True)
class Measure:
    """One row: microseconds a call, over ``calls`` calls."""

    what: str
    calls: int
    p50_us: float
    p99_us: float


def measure(what: str, calls: int, call: Callable[[], object]) -> Measure:
    for _ in range(max(10, calls // 10)):
        call()
    took: list[float] = []
    for _ in range(calls):
        began = time.perf_counter_ns()
        call()
        took.append((time.perf_counter_ns() - began) / 1000)
    cuts = statistics.quantiles(took, n=100)
    return Measure(what, calls, cuts[49], cuts[98])


def hundred_rules() -> PolicySet:
    """A hundred rules, of which the last covers the tool that is called."""
    others = [Rule(ConstantPolicy(Effect.DENY), name=f"r{n}", tools=(f"tool_{n}",)) for n in range(RULES - 1)]
    return PolicySet([*others, Rule(ToolPolicy(allow=["search"]), name="search", tools=("search",))])


def action(tool: str, **arguments: str) -> Action:
    return Action(Point.PRE_TOOL_CALL, tool, arguments=arguments, call_id="call_1", agent="bench")


def decide(governor: Governor, subject: Action) -> Callable[[], object]:
    def call() -> None:
        if governor.decide(subject).blocks:
            raise AssertionError(f"the subject of a measure was denied: {subject}")

    return call


def new_sql(governor: Governor) -> Callable[[], object]:
    numbers: Iterator[int] = itertools.count()

    def call() -> None:
        query = f"SELECT name, pay FROM staff WHERE dept = 'd{next(numbers)}' ORDER BY pay DESC LIMIT 5"
        if governor.decide(action("run_sql", query=query)).blocks:
            raise AssertionError(query)

    return call


def measures(calls: int, folder: Path) -> list[Measure]:
    search = action("search", query="pay of the sales department")
    sql = Governor(PolicySet.of(SQLPolicy(dialect="sqlite", mode="read_only")))
    known = action("run_sql", query="SELECT name, pay FROM staff WHERE dept = 'sales'")
    audit = AuditLog(folder / "audit.db")
    try:
        return [
            measure(f"decision, {RULES} rules, not audited", calls, decide(Governor(hundred_rules()), search)),
            measure(f"decision, {RULES} rules, audited", calls, decide(Governor(hundred_rules(), audit=audit), search)),
            measure("SQL decision, statement seen before", calls, decide(sql, known)),
            measure("SQL decision, new statement", max(100, calls // 10), new_sql(sql)),
        ]
    finally:
        audit.close()


def peer_measure(calls: int) -> Measure | None:
    """The same question to agent-os-kernel: a hundred rules on the tool's name, of which the last matches."""
    if importlib.util.find_spec("agent_os") is None:
        return None
    from agent_os.policies import PolicyDocument, PolicyEvaluator

    names = [*(f"tool_{n}" for n in range(RULES - 1)), "search"]
    rules = [
        {
            "name": name,
            "condition": {"field": "tool_name", "operator": "eq", "value": name},
            "action": "allow" if name == "search" else "deny",
            "priority": RULES - place,
        }
        for place, name in enumerate(names)
    ]
    document = {"version": "1.0", "name": "bench", "rules": rules, "defaults": {"action": "deny"}}
    evaluator = PolicyEvaluator(policies=[PolicyDocument.model_validate(document)])
    subject = {"tool_name": "search", "query": "pay of the sales department"}

    def call() -> None:
        if not evaluator.evaluate(subject).allowed:
            raise AssertionError("the subject of a measure was denied")

    return measure(f"agent-os-kernel, {RULES} rules, not audited", calls, call)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measures(options.calls, Path(folder))
    peer = peer_measure(options.calls)
    if peer is None:
        comparison = "agent-os-kernel is not installed: no comparison"
    else:
        ratio = peer.p50_us / found[0].p50_us
        comparison = (
            f"agent-os-kernel takes {ratio:.2f} times as long as lgov at the median, {RULES} rules, not audited"
        )
        found.append(peer)
    if options.json:
        json.dump({"measures": [asdict(row) for row in found], "comparison": comparison}, sys.stdout, indent=2)
        print()
        return
    width = max(len(row.what) for row in found)
    print(f"{'':{width}}  {'calls':>7}  {'p50 µs':>9}  {'p99 µs':>9}")
    for row in found:
        print(f"{row.what:{width}}  {row.calls:>7}  {row.p50_us:>9.1f}  {row.p99_us:>9.1f}")
    print(comparison)


if __name__ == "__main__":
    main()
