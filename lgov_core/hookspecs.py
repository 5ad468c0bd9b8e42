"""The hooks, in the order in which an action flows through them: the table of contents of the product.

A plugin is any object or module with functions of these names marked ``@hookimpl``; a function may take fewer arguments
than its hook. Decision hooks may be plain functions or coroutine functions: the governor runs both for synchronous and for
asynchronous agents.

Decision hooks (``lgov_agent_startup`` … ``lgov_agent_shutdown``) share one contract. The governor calls the functions in
order: each gets the action with the changes of those before it, and the most severe effect counts. A function that raises,
returns something that is not a `Decision`, or exceeds the governor's timeout counts as a denial; the other decisions stay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from lgov_core.scope import RolloutScope
    from lgov_core.types import (
        Action,
        Adapter,
        Decision,
        PolicyFactory,
        Reward,
        Span,
        ToolOutcome,
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
    Cost: no action waits for it.
    """


@hookspec
def lgov_policies() -> Mapping[str, PolicyFactory]:  # type: ignore[empty-body]
    """Names policies that rules of policy files may ``use`` besides the built-in ones.

    When: a policy file uses a name that is not built in. Only plugins found by their entry point are asked.
    Gets: nothing.
    Returns: a mapping from each name to a policy class, or a function that makes a policy. It is called with ``name`` (the
        rule's) and the entries of ``with`` as keyword arguments, and raises `PolicyError` for invalid options.
    If it raises: the policy file does not load (fails closed). Nor does it if two plugins give one name, or a built-in one.
    Cost: no action waits for it.
    """


@hookspec
def lgov_agent_startup(action: Action) -> Verdict:
    """Evaluates whether a rollout may begin.

    When: a rollout scope is entered through the governor, before the agent runs.
    Gets: ``action`` with kind ``agent`` and the task's id as its name.
    Returns: a `Decision`, an awaitable of one, or None for no opinion.
    If it raises: a denial; the rollout does not begin.
    Cost: once a rollout.
    """


@hookspec
def lgov_input(action: Action) -> Verdict:
    """Evaluates the user's text before the agent gets it.

    When: an agent is invoked, before its first model call.
    Gets: ``action.text``, the new user text.
    Returns: a `Decision` (transform replaces ``text``), an awaitable of one, or None for no opinion.
    If it raises: a denial; no model is called.
    Cost: once an invocation.
    """


@hookspec
def lgov_pre_model_call(action: Action) -> Verdict:
    """Evaluates a model call before it is sent.

    When: before every model call.
    Gets: ``action.name`` (the model), ``action.arguments["messages"]`` as role/content mappings.
    Returns: a `Decision`, an awaitable of one, or None for no opinion.
    If it raises: a denial; nothing is sent, and the denial is the reply.
    Cost: once a model call; keep it under 100 µs.
    """


@hookspec
def lgov_post_model_call(action: Action) -> Verdict:
    """Evaluates what the model wrote before the agent acts on it.

    When: after every model call, before any proposed tool call is evaluated.
    Gets: ``action.text``, the reply's text; ``action.arguments["tool_calls"]``, the calls it proposes;
        ``action.arguments["usage"]``, the tokens it took, where the model reported them.
    Returns: a `Decision` (transform replaces ``text``), an awaitable of one, or None for no opinion.
    If it raises: a denial; it replaces the reply with its tool calls.
    Cost: once a model call; keep it under 100 µs.
    """


@hookspec
def lgov_pre_tool_call(action: Action) -> Verdict:
    """Evaluates a tool call before it runs.

    When: before every tool call, hand-off or call of another agent.
    Gets: ``action.name``, ``action.arguments``, ``action.call_id``; ``action.agent``, the agent that calls, if it has a name.
    Returns: a `Decision` (transform replaces ``arguments``), an awaitable of one, or None for no opinion.
    If it raises: a denial; the tool does not run and the model reads the denial.
    Cost: once a tool call; keep it under 100 µs.
    """


@hookspec
def lgov_post_tool_call(action: Action) -> Verdict:
    """Evaluates a tool's result before the model reads it.

    When: after every tool call that returned.
    Gets: ``action.text``, the result as the model would read it; name, arguments and call id as before the call.
    Returns: a `Decision` (transform replaces ``text``), an awaitable of one, or None for no opinion.
    If it raises: a denial; the model reads it instead of the result.
    Cost: once a tool call; keep it under 100 µs.
    """


