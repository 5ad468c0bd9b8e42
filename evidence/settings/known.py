"""The three settings."""

from __future__ import annotations

from settings.maths import tasks as maths
from settings.retrieval import tasks as retrieval
from settings.setting import Setting
from settings.sql import log as sql

SETTINGS = {
    "sql": Setting(
        name="sql",
        title="Text-to-SQL: writer, checker, rewriter",
        framework="langchain",
        score="1 when the last query's result rows are those of the reference query, else 0",
        trained=("writer", "rewriter"),
        frozen=("checker",),
        agent="settings.sql.episodes:run_agent",
        policy=sql.POLICY,
        make_world=sql.make_world,
        # Its gain is the smallest of the three, so it is measured on more tasks.
        plans={"tiny": {"warm_steps": 600, "updates": 18, "fixed_tasks": 64, "held_out_tasks": 256}},
    ),
    "retrieval": Setting(
        name="retrieval",
        title="Retrieval QA: search, two and three hops",
        framework="openai-agents",
        score="F1 over the words of the answer",
        trained=("reader",),
        agent="settings.retrieval.episodes:run_agent",
        policy=retrieval.POLICY,
        make_world=retrieval.make_world,
        plans={"tiny": {"warm_steps": 600, "updates": 14}},
    ),
    "maths": Setting(
        name="maths",
        title="Word problems with a calculator",
        framework="autogen-agentchat",
        score="1 for the right number, else 0",
        trained=("solver",),
        agent="settings.maths.episodes:run_agent",
        policy=maths.POLICY,
        make_world=maths.make_world,
        plans={"tiny": {"warm_steps": 800, "updates": 20}},
    ),
}
