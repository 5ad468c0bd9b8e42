"""A program with a governed LangChain agent, recorded twice: by lgov's own spans, and by OpenTelemetry's SDK.

Prints both recordings as JSON, each span in lgov's names.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.store import open_store
from lgov_core.testing import ScriptedModelServer, call
from lgov_core.trace.canonical import canonical
from lgov_core.trace.sink import LgovSpanProcessor, StoreSink
from lgov_core.types import Action, Decision
from lgov_langchain import LgovMiddleware

folder = Path(sys.argv[1])


class AllowAll(BoundedPolicy):
    name = "all"

    def judge(self, action: Action) -> Decision | None:
        return self.allow("fine")


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    if a < 0:
        raise ValueError("negative")
    return a + b


with open_store(folder / "live.db") as live, open_store(folder / "otel.db") as otel:  # type: ignore[attr-defined]
    provider = TracerProvider()
    provider.add_span_processor(LgovSpanProcessor(otel, own=True))
    trace.set_tracer_provider(provider)
    governor = Governor([AllowAll()], plugins=[StoreSink(live)])
    with ScriptedModelServer([call("add", a=1, b=2), "three"]) as model:
        chat = ChatOpenAI(model="scripted", base_url=model.base_url, api_key="none")  # type: ignore[arg-type]
        agent: Any = create_agent(chat, [add], name="clerk", middleware=[LgovMiddleware(governor)])
        with enter_scope(RolloutScope("r1", 2)):
            agent.invoke({"messages": [("user", "1 + 2?")]})
    live.flush()
    provider.force_flush()
    recorded = {
        name: [asdict(canonical(span)) for span in store.spans()] for name, store in (("live", live), ("otel", otel))
    }
print(json.dumps(recorded))
