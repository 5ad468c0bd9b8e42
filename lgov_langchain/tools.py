"""Governs tool calls where they pass: ``BaseTool.run`` and ``arun``, and LangGraph's ``ToolNode``.

A ``ToolNode`` is governed in agents through the middleware, in hand-made graphs directly (`wrap_tool_node`). A call that it
has evaluated passes through ``BaseTool.run`` (see `lgov_core.instrumentation.live_span`); any other call is evaluated and
recorded there, and so is its result. A denial is what the tool returns: a tool message with status ``error`` if the call
came from a model, its text otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.messages import ToolMessage
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import TOOL_CALL_ERROR_TEMPLATE, TOOL_INVOCATION_ERROR_TEMPLATE
from langgraph.types import interrupt

from lgov_core.errors import PolicyError
from lgov_core.instrumentation import (
    CARRIED,
    Flow,
    NotCanonical,
    arun_flow,
    fingerprint,
    foreign,
    open_question,
    run_flow,
    wait,
)
from lgov_core.instrumentation.framework import flow_method
from lgov_core.instrumentation.live_span import CoveredCall, covered_call
from lgov_core.instrumentation.tool_call import GovernedToolCall, ToolReading, tool_flow
from lgov_core.types import Action, Decision, Point, ToolOutcome
from lgov_langchain._internals import handled_error_types, is_resumable, node_options, resumed_by
from lgov_langchain.callback import DeniedToolError
from lgov_langchain.instrumentor import INSTRUMENTOR
from lgov_langchain.messages import answer, denial_message, kind_of, result_reading
from lgov_langchain.process_handler import agent_span, expect_call_below, inside, process_handler
from lgov_langchain.runs import FRAMEWORK, agent_name, is_pause, running_config
from lgov_langchain.tool_inputs import ToolInput, ValidatedInput, node_input, validated_input

if TYPE_CHECKING:
    from types import CoroutineType

    from langchain_core.tools import BaseTool
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan


#: The argument of a tool that takes one string.
_SINGLE = "input"


def wrap_run(run: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseTool.run`` or ``arun`` with an evaluation before and after."""

    def steps(tool: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Flow[Any]:
        tool_input = validated_input(tool, tool_input, kwargs.get("tool_call_id"))
        call = _uncovered_call(tool, tool_input, args, kwargs)
        if call is None:
            return (yield from wait(foreign(run, tool, tool_input, *args, **kwargs)))

        def go(arguments: Mapping[str, Any]) -> Any:
            return run(tool, call.input_with(arguments), *args, **kwargs)

        with call.recorded():
            governed = RepeatableToolCall(call.governor, call.action, call.validated, kwargs.get("config"))
            result = yield from tool_flow(governed, go, result_reading, is_pause=is_pause)
        return answer(result, tool.name, call.action.call_id)

    return flow_method(run, steps)


@dataclass(frozen=True, slots=True)
class _UncoveredCall:
    """A tool call that is to be evaluated here. ``outer`` is the evaluated call that it runs inside of, if any."""

    governor: Governor
    action: Action
    tool_input: Any
    outer: CoveredCall | None
    agent: LiveSpan | None

    @property
    def validated(self) -> ToolInput | None:
        """The arguments as the tool's schema yields them; None for a tool that takes one string."""
        return self.tool_input.validated if isinstance(self.tool_input, ValidatedInput) else None

    def input_with(self, arguments: Mapping[str, Any]) -> Any:
        """The input for the tool such that its arguments are ``arguments``."""
        return arguments[_SINGLE] if self.validated is None else ValidatedInput(self.validated)

    @contextmanager
    def recorded(self) -> Generator[None]:
        """The inside of the agent. The block records the outcome, so the outer evaluation of this call must not."""
        try:
            with inside(self.agent):
                yield
        except BaseException as error:
            if not is_pause(error):
                self._set_recorded()
            raise
        self._set_recorded()

    def _set_recorded(self) -> None:
        if self.outer is not None and self.outer.call_id == self.action.call_id:
            self.outer.recorded = True


def _uncovered_call(tool: BaseTool, tool_input: Any, args: Any, options: Mapping[str, Any]) -> _UncoveredCall | None:
    """The call if it is to be evaluated here, or None if it was evaluated before, or no governor is instrumented."""
    governor = INSTRUMENTOR.governor
    if governor is None:
        return None
    call_id, config, outer = options.get("tool_call_id"), options.get("config"), covered_call()
    validated = isinstance(tool_input, ValidatedInput)
    arguments = tool_input.validated.arguments if validated else {_SINGLE: tool_input}
    if outer is not None and outer.covers(governor, tool.name, arguments, call_id):
        outer.recorded = False  # an outcome may be recorded for another form of it, but not for this one
        return None
    action = Action(
        Point.PRE_TOOL_CALL,
        name=tool.name,
        kind=kind_of(tool.name, tool),
        arguments=arguments,
        agent=agent_name(config or {}) or agent_name(),
        framework=FRAMEWORK,
        call_id=call_id,
        native=tool,
    )
    callbacks = args[3] if len(args) > 3 else options.get("callbacks")
    return _UncoveredCall(governor, action, tool_input, outer, agent_span(governor, config, callbacks))


@dataclass(slots=True)
class _Executions:
    """The memory of a call that LangGraph has executed: what was permitted, by what was judged.

    ``policies`` is the digest of the policies that did. ``execution`` is the run of the node that executed it last, and
    ``is_over``: there it returned, and so a further call of the same id in that run is another one. ``answers`` is how many
    answers to questions of ours the task has got, before those to the tool's own.
    """

    operation_id: str
    policies: str
    permitted: dict[str, Decision]
    execution: object
    answers: int
    is_over: bool = False
    is_paused: bool = False


class RepeatableToolCall(GovernedToolCall):
    """A tool call that LangGraph may execute again: when a person has answered, or after an error.

    The same call is the same id, in the same task of the same thread, and its permission covers the same tool and arguments:
    then no policy is asked again, so that it counts and costs once, and an approval covers it. It is on record all the same.
    A call with the id of another, or of which the last execution returned in this very run of the node, is judged anew.

    With ``carries`` LangGraph carries the question of an approval (``interrupt``): the call is alone in its task, so that
    nothing else is executed again when it is resumed. ``by`` is who resumes it, where LangGraph knows that.
    """

    def __init__(
        self,
        governor: Governor,
        action: Action,
        validated: ToolInput | None,
        config: Mapping[str, Any] | None,
        *,
        carries: bool = False,
        by: str | None = None,
    ) -> None:
        config = config or running_config()
        task = (config.get("metadata") or {}).get("langgraph_checkpoint_ns")
        thread = (config.get("configurable") or {}).get("thread_id")
        is_repeatable = bool(task and action.call_id) and not governor.observe_only
        self._key = (str(thread), str(task), str(action.call_id)) if is_repeatable else None
        self._execution: object = getattr(config.get("callbacks"), "parent_run_id", None)
        before: _Executions | None = None if self._key is None else governor.executed_calls.pop(self._key)
        if before is not None and (
            before.policies != governor.policy_digest or (before.is_over and before.execution == self._execution)
        ):
            before = None
        self._before, self._permits, self._answers = before, dict[str, Decision](), 0
        self._by = by
        outer = covered_call()  # of which the call is a part, as that of an agent that is a tool
        carries &= outer is None or outer.action is None or CARRIED in outer.action.context
        if carries and self._key is not None and is_resumable(config):
            action = action.changed(context={**action.context, CARRIED: " ".join(self._key)})
        super().__init__(governor, action, validated=validated)

    def _ask(self) -> Flow[Decision]:
        action, before, judged = self.action, self._before, None
        with suppress(NotCanonical, RecursionError):  # of which nobody can say whether they are the same
            if self._key is not None:
                judged = fingerprint([action.kind, action.name, action.agent, action.arguments])
        permitted = None if before is None or judged is None else before.permitted.get(judged)
        if before is None or permitted is None:
            decision = yield from self._ask_person((yield from super()._ask()))
        else:
            while self._answers < before.answers:  # LangGraph counts them: the next is the tool's
                yield foreign(interrupt, None)
                self._answers += 1
            self.action = self.covered.action = action.changed(operation_id=before.operation_id)
            rule, why = (
                ("resumed", "The framework resumes") if before.is_paused else ("repeated", "The framework repeats")
            )
            parts = permitted.parts or (permitted,)
            again = replace(
                permitted, policy="lgov", rule=rule, reason=f"{why} what was permitted before.", parts=parts
            )
            decision = self.governor.take(self.action, again)
        if judged is not None and not decision.blocks:
            self._permits[judged] = permitted or decision
        return decision

    def _ask_person(self, decision: Decision) -> Flow[Decision]:
        """The decision once the questions that it waits for are answered. The run pauses at one that is not."""
        problem = ""
        while (question := open_question(decision)) is not None:
            try:
                answer = yield foreign(interrupt, {**question.as_json(), **({"problem": problem} if problem else {})})
            except BaseException as error:
                if is_pause(error):
                    self.governor.record(self.paused(decision))
                raise
            self._answers += 1
            if self._by and isinstance(answer, Mapping):
                answer = {**answer, "by": self._by}
            problem = question.take(answer, "the resumed run (langchain)")
            decision = yield from super()._ask()
        return decision

    def _keep(self, **how: bool) -> None:
        """Remembers the call, unless what runs is another one by now."""
        operation = self.action.operation_id
        if self._key is not None and operation is not None and self._permits and self.covered.refused is None:
            kept = _Executions(
                operation, self.governor.policy_digest, self._permits, self._execution, self._answers, **how
            )
            self.governor.executed_calls.put(self._key, kept)

    def paused(self, decision: Decision) -> ToolOutcome:
        """As there; the call may be executed again."""
        self._keep(is_paused=True)
        return super().paused(decision)

    def raised(self, decision: Decision, error: BaseException) -> ToolOutcome:
        """As there; the call may be executed again."""
        self._keep()
        return super().raised(decision, error)

    def returned(self, decision: Decision, reading: ToolReading) -> ToolOutcome:
        """As there; the call may be executed again where the whole node is."""
        self._keep(is_over=True)
        return super().returned(decision, reading)


#: How the installed LangGraph begins its answer to a call whose arguments do not fit.
_INVALID_ARGUMENTS = TOOL_INVOCATION_ERROR_TEMPLATE.partition("{")[0]

Handler = Callable[["ToolCallRequest"], Any]
AsyncHandler = Callable[["ToolCallRequest"], Awaitable[Any]]


class GovernedToolCalls:
    """The two wrappers that a ``ToolNode`` takes, for one governor. Any number of nodes, threads and tasks may share it."""

    #: Whether each call is a task of its own: LangGraph executes all of a task again when it resumes it.
    has_own_tasks = False

    def __init__(self, governor: Governor) -> None:
        self.governor = governor

    def wrap_tool_call(self, request: ToolCallRequest, handler: Handler) -> ToolMessage | Command[Any]:
        """Evaluates the call, runs it if it may run, records the outcome and evaluates the result."""
        return run_flow(self._steps(request, handler, run_flow))

    def awrap_tool_call(
        self, request: ToolCallRequest, handler: AsyncHandler
    ) -> CoroutineType[Any, Any, ToolMessage | Command[Any]]:
        """As `wrap_tool_call`, for asynchronous agents. Not a coroutine function, as the hooks for model calls."""
        return arun_flow(self._steps(request, handler, arun_flow))

    def _steps(
        self, request: ToolCallRequest, handler: Any, run: Callable[[Flow[Any]], Any]
    ) -> Flow[ToolMessage | Command[Any]]:
        def go(arguments: Mapping[str, Any]) -> Any:
            return run(_run_flow(handler, request, arguments))

        with inside(agent_span(self.governor, request.runtime.config)):
            validated, reading = node_input(request), partial(_reading, request)
            call = RepeatableToolCall(
                self.governor,
                _tool_action(request, validated),
                validated,
                request.runtime.config,
                carries=self.has_own_tasks or _is_alone(request),
                by=resumed_by(request.runtime),
            )
            result = yield from tool_flow(call, go, reading, is_pause=is_pause)
        return answer(result, request.tool_call["name"], request.tool_call["id"] or "")


def _is_alone(request: ToolCallRequest) -> bool:
    """Returns whether the message that the node works on asks for this call alone."""
    state: Any = request.state
    messages = state if isinstance(state, list) else state.get("messages") if isinstance(state, Mapping) else None
    return bool(messages) and len(getattr(messages[-1], "tool_calls", ())) == 1


def _tool_action(request: ToolCallRequest, validated: ToolInput | None) -> Action:
    """The call as the tool will run it; as the model proposed it if there is no such tool."""
    call = request.tool_call
    return Action(
        Point.PRE_TOOL_CALL,
        name=call["name"],
        kind=kind_of(call["name"], request.tool),
        arguments=dict(call["args"]) if validated is None else validated.arguments,
        agent=agent_name(getattr(request.runtime, "config", None)),
        framework=FRAMEWORK,
        call_id=call["id"],
        native=request,
    )


def _run_flow(handler: Callable[..., Any], request: ToolCallRequest, arguments: Mapping[str, Any]) -> Flow[Any]:
    expect_call_below(request.runtime.config)
    call = request.tool_call
    covered = covered_call()
    judged = covered.validated.judged if covered is not None and covered.validated is not None else call["args"]
    if arguments != judged:
        request = request.override(tool_call={**call, "args": dict(arguments)})
    try:
        return (yield from wait(foreign(handler, request)))
    except DeniedToolError as denied:  # it was changed on the way, and this node makes no messages of errors
        return denial_message(denied.message, call["name"], call["id"] or "")


def _reading(request: ToolCallRequest, result: Any) -> ToolReading:
    reading = result_reading(result)
    if reading.status != "ok" and request.tool is None:
        reading.status = "unknown_tool"
    elif reading.status != "ok" and reading.text.startswith(_INVALID_ARGUMENTS):
        reading.status = "invalid_args"
    return reading


# ---------------------------------------------------------------------- nodes of hand-made graphs


def wrap_tool_node(governor: Governor, tools: ToolNode | Sequence[Any], **options: Any) -> ToolNode:
    """A ``ToolNode`` for hand-made graphs, all of whose calls are governed by ``governor``::

        graph.add_node("tools", wrap_tool_node(governor, [search, delete_file]))

    ``tools`` are the tools themselves (``options`` then go to ``ToolNode``), or a ``ToolNode``, from which a governed one
    like it is made; wrappers that it has run after the evaluation of the call. A denied call does not run and the model
    reads the denial as the tool's error. A decision that says abort raises `PolicyDenied`, which a node with
    ``handle_tool_errors=True`` makes an error message of. Raises `PolicyError` for a subclass of ``ToolNode``. Fails closed.
    """
    process_handler()
    if isinstance(tools, ToolNode):
        if type(tools) is not ToolNode or options:
            raise PolicyError(
                f"cannot make a governed node from a {type(tools).__name__} with {len(options)} options",
                hint="give wrap_tool_node the tools and the options, or ToolNode's own wrap_tool_call=",
            )
        tags = None if tools.tags is None else list(tools.tags)
        options = {"name": tools.name or "tools", "tags": tags, **node_options(tools)}
        tools = list(tools.tools_by_name.values())
    inner, ainner = options.pop("wrap_tool_call", None), options.pop("awrap_tool_call", None)
    if "handle_tool_errors" in options and inner is None and ainner is None:
        options["handle_tool_errors"] = _for_its_own_types(options["handle_tool_errors"])
    return ToolNode(tools, **_wrappers(GovernedToolCalls(governor), inner, ainner), **options)


def _for_its_own_types(handled: Any) -> Any:
    """The ``handle_tool_errors`` of a node without a wrapper, for a node with one.

    A node with a wrapper calls it for every type of error that comes out of the wrapper: those that it was not made for
    have to be raised, as they are without a wrapper.
    """
    if isinstance(handled, (bool, str)):
        return handled
    names_types = isinstance(handled, (type, tuple))
    types: Any = handled if names_types else handled_error_types(handled)
    if types == (Exception,):
        return handled

    def handle(error: Exception) -> str:
        if not isinstance(error, types):
            raise error
        return TOOL_CALL_ERROR_TEMPLATE.format(error=repr(error)) if names_types else handled(error)

    return handle


def _wrappers(governed: GovernedToolCalls, inner: Any, ainner: Any) -> dict[str, Any]:
    """Our two wrappers around those that a node has. A node with only a synchronous one uses that in both ways."""
    if inner is None and ainner is None:
        return {"wrap_tool_call": governed.wrap_tool_call, "awrap_tool_call": governed.awrap_tool_call}

    def wrap(request: ToolCallRequest, handler: Handler) -> Any:
        return governed.wrap_tool_call(request, partial(_run_wrapped, inner, handler) if inner else handler)

    async def awrap(request: ToolCallRequest, handler: AsyncHandler) -> Any:
        return await governed.awrap_tool_call(request, partial(_run_wrapped, ainner, handler))

    # Without an asynchronous wrapper of its own the node runs the synchronous one around the synchronous tool; so do we.
    return {"wrap_tool_call": wrap, "awrap_tool_call": None if ainner is None else awrap}


def _run_wrapped(wrapper: Callable[..., Any], handler: Callable[..., Any], request: ToolCallRequest) -> Any:
    return wrapper(request, handler)
