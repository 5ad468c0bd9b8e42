"""The agent run that the running code belongs to, the spans of the agents in it, and the arguments of
function tools.
"""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agents import FunctionTool, RunHooks

from lgov_core.instrumentation import CARRIED, Flow, Governor, fingerprint, open_question, semconv
from lgov_core.instrumentation.conversation_memory import MessageDecisionCache, TurnMemory
from lgov_core.instrumentation.live_span import LiveSpan, current_span
from lgov_core.instrumentation.tool_arguments import ToolArguments, Unreadable, validate_by_name
from lgov_core.instrumentation.tool_call import GovernedToolCall
from lgov_core.scope import inherited
from lgov_core.types import Action, Decision, Effect, Kind, Point, ToolOutcome
from lgov_core.wire.turns import JSON, read_arguments
from lgov_openai_agents import items
from lgov_openai_agents._internals import function_schema_of, kind_of, paused_agent, prepared_arguments
from lgov_openai_agents.items import arguments_of, arguments_text

_LOG = logging.getLogger("lgov.approvals")
#: Who answers where a paused run was resumed: the SDK does not say.
RESUMED = "the resumed run (openai-agents)"


class RunMemory:
    """The decisions on users' messages, and the answers to calls that the SDK never saw.

    A session gives back what users said in its first form; a conversation that the server keeps cannot go on before each
    call in it has an answer. One for each `LgovRunner` and each instrumented process. Callable from any thread or task.
    """

    def __init__(self) -> None:
        self.decisions = MessageDecisionCache()
        self.conversations: TurnMemory[Any] = TurnMemory()

    def with_decisions(self, input_items: Sequence[Any]) -> Sequence[Any]:
        """``given`` as a model may read it; the same object where nothing is replaced."""
        instead = self.decisions.instead_of(
            lambda: [(mapping["role"], mapping["content"]) for mapping in map(items.as_mapping, input_items)]
        )
        if not instead:
            return input_items
        return [
            items.with_text(item, instead[position].text) if position in instead else item
            for position, item in enumerate(input_items)
        ]


class SdkRun:
    """One run of an agent and those it hands over to; made for each run, never shared between two.

    ``agent`` is the name of the agent that acts now, ``span`` its span: attributes and not context variables, because
    the SDK calls hooks in tasks of their own. ``memory`` outlives the run. ``input_evaluated`` says that the user's words
    have been evaluated, ``history_evaluated`` that those before them have. ``said`` are the user's texts that the run began
    with: in the user's role, a hand-off can only add what an agent wrote. ``turns`` holds what was denied inside a model
    call. ``not_started`` says that `LgovRunner` opened the run and
    has still to call the SDK for it. By the names of calls (`call_name`), ``judged`` are those that were judged before they
    run, and ``answers`` what the paused run that goes on has been told about those it was interrupted by.
    """

    def __init__(
        self, governor: Governor, agent: Any, outer: SdkRun | None, memory: RunMemory, session_id: str | None = None
    ) -> None:
        self.governor = governor
        self.outer = outer
        self.agent = agent_name(agent)
        self.root = agent_span(governor, self.agent, session_id=session_id)
        self.span = self.root
        self.memory = memory
        self.turns: TurnMemory[Any] = TurnMemory()
        self.input_evaluated = False
        self.said: list[str] = []
        self.history_evaluated = False
        self.not_started = False
        self.judged: dict[str, CarriedToolCall] = {}
        self.answers: dict[str, Mapping[str, str]] = {}
        self._first = self.agent

    @property
    def nested(self) -> bool:
        """True where the agent works for another one, so that its input is not the user's."""
        return self.outer is not None

    def has_judged(self, call: str) -> bool:
        """Returns whether the call of this name was judged before it runs, in this run or in that of an agent around it."""
        return call in self.judged or (self.outer is not None and self.outer.has_judged(call))

    def take_judged(self, call: str) -> CarriedToolCall | None:
        """The call of this name that was judged before it runs, for it to run; None where it was not, or ran."""
        judged = self.judged.pop(call, None)
        return self.outer.take_judged(call) if judged is None and self.outer is not None else judged

    def enter(self, agent: Any) -> None:
        """Notes that ``agent`` acts from now on; one that was handed over to gets its own span."""
        name = agent_name(agent)
        if name == self.agent:
            return
        if self.span is not self.root:
            self.span.end()
        self.agent = name
        self.span = self.root if name == self._first else agent_span(self.governor, name, parent=self.root)

    def end(self, error: BaseException | str | None = None) -> None:
        """Ends the run's spans, and what was judged and never called."""
        for call in self.judged.values():
            call.leave()
        self.span.end(error)
        self.root.end(error)


