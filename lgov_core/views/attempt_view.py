"""One attempt at a rollout as people look at it: model calls, the tool calls they proposed, decisions and rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lgov_core.types import JSONValue, Outcome, Point


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt. ``text`` is its content; parts of other kinds are named in brackets."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A decision as it was recorded. ``blocks`` is true for deny and escalate; ``would`` is the effect that shadow mode
    kept from being enforced, or "". ``response_id`` is the model call that it was about, where that is known. ``at`` is in Unix
    seconds. ``about`` are the facts it is about: the call's arguments, a host. ``sources`` has by argument the texts that its
    value was in, where a rule looked. ``conversation`` is as in
    `ModelStep`, "" where the decision is a tool call's.
    """

    point: str
    action: str
    effect: str
    policy: str
    rule: str
    reason: str
    severity: str
    decision_id: str | None
    blocks: bool
    would: str
    at: float | None = None
    latency_us: float | None = None
    response_id: str | None = None
    about: str | None = None
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    conversation: str = ""


@dataclass(frozen=True, slots=True)
class RewardLine:
    """A reward on one target: its dimension, value and the rule that gave it."""

    dimension: str
    value: float
    source: str


@dataclass(frozen=True, slots=True)
class ToolStep:
    """A tool call. ``arguments`` is the JSON text the model wrote. ``status`` is None when no outcome was recorded.

    ``claimed`` is true when the outcome was reported from outside and not recorded here. ``kind`` is that of the action
    (``function``, ``handoff``, ``agent``, ...), "" where unknown. Times are Unix seconds, of the span where there is one.
    """

    call_id: str
    name: str
    arguments: str
    decisions: tuple[RecordedDecision, ...]
    status: str | None
    result: str | None
    error: str | None
    rewards: tuple[RewardLine, ...]
    claimed: bool = False
    kind: str = ""
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class ModelStep:
    """A model call, with the tool calls it proposed. ``seen`` are the messages since the model's last reply.

    ``has_tokens`` says whether token ids were recorded; without them the token counts are those that the server reports, None
    where it reports none. ``captured`` is false where the call is known from an adapter's span only; ``finish_reason`` is then
    the error of a call without a reply.
    ``agent_span`` is the span of the agent run that made the call, where an adapter recorded it. Times are Unix seconds.
    ``conversation`` is what `lgov_core.views.conversations` tells apart, as far as anything does.
    """

    turn: int
    response_id: str
    model: str
    weights_version: int | None
    prompt_tokens: int | None
    response_tokens: int | None
    finish_reason: str
    seen: tuple[Message, ...]
    wrote: str
    tools: tuple[ToolStep, ...]
    rewards: tuple[RewardLine, ...]
    captured: bool = True
    has_tokens: bool = False
    choice: int = 0
    agent: str | None = None
    agent_span: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    conversation: str = ""


@dataclass(frozen=True, slots=True)
class AgentSpan:
    """A run of an agent, by its span. ``parent`` is the run that it is inside of; ``depth`` counts those. Unix seconds."""

    span_id: str
    name: str
    parent: str | None
    depth: int
    started_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt. ``loose_tools``, ``decisions`` and ``loose_rewards`` name no known model call; ``rewards`` are the
    attempt's own. ``outcome`` is None while the attempt runs, and for one that nobody opened and that only its calls and spans
    name (``opened`` is false).
    """

    rollout_id: str
    task_id: str
    run_id: str
    input: Mapping[str, JSONValue]
    attempt: int
    attempts: int
    outcome: Outcome | None
    error: str | None
    result: JSONValue
    steps: tuple[ModelStep, ...]
    loose_tools: tuple[ToolStep, ...]
    decisions: tuple[RecordedDecision, ...]
    rewards: tuple[RewardLine, ...]
    loose_rewards: tuple[RewardLine, ...]
    opened: bool = True
    agents: tuple[AgentSpan, ...] = ()

    @property
    def conversations(self) -> tuple[str, ...]:
        """The conversations of its model calls, in the order in which they began."""
        return tuple(dict.fromkeys(step.conversation for step in self.steps))

    def part_of(self, conversation: str) -> AttemptView:
        """The attempt with the model calls and decisions of one conversation only."""
        steps = tuple(step for step in self.steps if step.conversation == conversation)
        decisions = tuple(decision for decision in self.decisions if decision.conversation == conversation)
        runs = {step.agent_span for step in steps}
        agents = tuple(run for run in self.agents if run.span_id in runs)
        return replace(self, steps=steps, decisions=decisions, agents=agents, loose_tools=(), result=None, input={})

    @property
    def all_decisions(self) -> tuple[RecordedDecision, ...]:
        """The decisions of the attempt and of all its tool calls."""
        tools = [*self.loose_tools, *(tool for step in self.steps for tool in step.tools)]
        return (*self.decisions, *(decision for tool in tools for decision in tool.decisions))

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """The tokens of all prompts and of all replies, None where a count is not known."""
        return _sum([step.prompt_tokens for step in self.steps]), _sum([step.response_tokens for step in self.steps])


def _sum(counts: Sequence[int | None]) -> int | None:
    numbers = [count for count in counts if count is not None]
    return sum(numbers) if numbers and len(numbers) == len(counts) else None


def routine(decision: RecordedDecision) -> bool:
    """True where a decision only allowed something other than a tool call; such decisions are hidden by default."""
    return decision.effect == "allow" and not decision.would and decision.point != Point.PRE_TOOL_CALL.value
