"""Runs of an agent in a list: what was asked and answered, what it took, and the conversations of a run that has several."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from lgov_core.policies.budgets.ledger import NANO, Price, find
from lgov_core.store import TraceStore
from lgov_core.store.pages import Filters
from lgov_core.views.attempt_builder import NotRecorded, read_attempt
from lgov_core.views.attempt_view import AttemptView, ModelStep
from lgov_core.views.lists import rollout_page
from lgov_core.views.timeline import as_json, text_of

#: Seconds without anything written after which a run without a recorded end is taken to be over.
QUIET_S: Final = 600.0
#: Conversations of a run that are listed, the newest.
_CONVERSATIONS: Final = 50


def run_page(
    store: TraceStore, filters: Filters, before: int | None, limit: int, prices: Mapping[str, Price]
) -> dict[str, Any]:
    """A page of `rollout_page` with what is known of each run of an agent: its first and last text, agents, calls and cost.

    ``prices`` are those of models, by name or glob; ``cost`` (US dollars) is None where a price or a count of tokens is
    missing. ``ended`` is false for a run that is not known to have ended and wrote nothing for `QUIET_S` seconds.
    """
    page = rollout_page(store, filters, before, limit)
    for row in page["items"]:
        with suppress(NotRecorded):
            view = read_attempt(store, row["rollout_id"], row["attempt"])
            row |= _run(view, row["seconds"], prices) | {"command": view.input.get("command"), "conversations": []}
            if len(view.conversations) > 1:
                alone = map(view.part_of, reversed(view.conversations))
                fitting = [conversation for conversation in alone if _fits(conversation, filters)]
                row["conversations"] = [_conversation(fits, prices) for fits in fitting[:_CONVERSATIONS]]
                row["conversation_count"] = len(view.conversations)
    return page


def _fits(view: AttemptView, filters: Filters) -> bool:
    """True for a conversation that is why its run is in the list."""
    decisions, text = view.all_decisions, (filters.text or "").lower()
    blocks = any(decision.blocks for decision in decisions)
    would = any(decision.would for decision in decisions)
    denied = {"1": blocks, "would": would, "0": not (blocks or would)}
    return (
        denied.get(filters.denied or "", True)
        and (filters.agent is None or any(step.agent == filters.agent for step in view.steps))
        and (filters.policy is None or any(decision.policy == filters.policy for decision in decisions))
        and (filters.rule is None or any(decision.rule == filters.rule for decision in decisions))
        and (not text or text in as_json([asdict(row) for row in (*view.steps, *view.decisions)]).lower())
    )


def _conversation(view: AttemptView, prices: Mapping[str, Price]) -> dict[str, Any]:
    """A row for one of several conversations in a run."""
    decisions = view.all_decisions
    return {
        "conversation": view.conversations[0],
        "started_at": view.steps[0].started_at,
        "turns": len(view.steps),
        "denials": sum(decision.blocks for decision in decisions),
        "would": sum(bool(decision.would) for decision in decisions),
        **_run(view, None, prices),
    }


def _run(view: AttemptView, seconds: float | None, prices: Mapping[str, Price]) -> dict[str, Any]:
    texts = (message.text for step in view.steps[:1] for message in step.seen if message.role == "user")
    wrote = next(((at, step.wrote) for at, step in reversed(list(enumerate(view.steps))) if step.wrote), None)
    times = [at for step in view.steps for at in (step.started_at, step.ended_at) if at is not None]
    decisions = view.decisions if view.steps else view.all_decisions
    times += [decision.at for decision in decisions if decision.at is not None]
    tools = [tool for step in view.steps for tool in step.tools] + list(view.loose_tools)
    costs = [_cost(step, prices) for step in view.steps]
    prompt_tokens, response_tokens = view.tokens
    return {
        "agents": list(
            dict.fromkeys([*(run.name for run in view.agents), *(step.agent for step in view.steps if step.agent)])
        ),
        "asked": text_of(next(texts, None) or (as_json(view.input) if view.input else None)),
        "answered": text_of(view.result) if wrote is None else text_of(wrote[1]),
        "tool_calls": len(tools),
        "prompt_tokens": prompt_tokens,
        "response_tokens": response_tokens,
        "cost": None if not costs or None in costs else sum(filter(None, costs)) / NANO,
        "seconds": seconds if seconds is not None or not times else max(times) - min(times),
        "ended": view.outcome is not None or (bool(times) and time.time() - max(times) > QUIET_S),
        "end_recorded": view.outcome is not None,
    }


def _cost(step: ModelStep, prices: Mapping[str, Price]) -> int | None:
    """The price of a model call in billionths of a dollar."""
    price = find(prices, step.model)
    if price is None or step.prompt_tokens is None or step.response_tokens is None:
        return None
    return price.nano_usd(step.prompt_tokens, step.response_tokens)
