"""The callback handler: agent runs, model calls and tool calls become spans. Alone, it also stops denied tools."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import ToolException
from langgraph.prebuilt.tool_node import ToolInvocationError

from lgov_core.errors import PolicyDenied, PolicyError
from lgov_core.instrumentation import readable_json, semconv
from lgov_core.instrumentation.live_span import covered_call, current_span, model_call_covered
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.instrumentation.tool_call import GovernedToolCall
from lgov_core.types import Action, Decision, Effect, Point
from lgov_langchain._internals import keep_reply_ids
from lgov_langchain.messages import as_mappings, input_texts, kind_of, model_reading, result_reading
from lgov_langchain.runs import FRAMEWORK, ChainRun, RunTree, agent_in, in_thread_of_a_run, is_pause, running_config
from lgov_langchain.tool_inputs import validate_once

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import LLMResult

    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan


class DeniedToolError(ToolInvocationError):
    """A tool was denied. LangGraph's ``ToolNode`` makes the message the tool's answer, so that the model reads it."""

    def __init__(self, name: str, denial: str) -> None:  # not that of ToolInvocationError: there is no validation error
        ToolException.__init__(self, denial)
        self.message = denial
        self.tool_name = name
        self.tool_kwargs = {}
        self.filtered_errors = None


class CallbackEnforcement:
    """Evaluates the tool calls whose begin and end a callback handler observes. Callable from any thread. Fails closed."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._open: dict[Hashable, tuple[GovernedToolCall, Decision]] = {}

    def permit(self, run_id: Hashable, action: Action, above: LiveSpan | None) -> LiveSpan:
        """Evaluates a call before it runs and returns its span. Raises `DeniedToolError` if it must not run."""
        call = GovernedToolCall(self._governor, action, above)
        decision = self._governor.decide(call.action)
        enforced = enforceable(decision, "arguments")
        if enforced.blocks:
            self._governor.record(call.denied(decision))
            raise_denial(enforced, action.name)
        self._open[run_id] = call, decision
        return call.span

    def returned(self, run_id: Hashable, output: Any) -> None:
        """Records what a call returned and evaluates it. Raises `DeniedToolError` if the model must not read it."""
        if (open_call := self._open.pop(run_id, None)) is None:
            return
        call, decision = open_call
        reading = result_reading(output)
        outcome = call.returned(decision, reading)
        call.finish(outcome)
        self._governor.record(outcome)
        enforced = enforceable(self._governor.decide(call.result_action(reading, output)), "results")
        if enforced.blocks:
            raise_denial(enforced, call.action.name, ran=True)

    def raised(self, run_id: Hashable, error: BaseException) -> None:
        """Records that a call failed; a pause for a person records nothing."""
        if (open_call := self._open.pop(run_id, None)) is None:
            return
        call, decision = open_call
        if is_pause(error):
            call.span.end()
            return
        outcome = call.raised(decision, error)
        call.finish(outcome)
        self._governor.record(outcome)


def enforceable(decision: Decision, what: Literal["arguments", "messages", "results"]) -> Decision:
    """The decision as a callback can enforce it, which cannot replace ``what`` is evaluated: one that would is a denial."""
    if decision.blocks or (decision.text if what == "results" else decision.arguments) is None:
        return decision
    reason = f"the policy wants other {what}, which a callback cannot provide"
    return replace(decision, effect=Effect.DENY, reason=reason, arguments=None, text=None)


def raise_denial(decision: Decision, name: str, *, ran: bool = False) -> NoReturn:
    """Stops the tool, or withholds what it returned. Raises `DeniedToolError`, or `PolicyDenied` to abort."""
    if decision.abort:
        raise PolicyDenied(decision)
    raise DeniedToolError(name, decision.denial_message(after=ran))


