"""Observes what LangChain does: agent runs, model calls and tool calls become spans. Alone, it also stops denied tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler

from lgov_core.errors import PolicyError
from lgov_core.instrumentation import json_text, semconv
from lgov_core.instrumentation.evaluated_call import covered_call, model_call_covered
from lgov_core.instrumentation.live_span import current_span
from lgov_core.types import Action, Point
from lgov_langchain._internals import keep_reply_ids
from lgov_langchain.callback_enforcement import CallbackEnforcement
from lgov_langchain.messages import as_mappings
from lgov_langchain.runs import FRAMEWORK, Run, RunTree, agent_in, is_pause, running_config
from lgov_langchain.tool_results import kind_of, result_reading

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import LLMResult

    from lgov_core.instrumentation import Governor
    from lgov_core.types import JSONValue


class LgovCallbackHandler(BaseCallbackHandler):
    """Shows ``governor`` a `Span` for every agent run, model call and tool call when it ends::

        agent.invoke(question, config={"callbacks": [LgovCallbackHandler(governor)]})

    It observes. Beside `LgovMiddleware`, `wrap_tool_node` or `instrument` of the same governor it adds what those do not see
    and shows no call twice. Where it stands alone it stops a denied tool all the same, as far as a callback can: the
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

    def _above(self, parent_run_id: UUID | None) -> Run | None:
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
        run = self.tree.begin(run_id, above, agent=agent)
        if agent is not None and self.governor is not None:
            self.tree.span_above(self.governor, run)

    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:
        """A runnable ended."""
        self.tree.end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A runnable raised; a pause for a person is no error."""
        self.tree.end(run_id, error=None if is_pause(error) else error)

    # ------------------------------------------------------------------ models

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A chat model is called."""
        said = (lambda: as_mappings(messages[0])) if messages else None
        self._begin_model(serialized, said, run_id, parent_run_id, metadata or {}, kwargs)

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A plain text model is called."""
        self._begin_model(
            serialized,
            lambda: [{"role": "user", "content": prompt} for prompt in prompts],
            run_id,
            parent_run_id,
            metadata or {},
            kwargs,
        )

    def _begin_model(
        self,
        serialized: Any,
        said: Callable[[], Any] | None,
        run_id: UUID,
        parent_run_id: UUID | None,
        metadata: dict[str, Any],
        kwargs: dict[str, Any],
    ) -> None:
        observer = self.observer
        if observer is None or model_call_covered(observer):
            self._begin_inside(run_id, parent_run_id)
            return
        attributes = _model_attributes(serialized, metadata, kwargs.get("invocation_params") or {})
        if said is not None and observer.capture_content:
            attributes[semconv.INPUT_MESSAGES] = json_text(said())
        run = self.tree.begin(run_id, self._above(parent_run_id))
        model = str(attributes[semconv.REQUEST_MODEL])
        self.tree.open_span(observer, run, semconv.CHAT, model, attributes)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """A model answered."""
        observer = self.observer
        content = observer is not None and observer.capture_content
        self.tree.end(run_id, lambda: _reply_attributes(response, content))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A model call failed."""
        self.tree.end(run_id, error=error)

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
        """A tool is about to run. Raises `DeniedToolError` if it must not and nobody else would have stopped it."""
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
        if self._enforcement is not None:
            span = self._enforcement.permit(run_id, action, self.tree.span_above(observer, above))
            self.tree.begin(run_id, above, inside=span)
        else:
            run = self.tree.begin(run_id, above)
            attributes = _tool_attributes(action, observer.capture_content)
            self.tree.open_span(observer, run, semconv.EXECUTE_TOOL, name, attributes)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool returned. Raises `DeniedToolError` if the model must not read the result and nobody else said so."""
        try:
            if self._enforcement is not None:
                self._enforcement.returned(run_id, output)
        finally:
            self.tree.end(run_id, lambda: _result_attributes(output))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool raised; a pause for a person is no error."""
        pause = is_pause(error)
        if (call := covered_call()) is not None and not pause:
            call.raised = error  # the framework may make a text of it
        if self._enforcement is not None:
            self._enforcement.raised(run_id, error)
        self.tree.end(run_id, error=None if pause else error)


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


def _model_attributes(serialized: Any, metadata: dict[str, Any], parameters: dict[str, Any]) -> dict[str, JSONValue]:
    named = metadata.get("ls_model_name") or parameters.get("model") or parameters.get("model_name")
    return {
        semconv.REQUEST_MODEL: named or (serialized or {}).get("name") or "unknown",
        semconv.PROVIDER: metadata.get("ls_provider"),
        semconv.AGENT_NAME: agent_in(metadata),
        semconv.FRAMEWORK: FRAMEWORK,
    }


def _tool_attributes(action: Action, content: bool) -> dict[str, JSONValue]:
    return {
        semconv.TOOL_NAME: action.name,
        semconv.TOOL_TYPE: action.kind,
        semconv.TOOL_CALL_ID: action.call_id,
        semconv.AGENT_NAME: action.agent,
        semconv.TOOL_ARGUMENTS: json_text(action.arguments) if content else None,
    }


def _result_attributes(output: Any) -> dict[str, JSONValue]:
    reading = result_reading(output)
    return {
        semconv.TOOL_RESULT: reading.text,
        semconv.ERROR_TYPE: None if reading.status == "ok" else "tool_error",
    }


def _reply_attributes(response: LLMResult, content: bool) -> dict[str, JSONValue]:
    generations: Any = response.generations[0] if response.generations else ()
    if not generations:
        return {}
    generation = generations[0]
    message = getattr(generation, "message", None)
    details = {**(generation.generation_info or {}), **getattr(message, "response_metadata", {})}
    reasons = [(one.generation_info or {}).get("finish_reason") or details.get("finish_reason") for one in generations]
    usage = getattr(message, "usage_metadata", None) or {}
    attributes: dict[str, JSONValue] = {
        semconv.RESPONSE_ID: details.get("id"),
        semconv.RESPONSE_MODEL: details.get("model_name"),
        semconv.FINISH_REASONS: [reason for reason in reasons if reason] or None,
        semconv.INPUT_TOKENS: usage.get("input_tokens"),
        semconv.OUTPUT_TOKENS: usage.get("output_tokens"),
    }
    if content:
        text = {"role": "assistant", "content": generation.text}
        said = text if message is None else as_mappings([message])[0]
        attributes[semconv.OUTPUT_MESSAGES] = json_text([said])
    return attributes