@hookspec
def lgov_output(action: Action) -> Verdict:
    """Evaluates the agent's final answer before the caller gets it.

    When: an agent is about to return.
    Gets: ``action.text``, the final answer.
    Returns: a `Decision` (transform replaces ``text``), an awaitable of one, or None for no opinion.
    If it raises: a denial; the caller gets it instead of the answer.
    Cost: once an invocation.
    """


@hookspec
def lgov_agent_shutdown(action: Action) -> Verdict:
    """Evaluates the end of a rollout, for the record only: nothing is left to block.

    When: a rollout scope is left through the governor, also when its beginning was denied.
    Gets: ``action`` as at ``lgov_agent_startup``; from a governor's rollout ``action.arguments["reason"]`` says how it
        ended: ``completed``, ``error`` or ``cancelled``.
    Returns: a `Decision`, an awaitable of one, or None for no opinion.
    If it raises: a denial, in the record only.
    Cost: once a rollout.
    """


@hookspec
def lgov_reward(outcome: ToolOutcome) -> Sequence[Reward]:  # type: ignore[empty-body]
    """Turns the outcome of a tool call into intermediate rewards (AIR).

    When: after every tool call that succeeded, failed, timed out or was denied.
    Gets: ``outcome`` with the action, its status, and the decision if there was one.
    Returns: rewards that name the call they are for, or an empty list. The rewards of all plugins count.
    If it raises: the plugin's rewards are not recorded, observers get a `PluginFailure`, and the agent goes on. The same
        for a reward that is not a finite number. Only one plugin may charge for denials: it has ``charges_denials = True``.
    Cost: once a tool call; keep it under 100 µs.
    """


@hookspec
def lgov_span_reward(span: Span) -> Sequence[Reward]:  # type: ignore[empty-body]
    """Turns a span of a rollout, such as a model call, into intermediate rewards.

    When: after every span that an adapter records in a rollout: model calls, agent runs, tool calls.
    Gets: ``span``, with the attributes of `lgov_core.trace.semconv`.
    Returns: rewards that name a response id or a tool call. The rewards of all plugins count.
    If it raises: as for ``lgov_reward``. The same for a reward that names no call.
    Cost: once a span; keep it under 100 µs.
    """


@hookspec
def lgov_rollout_reward(rollout: RolloutScope) -> Sequence[Reward]:  # type: ignore[empty-body]
    """Settles the rewards of an attempt that has ended.

    When: after ``agent_shutdown`` was evaluated, whatever the decision.
    Gets: ``rollout``, with the ids of the rollout and the attempt.
    Returns: rewards on the attempt (its last call gets them) or on one of its calls.
    If it raises: as for ``lgov_reward``.
    Cost: once a rollout.
    """


@hookspec
def lgov_observe(event: Any) -> None:
    """Gets every event: decisions, tool outcomes, rewards, spans.

    When: after each event; for a decision, after its audit entry is committed.
    Gets: ``event``: an `ObservedDecision`, a `ToolOutcome`, a `ModelCallFailed`, a `Reward`, a `Span` or a
        `PluginFailure`.
    Returns: nothing.
    If it raises: the governor counts the failure, other observers still get the event, and the agent goes on.
    Cost: must not block; keep it under 50 µs.
    """


@hookspec
def lgov_training() -> Mapping[str, Mapping[str, Callable[..., Any]]]:  # type: ignore[empty-body]
    """Names losses, credit schemes, samplers of tasks and callbacks that ``config.yaml`` may use besides the built-in ones.

    When: the section ``training`` is read, and the training begins. Plugins found by their entry point are asked, and files in
        ``training.plugins``.
    Gets: nothing.
    Returns: ``{"loss": {name: class}, "scheme": ..., "sampler": ..., "callback": ...}``. The class, or function, is called
        with the options of ``config.yaml``, checked by the types of its parameters. What it returns is called: a loss with
        ``logprobs, old, advantages, sequences``, and gives a `PolicyLoss`; a scheme with the rollouts of a task and the
        `CreditRules`, and gives for each rollout and turn the advantage, one number or one for each response token; a sampler
        with a `NextUpdate`, and gives numbers of tasks; a callback with each line of ``metrics.jsonl`` once that is written.
    If it raises: the settings are refused; so are a name that is taken and an unknown option. A loss, scheme or sampler that
        raises, or gives what does not fit, ends the training with an error that names it. A callback that raises is warned
        of and counted, and the training goes on.
    Cost: the training waits for each.
    """