def agent_name(agent: Any) -> str | None:
    """The agent's name, or None if it has none."""
    name = getattr(agent, "name", None)
    return name if isinstance(name, str) else None


def agent_span(
    governor: Governor, name: str | None, parent: LiveSpan | None = None, session_id: str | None = None
) -> LiveSpan:
    """The span of an agent of this name, which begins now. ``session_id`` is that of the SDK's session, if it has one."""
    attributes = {semconv.AGENT_NAME: name, semconv.FRAMEWORK: items.FRAMEWORK, semconv.CONVERSATION_ID: session_id}
    return LiveSpan(governor, semconv.INVOKE_AGENT, name or "", attributes, parent=parent)


class CarriedToolCall(GovernedToolCall):
    """A call about which the SDK carries the question of an approval, under ``name``.

    It is judged once: when the SDK asks whether it needs an approval, or when its paused run goes on, which may have an
    answer for it.
    """

    def __init__(self, governor: Governor, action: Action, validated: FunctionArguments, name: str) -> None:
        run = current_run(governor)
        self.validated, self._answer = validated, None if run is None else run.answers.pop(name, None)
        self._judged: Decision | None = None
        action = action.changed(context={**action.context, CARRIED: name})
        super().__init__(governor, action, parent_in(run), validated)

    def judge_flow(self) -> Flow[Decision]:
        """As there, the first time."""
        if self._judged is None:
            self._judged = yield from super().judge_flow()
        return self._judged

    def _ask(self) -> Flow[Decision]:
        decision = yield from super()._ask()
        if (answer := self._answer) is None:
            return decision
        problem, is_rejected = "", answer["answer"] == "reject"
        if (question := open_question(decision)) is not None:
            problem = answer["late"] or question.take({**answer, "request_id": question.request.request_id}, RESUMED)
            decision = yield from super()._ask()
        if is_rejected and decision.effect is not Effect.DENY:  # the SDK tells the model, whoever may answer
            if (question := open_question(decision)) is not None:
                question.withdraw(self.action.context[CARRIED])
            reason = f"{RESUMED} rejected this call{answer['reason'] and ': '}{answer['reason']}"
            return self.governor.take(self.action, Decision(Effect.DENY, "lgov", "rejected-by-program", reason))
        if problem and not is_rejected:
            _LOG.warning("lgov: that the run was resumed does not approve %s: %s", self.action.name, problem)
        return decision

    def denied(self, decision: Decision) -> ToolOutcome:
        """As there; a call that the SDK asks about is paused."""
        return self.paused(decision) if self.is_asked(decision) else super().denied(decision)

    def is_asked(self, decision: Decision) -> bool:
        """Returns whether the SDK has to ask a person."""
        return self._answer is None and open_question(decision) is not None

    def leave(self) -> None:
        """Ends the call, which was permitted and does not run."""
        if self._judged is not None and not self._judged.blocks:
            self.governor.record(self.paused(self._judged))


def call_name(call_id: str | None, tool: str | None, arguments: Any) -> str:
    """The name of a call that is the same when its run is resumed; empty for arguments that are not plain JSON."""
    try:
        return fingerprint([call_id, tool, json.loads(arguments) if isinstance(arguments, str) else arguments])
    except (ValueError, RecursionError):
        return ""


_RUN: contextvars.ContextVar[SdkRun | None] = contextvars.ContextVar("lgov_agents_run", default=None)


def current_run(governor: Governor) -> SdkRun | None:
    """The run that ``governor`` governs and the running code belongs to, or None."""
    run = _RUN.get()
    return run if run is not None and run.governor is governor else None


def outer_run(governor: Governor) -> SdkRun | None:
    """The run that a run which begins here is in: the current one, or that in which the running thread was started."""
    run = inherited(_RUN)
    return run if run is not None and run.governor is governor else None