class LgovCallbackHandler(BaseCallbackHandler):
    """Shows ``governor`` a `Span` for every agent run, model call and tool call when it ends::

        agent.invoke(question, config={"callbacks": [LgovCallbackHandler(governor)]})

    It observes. Beside `LgovMiddleware`, `wrap_tool_node` or `instrument` of the same governor it adds what those do not see
    and shows no call twice. Without any of these it stops a denied tool itself, as far as a callback can: the
    tool does not run, and in agents of ``create_agent`` and graphs with a ``ToolNode`` (whose ``handle_tool_errors``
    lets invocation errors through to the model, as it does by default) the model reads why. Anywhere else the denial
    is raised out of the tool as `DeniedToolError`. A callback cannot change arguments or results, so a decision that
    would is a denial here. ``enforce=False`` leaves all tools alone.

    LangChain drops what asynchronous handlers raise. A subclass whose ``on_tool_start`` or ``on_tool_end`` is a
    coroutine function, or that is not ``run_inline`` or not ``raise_error``, could not stop anything, and making one
    raises `PolicyError`.

    Prompts, replies, arguments and results are left out unless ``governor.capture_content``. A span belongs to the
    rollout in whose scope the run began. The handler runs in the thread or task of the call it watches (a slow policy
    holds that up), holds state only for runs that have not ended, and may serve any number of agents at once. Its spans
    are not the current ones of OpenTelemetry while a tool runs; those of the middleware are.
    """

    run_inline = True
    raise_error = True

    def __init__(self, governor: Governor | None, *, enforce: bool = True) -> None:
        super().__init__()
        self.governor = governor
        self.tree = RunTree()
        self._enforcement = None
        if not enforce or governor is None:
            self.raise_error = False  # what only observes must not break what it observes
        else:
            _check_can_stop(self)
            self._enforcement = CallbackEnforcement(governor)
        keep_reply_ids()
        validate_once()

    @property
    def observer(self) -> Governor | None:
        """The governor that gets the spans, or None."""
        return self.governor

    @property
    def open_runs(self) -> int:
        """How many runs have begun and not ended."""
        return len(self.tree)

    def _begin_inside(self, run_id: UUID, parent_run_id: UUID | None) -> None:
        """A run begins whose span is the current one, and was opened elsewhere."""
        self.tree.begin(run_id, self._above(parent_run_id), inside=current_span())

    def _above(self, parent_run_id: UUID | None) -> ChainRun | None:
        """The open run above. LangChain reports none for a call without a config; then it is that of the running code."""
        if parent_run_id is None:
            parent_run_id = getattr(running_config().get("callbacks"), "parent_run_id", None)
        return self.tree.find(parent_run_id)

    # ------------------------------------------------------------------ chains and agents

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A graph, a node or another runnable begins; the outermost graph and named agents inside it become spans."""
        above, name = self._above(parent_run_id), kwargs.get("name") or "agent"
        agent = self.tree.agent_of(above, name, metadata or {}, tags or (), kwargs.get("run_type"))
        is_top = above is None and parent_run_id is None and not in_thread_of_a_run()
        user_texts = input_texts(inputs) if is_top else ()
        thread = (metadata or {}).get("thread_id")
        session_id = None if thread is None else str(thread)
        run = self.tree.begin(run_id, above, agent=agent, session_id=session_id, said=user_texts)
        if agent is not None and self.governor is not None:
            self.tree.span_above(self.governor, run)

    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:
        """A runnable ended."""
        self.tree.end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A runnable raised; a pause for a person is not an error."""
        self.tree.end(run_id, None if is_pause(error) else error)

    # ------------------------------------------------------------------ models

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """A chat model is called."""
        self._begin_model(serialized, messages[0] if messages else [], run_id, **kwargs)

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **kwargs: Any) -> None:
        """A plain text model is called."""
        self._begin_model(serialized, [HumanMessage(prompt) for prompt in prompts], run_id, **kwargs)

    def _begin_model(
        self,
        serialized: dict[str, Any] | None,
        prompt: Sequence[BaseMessage],
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        invocation_params: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        observer = self.observer
        if observer is None or model_call_covered(observer):
            self._begin_inside(run_id, parent_run_id)
            return
        metadata, parameters = metadata or {}, invocation_params or {}
        named = metadata.get("ls_model_name") or parameters.get("model") or parameters.get("model_name")
        above = self._above(parent_run_id)
        call = ModelCall(
            observer,
            framework=FRAMEWORK,
            model=str(named or (serialized or {}).get("name") or "unknown"),
            agent=agent_in(metadata),
            parent=self.tree.span_above(observer, above),
        )
        call.span.set({semconv.PROVIDER: metadata.get("ls_provider")})
        if observer.capture_content:
            call.span.set({semconv.INPUT_MESSAGES: readable_json(as_mappings(prompt))})
        self.tree.begin(run_id, above, span=call.span).model_call = call

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """A model answered."""
        run = self.tree.find(run_id)
        if run is not None and run.model_call is not None and (reply := _first_reply(response)) is not None:
            run.model_call.answered(model_reading(reply))
        self.tree.end(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A model call failed."""
        self.tree.end(run_id, error)

    # ------------------------------------------------------------------ tools

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A tool is about to run. Raises `DeniedToolError` if it must not and nothing else would have stopped it."""
        observer, call = self.observer, covered_call()
        name = (serialized or {}).get("name") or "tool"
        call_id = kwargs.get("tool_call_id")
        covered = call is not None and call.governor is observer and (call.name, call.call_id) == (name, call_id)
        if observer is None or covered:
            self._begin_inside(run_id, parent_run_id)
            return
        action = Action(
            Point.PRE_TOOL_CALL,
            name,
            kind_of(name),
            inputs if inputs is not None else {"input": input_str},
            agent=agent_in(metadata),
            framework=FRAMEWORK,
            call_id=call_id,
        )
        above = self._above(parent_run_id)
        parent = self.tree.span_above(observer, above)
        if self._enforcement is not None:
            self.tree.begin(run_id, above, inside=self._enforcement.permit(run_id, action, parent))
        else:
            self.tree.begin(run_id, above, span=GovernedToolCall(observer, action, parent).span)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool returned. Raises `DeniedToolError` if the model must not read the result and nothing else stopped it."""
        try:
            if self._enforcement is not None:
                self._enforcement.returned(run_id, output)
        finally:
            run, reading = self.tree.find(run_id), result_reading(output)
            if run is not None and run.span is not None:
                run.span.set({semconv.TOOL_RESULT: reading.text})
            self.tree.end(run_id, None if reading.status == "ok" else "tool_error")

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool raised; a pause for a person is not an error."""
        pause = is_pause(error)
        if (call := covered_call()) is not None and not pause:
            call.raised = error  # the framework may make a text of it
        if self._enforcement is not None:
            self._enforcement.raised(run_id, error)
        self.tree.end(run_id, None if pause else error)


def _check_can_stop(handler: LgovCallbackHandler) -> None:
    cls = type(handler)
    waits = [name for name in ("on_tool_start", "on_tool_end") if inspect.iscoroutinefunction(getattr(cls, name))]
    problem = None
    if waits or isinstance(handler, AsyncCallbackHandler):
        problem = "is asynchronous, and LangChain drops what asynchronous handlers raise"
    elif not handler.run_inline:
        problem = "has run_inline=False, so LangChain does not wait for it"
    elif not handler.raise_error:
        problem = "has raise_error=False, so LangChain drops what it raises"
    if problem is not None:
        raise PolicyError(
            f"{cls.__name__} cannot stop a denied tool: it {problem}",
            hint="use LgovMiddleware or instrument(), which stop every tool call, or enforce=False to observe only",
        )


def _first_reply(response: LLMResult) -> AIMessage | None:
    """The first reply; that of a plain text model as a message."""
    generation: Any = next(iter(response.generations[0] if response.generations else ()), None)
    if generation is None:
        return None
    message = getattr(generation, "message", None) or AIMessage(generation.text)
    details = {**(generation.generation_info or {}), **message.response_metadata}
    return message.model_copy(update={"response_metadata": details})
