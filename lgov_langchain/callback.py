"""Observes what LangChain does: agent runs, model calls and tool calls become spans. Enforces nothing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from lgov_core.scope import RolloutScope, current_scope
from lgov_core.trace import semconv
from lgov_core.types import Span
from lgov_langchain import actions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import LLMResult

    from lgov_core.governor import Governor


@dataclass(slots=True)
class _Run:
    """A run that has not ended. One without ``operation`` is plumbing: it only passes its parent on."""

    root: UUID
    parent_span: str | None
    operation: str | None = None
    name: str = ""
    started_at: float = field(default_factory=time.time)
    scope: RolloutScope | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


class LgovCallbackHandler(BaseCallbackHandler):
    """Shows ``governor`` a `Span` for every agent run, model call and tool call when it ends::

        agent.invoke(question, config={"callbacks": [LgovCallbackHandler(governor)]})

    Prompts, replies, arguments and results are left out unless ``capture_content`` is true. A span belongs to the
    rollout in whose scope the run began. The handler runs in the thread or task of the call it watches, holds state
    only for runs that have not ended, and may serve any number of agents at once. Whatever is still open when the
    outermost run ends is shown with ``ended_at=None``, never silently dropped. Fails open: it is not asked for
    permission.
    """

    run_inline = True
    raise_error = False

    def __init__(self, governor: Governor, *, capture_content: bool = False) -> None:
        super().__init__()
        self.governor = governor
        self.capture_content = capture_content
        self._runs: dict[UUID, _Run] = {}
        self._of_root: dict[UUID, set[UUID]] = {}
        self._lock = threading.Lock()

    @property
    def open_runs(self) -> int:
        """How many runs have begun and not ended."""
        return len(self._runs)

    # ------------------------------------------------------------------ agents and plumbing

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
        """A graph, a node or another runnable begins; the outermost one and named agents inside it become spans."""
        name = kwargs.get("name") or "agent"
        agent = actions.agent_name({"metadata": metadata})
        is_node = any(tag.startswith("graph:step:") for tag in tags or ())
        if parent_run_id is None or (agent is not None and agent == name and not is_node):
            self._begin(run_id, parent_run_id, semconv.INVOKE_AGENT, agent or name, {semconv.AGENT_NAME: agent or name})
        else:
            self._begin(run_id, parent_run_id)

    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:
        """A runnable ended."""
        self._end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A runnable raised; a pause for a person is no error."""
        self._end(run_id, error=None if actions.is_interrupt(error) else error)

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
        attributes = _model_attributes(serialized, metadata or {}, kwargs.get("invocation_params") or {})
        if self.capture_content:
            said = [actions.as_mapping(message) for message in messages[0]] if messages else []
            attributes[semconv.INPUT_MESSAGES] = actions.json_text(said)
        self._begin(run_id, parent_run_id, semconv.CHAT, str(attributes[semconv.REQUEST_MODEL]), attributes)

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
        attributes = _model_attributes(serialized, metadata or {}, kwargs.get("invocation_params") or {})
        if self.capture_content:
            said = [{"role": "user", "content": prompt} for prompt in prompts]
            attributes[semconv.INPUT_MESSAGES] = actions.json_text(said)
        self._begin(run_id, parent_run_id, semconv.CHAT, str(attributes[semconv.REQUEST_MODEL]), attributes)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """A model answered."""
        self._end(run_id, _reply_attributes(response, self.capture_content))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A model call failed."""
        self._end(run_id, error=error)

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
        """A tool begins to run; a denied call never gets here."""
        name = (serialized or {}).get("name") or "tool"
        attributes: dict[str, Any] = {semconv.TOOL_NAME: name, semconv.TOOL_TYPE: "function"}
        if (call_id := kwargs.get("tool_call_id")) is not None:
            attributes[semconv.TOOL_CALL_ID] = call_id
        if (agent := actions.agent_name({"metadata": metadata})) is not None:
            attributes[semconv.AGENT_NAME] = agent
        if self.capture_content:
            attributes[semconv.TOOL_ARGUMENTS] = actions.json_text(inputs) if inputs is not None else input_str
        self._begin(run_id, parent_run_id, semconv.EXECUTE_TOOL, name, attributes)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool returned."""
        attributes: dict[str, Any] = {}
        if any(message.status == "error" for message in actions.result_messages(output)):
            attributes[semconv.ERROR_TYPE] = "tool_error"
        if self.capture_content:
            attributes[semconv.TOOL_RESULT] = actions.result_text(output) or str(output)
        self._end(run_id, attributes)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool raised; a pause for a person is no error."""
        self._end(run_id, error=None if actions.is_interrupt(error) else error)

    # ------------------------------------------------------------------ state

    def _begin(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        operation: str | None = None,
        name: str = "",
        attributes: dict[str, Any] | None = None,
    ) -> None:
        with self._lock:
            parent = self._runs.get(parent_run_id) if parent_run_id is not None else None
            above = None if parent is None else (str(parent_run_id) if parent.operation else parent.parent_span)
            root = parent.root if parent is not None else run_id
            run = _Run(root, above, operation, name, scope=current_scope(), attributes=attributes or {})
            self._runs[run_id] = run
            self._of_root.setdefault(root, set()).add(run_id)

    def _end(self, run_id: UUID, attributes: dict[str, Any] | None = None, error: BaseException | None = None) -> None:
        ended: list[tuple[UUID, _Run, float | None]] = []
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is None:
                return
            ended.append((run_id, run, time.time()))
            siblings = self._of_root.get(run.root, set())
            siblings.discard(run_id)
            if run_id == run.root:
                left_open = [(one, self._runs.pop(one), None) for one in siblings if one in self._runs]
                ended = [*left_open, *ended]
            if run_id == run.root or not siblings:
                self._of_root.pop(run.root, None)
        run.attributes.update(attributes or {})
        if error is not None:
            run.attributes[semconv.ERROR_TYPE] = type(error).__name__
        for span_id, one, ended_at in ended:
            if one.operation is not None:
                self.governor.observe(_span(str(span_id), one, ended_at))


def _span(span_id: str, run: _Run, ended_at: float | None) -> Span:
    return Span(
        name=f"{run.operation} {run.name}",
        span_id=span_id,
        started_at=run.started_at,
        ended_at=ended_at,
        attributes={semconv.OPERATION: run.operation, **run.attributes},
        rollout_id=run.scope.rollout_id if run.scope else None,
        attempt=run.scope.attempt if run.scope else None,
        parent_id=run.parent_span,
    )


def _model_attributes(serialized: Any, metadata: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    named = metadata.get("ls_model_name") or parameters.get("model") or parameters.get("model_name")
    model = named or (serialized or {}).get("name") or "unknown"
    attributes: dict[str, Any] = {semconv.REQUEST_MODEL: model}
    if provider := metadata.get("ls_provider"):
        attributes[semconv.PROVIDER] = provider
    if (agent := actions.agent_name({"metadata": metadata})) is not None:
        attributes[semconv.AGENT_NAME] = agent
    return attributes


def _reply_attributes(response: LLMResult, capture_content: bool) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    generations: Sequence[Any] = response.generations[0] if response.generations else ()
    if not generations:
        return attributes
    generation = generations[0]
    message = getattr(generation, "message", None)
    details = {**(generation.generation_info or {}), **getattr(message, "response_metadata", {})}
    for key, attribute in (("id", semconv.RESPONSE_ID), ("model_name", semconv.RESPONSE_MODEL)):
        if details.get(key):
            attributes[attribute] = details[key]
    reasons = [(one.generation_info or {}).get("finish_reason") or details.get("finish_reason") for one in generations]
    if any(reasons):
        attributes[semconv.FINISH_REASONS] = [reason for reason in reasons if reason]
    if usage := getattr(message, "usage_metadata", None):
        attributes[semconv.INPUT_TOKENS] = usage["input_tokens"]
        attributes[semconv.OUTPUT_TOKENS] = usage["output_tokens"]
    if capture_content:
        plain = {"role": "assistant", "content": generation.text}
        said = plain if message is None else actions.as_mapping(message)
        attributes[semconv.OUTPUT_MESSAGES] = actions.json_text([said])
    return attributes