def tool_action(
    governor: Governor,
    name: str,
    kind: Kind,
    arguments: Mapping[str, Any],
    native: Any,
    *,
    call_id: str | None = None,
    agent: Any = None,
) -> Action:
    """A tool call before it runs, by ``agent`` or else by the one that acts in the current run of ``governor``."""
    run = current_run(governor)
    return Action(
        Point.PRE_TOOL_CALL,
        name=name,
        kind=kind,
        arguments=arguments,
        agent=agent_name(agent) or (run.agent if run is not None else None),
        framework=items.FRAMEWORK,
        call_id=call_id,
        native=native,
    )


def parent_in(run: SdkRun | None) -> LiveSpan | None:
    """The span of the agent that acts in ``run``, as a parent; None where the current span is the parent already."""
    return run.span if run is not None and run.span is not run.root and current_span() is run.root else None


@contextmanager
def entering(run: SdkRun) -> Generator[SdkRun]:
    """Makes ``run`` the current one inside the block, and in the tasks that are started there."""
    token = _RUN.set(run)
    try:
        with run.root.active():
            yield run
    finally:
        _RUN.reset(token)


def new_run(governor: Governor, agent: Any, input: Any, memory: RunMemory, session_id: str | None) -> SdkRun:
    """The run of ``agent`` that is about to begin, on ``input``; that of a paused run was evaluated before."""
    run = SdkRun(governor, paused_agent(input) or agent, outer_run(governor), memory, session_id)
    run.input_evaluated = not isinstance(input, (str, Sequence))
    return run


class TrackingHooks(RunHooks[Any]):
    """Notes who acts in ``run`` and passes everything on to the program's own hooks."""

    def __init__(self, run: SdkRun, inner: Any) -> None:
        self._run = run
        self._inner = inner if inner is not None else RunHooks()
        for name in ("on_agent_end", "on_llm_end", "on_handoff", "on_tool_start", "on_tool_end"):
            setattr(self, name, getattr(self._inner, name))

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        """The agent that acts changes."""
        self._run.enter(agent)
        await self._inner.on_agent_start(context, agent)

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]) -> None:
        """A resumed run has no start of its agent."""
        self._run.enter(agent)
        await self._inner.on_llm_start(context, agent, system_prompt, input_items)


class FunctionArguments(ToolArguments):
    """The arguments text ``raw`` of one call of ``tool``, as the SDK or, for a tool of its own making, the program reads it."""

    def __init__(self, tool: FunctionTool, raw: str, tool_name: str) -> None:
        self.text, self._name, self._tool = raw, tool_name, tool
        self._made = function_schema_of(tool)
        super().__init__(arguments_of(raw))

    @property
    def schema(self) -> Any:
        """See `ToolArguments.schema`."""
        return None if self._made is None else self._made[0].params_pydantic_model

    def validate(self, raw: JSON, *, by_name: bool) -> tuple[Any, Mapping[str, Any]]:
        """See `ToolArguments.validate`."""
        if by_name:
            self.text = arguments_text(raw, self.text)
        if read_arguments(self.text) is None:
            raise Unreadable
        if self._made is None:
            self._check_closed(raw)
            return None, raw
        schema, prepare = self._made
        if by_name:
            native = prepared_arguments(schema, prepare, self.text, validate_by_name(self.schema, raw))
        else:
            native = prepare(self.text, self._name)
        return native, _by_parameter(schema, native)

    def _check_closed(self, raw: JSON) -> None:
        """Raises `Unreadable` for names that the schema does not have: who reads the text then may take them for others."""
        schema = self._tool.params_json_schema
        more = schema.keys() & {"additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"}
        is_closed = schema.get("additionalProperties") is False or not more
        unknown = raw.keys() - schema.get("properties", raw).keys()
        if is_closed and unknown and kind_of(self._tool) == "function":
            raise Unreadable(f"the tool has no argument {' and no argument '.join(sorted(unknown))}")


def _by_parameter(schema: Any, prepared: Any) -> JSON:
    """The values that the function gets, by the names of its parameters."""
    args, named = list(prepared.args), dict(prepared.kwargs)
    values: JSON = {}
    for number, (name, parameter) in enumerate(schema.signature.parameters.items()):
        if number == 0 and schema.takes_context:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            values[name], args = args, []
        elif parameter.kind is parameter.VAR_KEYWORD:
            values[name], named = named, {}
        elif name in named and (parameter.kind is parameter.KEYWORD_ONLY or not args):
            values[name] = named.pop(name)
        else:
            values[name] = args.pop(0)
    return values
