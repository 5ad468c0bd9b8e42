"""What the bridge to agent-hooks costs: one decision through it beside a direct one, and beside the SDK alone.

Run it with ``python -m tests.bench.agent_hooks``. Times are wall clock in one thread; rows are measured in turns, as in
`tests.bench.decisions`. The same trivial policy (a tool is allowed by its name) judges in every row. Asynchronous rows
include what entering an event loop takes, which is a row of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from agent_hooks import AgentContextBuilder, CompositionConfig, InterceptionEmitter, Verdict

from lgov_core import Action, Governor, Point, PolicySet, ToolPolicy
from lgov_core.integrations.agent_hooks import InterceptorPolicy, LgovInterceptor
from tests.bench.decisions import Measure, Row, measure

PROMPT = [{"role": "user", "content": "x" * 1000} for _ in range(100)]
ACT = Action(Point.PRE_TOOL_CALL, "search", arguments={"query": "weather"}, call_id="call_1", agent="bench")
REQUEST = Action(Point.PRE_MODEL_CALL, "model", "model", {"messages": PROMPT}, agent="bench")


class Plain:
    """The policy as an interceptor that somebody wrote by hand, called directly."""

    bounded = True

    def intercept(self, context: dict[str, Any]) -> Verdict:
        if context["interception_point"] == "pre_tool_call" and context["tool_call"]["name"] != "search":
            return Verdict.deny(reason="bench:tool")
        return Verdict.allow()


class InThread(Plain):
    bounded = False


class Coroutine:
    """The same as a coroutine."""

    async def intercept(self, context: dict[str, Any]) -> Verdict:
        return Plain.intercept(self, context)  # type: ignore[arg-type]


def policies() -> PolicySet:
    return PolicySet.of(ToolPolicy(allow=["search"]))


def emitter(interceptor: Any, identity: str | None) -> InterceptionEmitter:
    made = InterceptionEmitter(composition=CompositionConfig.run_all(), identity_provider=identity)
    made.set_max_records(1)
    return made.register(interceptor)


def rows(loop: asyncio.AbstractEventLoop) -> list[Row]:
    builder = AgentContextBuilder(agent_id="bench", framework="bench", session_id="s")

    def sync(governor: Governor, action: Action = ACT) -> Callable[[], object]:
        def call() -> None:
            assert not governor.decide(action).blocks

        return call

    def waited(make: Callable[[], Awaitable[Any]], allowed: Callable[[Any], bool]) -> Callable[[], object]:
        async def one() -> None:
            assert allowed(await make())

        return lambda: loop.run_until_complete(one())

    def asynchronous(governor: Governor, action: Action = ACT) -> Callable[[], object]:
        return waited(lambda: governor.adecide(action), lambda decision: not decision.blocks)

    def emitted(sdk: InterceptionEmitter, messages: bool = False) -> Callable[[], object]:
        def context() -> dict[str, Any]:
            if messages:
                return builder.pre_model_call(model_id="model", messages=PROMPT)
            return builder.pre_tool_call(call_id="call_1", name="search", args={"query": "weather"})

        return waited(lambda: sdk.emit_unchecked(context()), lambda record: record.proceeds)

    def bridged(interceptor: Any, identity: str | None = None) -> InterceptorPolicy:
        return InterceptorPolicy([interceptor], identity_provider=identity)

    async def nothing() -> bool:
        return True

    direct = "a tool call, lgov's own policy"
    return [
        Row("an event loop entered and left", waited(nothing, bool)),
        Row(direct, sync(Governor(policies()))),
        Row(f"{direct}, async", asynchronous(Governor(policies()))),
        Row("the SDK's emitter alone, no identity", emitted(emitter(Plain(), None))),
        Row("the SDK's emitter alone", emitted(emitter(Plain(), "jcs-sha256"))),
        Row("the SDK's emitter with LgovInterceptor", emitted(emitter(LgovInterceptor(policies()), "jcs-sha256"))),
        Row("lgov with an interceptor, bounded, no identity", sync(Governor(bridged(Plain())))),
        Row("lgov with an interceptor, bounded", sync(Governor(bridged(Plain(), "jcs-sha256")))),
        Row("lgov with an interceptor, in a thread", sync(Governor(bridged(InThread(), "jcs-sha256"))), share=0.2),
        Row(
            "lgov with an interceptor, a coroutine, async agent",
            asynchronous(Governor(plugins=[bridged(Coroutine(), "jcs-sha256")])),
        ),
        Row("a prompt of 100 kB, lgov's own policy", sync(Governor(policies()), REQUEST)),
        Row("a prompt of 100 kB, the SDK's emitter alone", emitted(emitter(Plain(), "jcs-sha256"), True), share=0.05),
        Row("a prompt of 100 kB, an interceptor, no identity", sync(Governor(bridged(Plain())), REQUEST), share=0.05),
        Row("a prompt of 100 kB, an interceptor", sync(Governor(bridged(Plain(), "jcs-sha256")), REQUEST), share=0.05),
    ]


def measured(calls: int) -> list[Measure]:
    loop = asyncio.new_event_loop()
    try:
        return measure(rows(loop), calls)
    finally:
        loop.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=4000, help="calls a row")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = measured(options.calls)
    if options.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    print(f"{'':52} {'p50 us':>9} {'p99 us':>9}")
    for one in found:
        print(f"{one.what:52} {one.p50_us:9.1f} {one.p99_us:9.1f}")


if __name__ == "__main__":
    main()
