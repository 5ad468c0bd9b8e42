"""Prints an attempt on a terminal, step by step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from lgov_core.views.attempt_view import (
    AttemptView,
    ModelStep,
    RecordedDecision,
    RewardLine,
    ToolStep,
    routine,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_EFFECT_STYLES = {
    "allow": "green",
    "warn": "yellow",
    "transform": "cyan",
    "escalate": "bold red",
    "deny": "bold red",
}
_STATUS_STYLES = {"ok": "green", "denied": "bold red"}
#: How a reply ends that came to its end; "function_calls" is AutoGen's word, and some servers say nothing.
_FINISHED = ("", "stop", "tool_calls", "function_calls")


def show_attempt(view: AttemptView, console: Console, *, tail: int = 600, everything: bool = False) -> None:
    """Writes ``view`` to ``console``.

    Of each text at most the last ``tail`` characters are shown (0: all of it). ``everything`` adds the decisions that
    only allowed something other than a tool call. Control characters are shown as their codes, so that what a model
    wrote cannot steer the terminal.
    """
    for renderable in _parts(view, tail, everything):
        console.print(renderable)


def _parts(view: AttemptView, tail: int, everything: bool) -> Iterable[RenderableType]:
    yield Text.assemble(
        ("rollout ", "dim"), (_plain(view.rollout_id), "bold"), ("  task ", "dim"), _plain(view.task_id)
    )
    yield _field("attempt", f"{view.attempt} of {view.attempts}")
    yield _field("input", json.dumps(dict(view.input), ensure_ascii=False), tail)
    for decision in _worth_showing(view.decisions, everything):
        yield _decision(decision)
    for step in view.steps:
        yield from _step(step, tail, everything, several=len(view.conversations) > 1)
    if view.loose_tools:
        yield Rule(Text("tool calls of no known model call"), align="left", style="yellow")
        for tool in view.loose_tools:
            yield from _tool(tool, tail, everything)
    yield Rule(Text("end"), align="left")
    yield _field("outcome", view.outcome.value if view.outcome is not None else "running" if view.opened else "unknown")
    yield _field("tokens", _tokens(*view.tokens))
    if view.error:
        yield _field("error", view.error, tail)
    if view.result is not None:
        yield _field("result", json.dumps(view.result, ensure_ascii=False, default=str), tail)
    yield from _rewards(view.rewards, "reward")
    yield from _rewards(view.loose_rewards, "reward of no known call")


def _step(step: ModelStep, tail: int, everything: bool, *, several: bool) -> Iterable[RenderableType]:
    weights = "unknown" if step.weights_version is None else str(step.weights_version)
    choice = f", choice {step.choice}" if step.choice else ""
    tokens = f"{_tokens(step.prompt_tokens, step.response_tokens)} tokens"
    origin = f"weights {weights}" if step.captured else "from its span"
    agent = f"{_plain(step.agent)}  " if step.agent else ""
    agent = f"conversation {_plain(step.conversation)}  {agent}" if several else agent
    yield Rule(Text(f"turn {step.turn}{choice}  {agent}{_plain(step.model)}  {origin}  {tokens}"), align="left")
    for message in step.seen:
        yield _field(f"{message.role} said" if message.role == "user" else message.role, message.text, tail)
    unanswered = not step.captured and step.finish_reason not in _FINISHED
    if step.wrote or not (step.tools or unanswered):
        yield _field("model wrote", step.wrote, tail, style="bold")
    if step.finish_reason not in _FINISHED:
        yield _field("finished", step.finish_reason)
    for tool in step.tools:
        yield from _tool(tool, tail, everything)
    yield from _rewards(step.rewards, "reward")


def _tool(tool: ToolStep, tail: int, everything: bool) -> Iterable[RenderableType]:
    yield _field("model called", f"{tool.name} {tool.arguments}", tail, style="bold")
    for decision in _worth_showing(tool.decisions, everything):
        yield _decision(decision, of_tool=True)  # whose arguments stand above
    if tool.status is None:
        yield _field("tool", "no outcome was recorded")
    else:
        detail = tool.result if tool.result is not None else tool.error
        style = _STATUS_STYLES.get(tool.status, "yellow")
        status = (_plain(f"{tool.status} (reported from outside)"), "yellow") if tool.claimed else (tool.status, style)
        yield _field("tool", Text.assemble(status, "  ", _cut(detail or "", tail)))
    yield from _rewards(tool.rewards, "reward")


def _worth_showing(decisions: Sequence[RecordedDecision], everything: bool) -> list[RecordedDecision]:
    return [decision for decision in decisions if everything or not routine(decision)]


def _decision(decision: RecordedDecision, *, of_tool: bool = False) -> RenderableType:
    rule = f"{decision.policy}/{decision.rule}" if decision.rule else decision.policy
    text = f"  {rule}: {decision.reason}" if decision.reason else f"  {rule}"
    severity = f"  ({decision.severity})" if decision.blocks or decision.would else ""
    where = f"  at {decision.point}" if decision.point != "pre_tool_call" else ""
    where += f"  about {decision.about}" if decision.about and not of_tool else ""
    style = _EFFECT_STYLES.get(decision.would or decision.effect, "")
    effect = f"{decision.effect} (would {decision.would})" if decision.would else decision.effect
    return _field("decision", Text.assemble((_plain(effect), style), _plain(text + severity + where)))


def _rewards(rewards: Sequence[RewardLine], label: str) -> Iterable[RenderableType]:
    for reward in rewards:
        source = f"  from {reward.source}" if reward.source else ""
        yield _field(label, f"{reward.dimension} {reward.value:+g}{source}")


def _field(label: str, value: str | Text, tail: int = 0, style: str = "") -> RenderableType:
    text = value if isinstance(value, Text) else Text(_cut(value, tail), style=style)
    return Padding(Text.assemble((f"{_plain(label)}  ", "dim"), text), (0, 0, 0, 2))


def _cut(text: str, tail: int) -> str:
    printable = _plain(text)
    return printable if tail <= 0 or len(printable) <= tail else f"… {printable[-tail:]}"


def _tokens(prompt: int | None, response: int | None) -> str:
    return " + ".join("?" if count is None else str(count) for count in (prompt, response))


def _plain(text: str) -> str:
    """``text`` with control characters other than line breaks and tabs written as escapes."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
