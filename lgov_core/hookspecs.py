"""The hooks, in the order in which an action flows through them: the table of contents of the product.

A plugin is any object or module with functions of these names marked ``@hookimpl``; an implementation may take fewer of
the named arguments. Decision hooks may be plain functions or coroutine functions: the governor drives both from
synchronous and from asynchronous agents.

Decision hooks (``lgov_agent_startup`` … ``lgov_agent_shutdown``) share one contract. The governor walks the
implementations itself: each gets the action as the transforms before it left it, transforms are folded in order, and of
all effects the most severe wins. An implementation that raises, returns something that is not a `Decision`, or does not
answer within the governor's timeout counts as a deny *in its slot*; it never removes the decisions of the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from lgov_core.scope import RolloutScope
    from lgov_core.types import (
        Action,
        Adapter,
        CreditRules,
        Decision,
        PolicyFactory,
        Reward,
        Span,
        ToolOutcome,
        Transition,
    )

PROJECT = "lgov"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

if TYPE_CHECKING:
    Verdict = Decision | Awaitable[Decision | None] | None

DECISION_HOOKS = (
    "lgov_agent_startup",
    "lgov_input",
    "lgov_pre_model_call",
    "lgov_post_model_call",
    "lgov_pre_tool_call",
    "lgov_post_tool_call",
    "lgov_output",
    "lgov_agent_shutdown",
)


@hookspec
def lgov_framework() -> Adapter:  # type: ignore[empty-body]
    """Names an adapter that can govern one framework.

    When: once, when a process is instrumented (``lgov run``, training workers).
    Gets: nothing.
    Returns: an `Adapter`; must not import the framework.
    If it raises: instrumentation fails and the process does not start (fails closed).
    Cost: any; not on the path of an action.
    """


@hookspec
def lgov_policies() -> Mapping[str, PolicyFactory]:  # type: ignore[empty-body]
    """Names policies that rules of policy files may ``use`` besides the built-in ones.

    When: a policy file uses a name that is not built in. Only plugins found by their entry point are asked.
    Gets: nothing.
    Returns: names and what makes a policy: called with ``name`` (the rule's) and the entries of ``with`` as keyword
        arguments; raises `PolicyError` for options that make no sense.
    If it raises: loading fails (fails closed); so it does when two plugins give the same name, or one that is built in.
    Cost: any; not on the path of an action.
    """


@hookspec
def lgov_agent_startup(action: Action) -> Verdict:
    """Judges whether a rollout may begin.

    When: a rollout scope is entered through the governor, before the agent runs.
    Gets: ``action`` with kind ``agent`` and the task's id as name.
    Returns: a `Decision`, an awaitable of one, or None for no opinion.
    If it raises: deny in its slot; the rollout does not begin.
    Cost: once a rollout.
    """


@hookspec
def lgov_input(action: Action) -> Verdict:
    """Judges the user's text before the agent gets it.

    When: an agent is invoked, before its first model call.
    Gets: ``action.text``, the new user text.
    Returns: a `Decision` (transform replaces ``text``), an awaitable of one, or None for no opinion.
    If it raises: deny in its slot; no model is called.
    Cost: once an invocation.
    """


@hookspec
def lgov_pre_model_call(action: Action) -> Verdict:
    """Judges a model call before it is sent.

    When: before every model call.
    Gets: ``action.name`` (the model), ``action.arguments["messages"]`` as role/content mappings.
    Returns: a `Decision`, an awaitable of one, or None for no opinion.
    If it raises: deny in its slot; nothing is sent, the agent gets the denial as the reply.
    Cost: once a model call; keep it under 100 µs.
    """


@hookspec
def lgov_post_model_call(action: Action) -> Verdict:
    """Judges what the model wrote before the agent acts on it.

    When: after every model call, before any proposed tool call is judged.
    Gets: ``action.text``, the reply's text; ``action.arguments["tool_calls"]``, the calls it proposes;
        ``action.arguments["usage"]``, the tokens it took, where the model reported them.
    Returns: a `Decision` (transform replaces ``text``), an awaitable of one, or None for no opinion.
    If it raises: deny in its slot; the reply is replaced by the denial and its tool calls are dropped.
    Cost: once a model call; keep it under 100 µs.
    """


@hookspec
def lgov_pre_tool_call(action: Action) -> Verdict:
    """Judges a tool call before it runs.

    When: before every tool call, hand-off or call of another agent.
    Gets: ``action.name``, ``action.arguments``, ``action.call_id``.
    Returns: a `Decision` (transform replaces ``arguments``), an awaitable of one, or None for no opinion.
    If it raises: deny in its slot; the tool does not run and the model reads the denial.
    Cost: once a tool call; keep it under 100 µs.
    """


@hookspec
def lgov_post_tool_call(action: Action) -> Verdict:
    """Judges a tool's result before the model reads it.

    When: after every tool call that returned.
    Gets: ``action.text``, the result as the model would read it; name, arguments and call id as before the call.
    Returns: a `Decision` (transform replaces ``text``), an awaitable of one, or None for no opinion.
    If it raises: deny in its slot; the model reads the denial instead of the result.
    Cost: once a tool call; keep it under 100 µs.
    """


@hookspec
def lgov_output(action: Action) -> Verdict:
    """Judges the agent's final answer before the caller gets it.

    When: an agent is about to return.
    Gets: ``action.text``, the final answer.
    Returns: a `Decision` (transform replaces ``text``), an awaitable of one, or None for no opinion.
    If it raises: deny in its slot; the caller gets the denial.
    Cost: once an invocation.
    """


@hookspec
def lgov_agent_shutdown(action: Action) -> Verdict:
    """Judges the end of a rollout, for the record: nothing is left to block.

    When: a rollout scope is left through the governor, also when its beginning was denied.
    Gets: ``action`` as at ``lgov_agent_startup``; from a governor's rollout ``action.arguments["reason"]`` says how it
        ended: ``completed``, ``error`` or ``cancelled``.
    Returns: a `Decision`, an awaitable of one, or None for no opinion.
    If it raises: deny in its slot; recorded.
    Cost: once a rollout.
    """


@hookspec
def lgov_reward(outcome: ToolOutcome) -> Sequence[Reward]:  # type: ignore[empty-body]
    """Turns the outcome of a tool call into intermediate rewards (AIR).

    When: after every tool call: succeeded, failed, timed out or denied.
    Gets: ``outcome`` with the action, its status, and the decision where there was one.
    Returns: rewards on explicit targets; the rewards of all plugins are collected. An empty list for none.
    If it raises: the error is reported as an event and no reward of that plugin is recorded; the agent goes on. So when
        a reward is not a finite number. Only one plugin may charge for denials: it has ``charges_denials = True``.
    Cost: once a tool call; keep it under 100 µs.
    """


@hookspec
def lgov_span_reward(span: Span) -> Sequence[Reward]:  # type: ignore[empty-body]
    """Turns a span of a rollout, such as a model call, into intermediate rewards.

    When: after every span of a rollout that an adapter shows: model calls, agent runs, tool calls.
    Gets: ``span``, with the attributes of `lgov_core.trace.semconv`.
    Returns: rewards that name a response id or a tool call; the rewards of all plugins are collected.
    If it raises: the error is reported as an event and no reward of that plugin is recorded; the agent goes on. So when
        a reward names no target, for it would fall to the attempt as a whole.
    Cost: once a span; keep it under 100 µs.
    """


@hookspec
def lgov_rollout_reward(rollout: RolloutScope) -> Sequence[Reward]:  # type: ignore[empty-body]
    """Settles the rewards of an attempt that has ended.

    When: after ``agent_shutdown`` was judged, whatever the decision was.
    Gets: ``rollout``, which attempt it was.
    Returns: rewards on the attempt (they fall to its last call) or on one of its calls.
    If it raises: the error is reported as an event and no reward of that plugin is recorded.
    Cost: once a rollout.
    """


@hookspec
def lgov_observe(event: Any) -> None:
    """Gets every event: decisions, tool outcomes, rewards, spans.

    When: after each of them; for decisions, after their audit entry is committed.
    Gets: ``event``: an `ObservedDecision`, a `ToolOutcome`, a `ModelCallFailed`, a `Reward`, a `Span` or a
        `PluginFailure`.
    Returns: nothing.
    If it raises: the error is counted on the governor and the others still see the event; the agent goes on.
    Cost: must not block; keep it under 50 µs.
    """


@hookspec(firstresult=True)
def lgov_assign_credit(
    scheme: str, rollouts: Sequence[Sequence[Transition]], rules: CreditRules
) -> Sequence[Sequence[float | Sequence[float]]] | None:
    """Credits the turns of one group of rollouts by a scheme of the plugin's own.

    When: credit is assigned and `CreditRules.scheme` names none of the built-in schemes.
    Gets: ``scheme``, that name; ``rollouts``, the transitions of each rollout of one task, in order of turns, without
        the choices that the attempt set aside; ``rules``.
    Returns: for each rollout and turn the advantage, one number or one for each response token; None if the scheme is
        not the plugin's. The first answer counts. Masks are applied to it, and loss weights are those of ``rules``.
    If it raises: no credit is assigned, with an error that names the plugin (fails closed); so when lengths do not fit or
        a number is not finite.
    Cost: any; not on the path of an action.
    """
