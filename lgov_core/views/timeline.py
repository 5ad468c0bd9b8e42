"""One attempt step by step, with texts of any length (their beginning, the rest by reference), and where two attempts part."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import zip_longest
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from lgov_core.store import TraceStore
from lgov_core.store.pages import RUNNING, UNKNOWN
from lgov_core.transitions import DataFinding
from lgov_core.transitions.build import CUT_OFF
from lgov_core.views.attempt_builder import NotRecorded, read_attempt
from lgov_core.views.attempt_view import (
    AgentSpan,
    AttemptView,
    ModelStep,
    RecordedDecision,
    RewardLine,
    ToolStep,
    routine,
)
from lgov_core.views.training import Trained, call_name

Text: TypeAlias = dict[str, Any]
#: Characters of a text in a page, and in one answer of `read_text`.
SHOWN: Final = 4_000
MOST: Final = 1_000_000


def text_of(value: Any, ref: str | None = None) -> Text | None:
    """``value`` (a text, or a JSON value, written as JSON) as a page shows it; ``ref`` finds the rest. None stays None."""
    if value is None:
        return None
    text = value if isinstance(value, str) else as_json(value)
    return {"text": text[:SHOWN], "length": len(text), "ref": ref if len(text) > SHOWN else None}


def as_json(value: Any) -> str:
    """A JSON value as text for people."""
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, ensure_ascii=False, default=str)


def text_ref(rollout_id: str, attempt: int | None, path: str) -> str:
    """The reference to a field of an `AttemptView`; ``path`` is such as ``steps.3.wrote``."""
    return f"{quote(rollout_id, safe='')}~{'' if attempt is None else attempt}~{path}"


def read_text(store: TraceStore, ref: str, first: int, count: int) -> dict[str, Any]:
    """``count`` characters of a text, from ``first`` on. Raises `NotRecorded` where the reference leads to nothing."""
    rollout, _, rest = ref.partition("~")
    attempt, _, path = rest.partition("~")
    unknown = NotRecorded(f"there is no text {ref}", hint="take a ref from an answer of this store")
    if not path or not (attempt.isdecimal() or attempt == ""):
        raise unknown
    value: Any = read_attempt(store, unquote(rollout), int(attempt) if attempt else None)
    for name in path.split("."):
        if is_dataclass(value) and name in {field.name for field in fields(value)}:
            value = getattr(value, name)
        elif isinstance(value, tuple) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise unknown
    if is_dataclass(value) or isinstance(value, tuple):
        raise unknown
    text = value if isinstance(value, str) else as_json(value)
    last = first + min(count, MOST)
    return {"text": text[first:last], "from": first, "length": len(text), "next": last if last < len(text) else None}


_PARTS: Final = ("messages", "wrote", "tools", "decisions", "results")


def parting(first: AttemptView, second: AttemptView) -> dict[str, Any]:
    """The first step at which two attempts differ, and in what; ``part`` is None where they are alike.

    Ids, times and weights do not count.
    """
    return {"part": _part(first, second), "steps": {"a": len(first.steps), "b": len(second.steps)}}


def _part(first: AttemptView, second: AttemptView) -> dict[str, Any] | None:
    for at, (mine_step, other) in enumerate(zip_longest(first.steps, second.steps)):
        if mine_step is None or other is None:
            return {"step": at, "where": "end", "tool": None}
        for name in _PARTS:
            mine, theirs = _values(mine_step, name), _values(other, name)
            if mine != theirs:
                places = (number for number, (a, b) in enumerate(zip_longest(mine, theirs)) if a != b)
                return {"step": at, "where": name, "tool": next(places) if name in _PARTS[2:] else None}
    return None


def _values(step: ModelStep, name: str) -> list[Any]:
    if name == "messages":
        return [(message.role, message.text) for message in step.seen]
    if name == "wrote":
        return [(step.wrote, step.agent)]
    if name == "tools":
        return [(tool.name, tool.arguments) for tool in step.tools]
    if name == "decisions":
        return [
            [(decision.point, decision.effect, decision.policy, decision.rule) for decision in tool.decisions]
            for tool in step.tools
        ]
    return [(tool.status, tool.result, tool.error) for tool in step.tools]


#: Steps in one answer, at most.
MOST_STEPS: Final = 500
#: Of a `ModelStep`, what is shown as it is.
_OF_STEP: Final = (
    *("turn", "response_id", "choice", "model", "weights_version", "prompt_tokens", "response_tokens", "finish_reason"),
    *("started_at", "ended_at", "captured", "has_tokens", "conversation"),
)
_OF_TOOL: Final = ("call_id", "name", "kind", "status", "error", "claimed", "started_at", "ended_at")
#: By decision id: what a transform replaced, and with what.
Rewrites = Mapping[str, Mapping[str, Any]]


def timeline(
    store: TraceStore,
    view: AttemptView,
    trained: Trained,
    rewrites: Rewrites,
    first: int,
    count: int,
    conversation: str | None = None,
) -> dict[str, Any]:
    """The attempt ``view`` with ``count`` steps from ``first`` on: of all, or of those of one conversation."""
    return _Timeline(view, trained, rewrites, conversation).page(store, first, min(count, MOST_STEPS))


class _Timeline:
    def __init__(self, whole: AttemptView, trained: Trained, rewrites: Rewrites, conversation: str | None) -> None:
        view = whole if conversation is None else whole.part_of(conversation)
        self._view, self._trained, self._rewrites = view, trained, rewrites
        self._conversations, kept = whole.conversations, frozenset(view.conversations)
        #: The steps with their places in the whole attempt, by which their texts are found.
        self._steps = [(at, step) for at, step in enumerate(whole.steps) if step.conversation in kept]
        self._runs: dict[str | None, AgentSpan] = {run.span_id: run for run in view.agents}
        calls = {step.response_id for step in view.steps}
        self._of_call: dict[str, list[RecordedDecision]] = defaultdict(list)
        self._loose: list[RecordedDecision] = []
        for decision in view.decisions:
            if decision.response_id in calls:
                self._of_call[str(decision.response_id)].append(decision)
            else:
                self._loose.append(decision)
        drifts = [
            diagnostic for diagnostic in trained.diagnostics if diagnostic.finding is DataFinding.RETOKENISATION_DRIFT
        ]
        self._drifted = {drift.subject for drift in drifts}

    def page(self, store: TraceStore, first: int, count: int) -> dict[str, Any]:
        view, last = self._view, first + count
        attempts = store.pages.attempts_of([view.rollout_id])
        own = next((row for row in attempts if row[1] == view.attempt), None)
        return {
            **{name: getattr(view, name) for name in ("rollout_id", "task_id", "run_id", "attempt")},
            "attempts": [
                {"attempt": number, "outcome": outcome or RUNNING, "started_at": started_at, "ended_at": ended_at}
                for _, number, started_at, ended_at, outcome, _ in attempts
            ],
            "outcome": view.outcome.value if view.outcome is not None else RUNNING if view.opened else UNKNOWN,
            "error": self._text(view.error, "error"),
            "input": self._text(view.input, "input"),
            "result": self._text(view.result, "result"),
            "started_at": None if own is None else own[2],
            "ended_at": None if own is None else own[3],
            "rewards": list(map(_fields, view.rewards)),
            "loose_rewards": list(map(_fields, view.loose_rewards)),
            **self._totals(),
            "loose_tools": [
                self._tool(loose_tool, f"loose_tools.{at}") for at, loose_tool in enumerate(view.loose_tools)
            ],
            "decisions": [self._decision(decision) for decision in self._loose],
            "agents": [{"id": run.span_id, **_fields(run)} for run in view.agents],
            "advantage_source": self._trained.source,
            "trained_step": self._trained.step,
            "diagnostics": [
                {"finding": diagnostic.finding.value, "subject": diagnostic.subject, "detail": diagnostic.detail}
                for diagnostic in self._trained.diagnostics
            ],
            "conversations": list(self._conversations),
            "steps": [self._step(at, step) for at, step in self._steps[first:last]],
            "steps_total": len(self._steps),
            "next": last if last < len(self._steps) else None,
        }

    def _totals(self) -> dict[str, Any]:
        """The tokens of all calls, what was earned in all, by dimension, and how often something was denied."""
        view = self._view
        tools = [*view.loose_tools, *(tool for step in view.steps for tool in step.tools)]
        earned: dict[str, list[float]] = defaultdict(list)
        for rewards in (view.rewards, view.loose_rewards, *(step.rewards for step in (*view.steps, *tools))):
            for reward in rewards:
                earned[reward.dimension].append(reward.value)
        prompt_tokens, response_tokens = view.tokens
        return {
            "prompt_tokens": prompt_tokens,
            "response_tokens": response_tokens,
            "earned": {name: math.fsum(earned[name]) for name in sorted(earned)},
            "denials": sum(decision.blocks for decision in view.all_decisions),
        }

    def _step(self, at: int, step: ModelStep) -> dict[str, Any]:
        run = self._runs.get(step.agent_span)
        trained = self._trained.of_call.get((step.response_id, step.choice))
        return {
            **{name: getattr(step, name) for name in _OF_STEP},
            "index": at,
            "call": call_name(step.response_id, step.choice),
            "agent": step.agent if step.agent is not None or run is None else run.name,
            "agent_id": step.agent_span,
            "depth": 0 if run is None else run.depth,
            "parent_call": None if trained is None else trained.parent_response_id,
            "handoff": next((tool.name for tool in step.tools if tool.kind == "handoff"), None),
            "truncated": step.finish_reason in CUT_OFF,
            "messages": [
                {"role": message.role, "text": self._text(message.text, f"steps.{at}.seen.{number}.text")}
                for number, message in enumerate(step.seen)
            ],
            "wrote": self._text(step.wrote, f"steps.{at}.wrote"),
            "tools": [self._tool(tool, f"steps.{at}.tools.{number}") for number, tool in enumerate(step.tools)],
            "decisions": [self._decision(decision) for decision in self._of_call.get(step.response_id, ())],
            "rewards": list(map(_fields, step.rewards)),
            "advantage": None if trained is None else trained.credit,
            "return": None if trained is None else trained.value_to_go,
            "drift": step.response_id in self._drifted,
        }

    def _tool(self, tool: ToolStep, path: str) -> dict[str, Any]:
        return {
            **{name: getattr(tool, name) for name in _OF_TOOL},
            "arguments": self._text(tool.arguments, f"{path}.arguments"),
            "decisions": [self._decision(replace(decision, about=None)) for decision in tool.decisions],
            "result": self._text(tool.result, f"{path}.result"),
            "rewards": list(map(_fields, tool.rewards)),
        }

    def _decision(self, decision: RecordedDecision) -> dict[str, Any]:
        return {
            **_fields(decision),
            "about": text_of(decision.about),
            "routine": routine(decision),
            "rewritten": self._rewrites.get(decision.decision_id or ""),
        }

    def _text(self, value: Any, path: str) -> dict[str, Any] | None:
        return text_of(value, text_ref(self._view.rollout_id, self._view.attempt, path))


def _fields(value: AgentSpan | RecordedDecision | RewardLine) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
