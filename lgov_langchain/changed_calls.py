"""Evaluates again a tool or model call that was changed after it was evaluated.

The middleware and the governed ``ToolNode`` evaluate a call where it leaves the agent. Middleware inside of them may change it
on the way: a person edits its arguments, a router takes another tool, a message is added to the prompt. LangChain reports to
its callback handlers what the tool or the model really gets. An instrumented process compares where every tool and every
model call begins (`base_tools`, `chat_models`, `InnermostMiddleware`), so there this handler does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from lgov_core.instrumentation.evaluated_call import covered_call, model_call_covered
from lgov_core.instrumentation.tool_call import own_arguments
from lgov_langchain import messages, tool_results
from lgov_langchain.callback_enforcement import enforceable, raise_denial
from lgov_langchain.current_governor import acting_governor
from lgov_langchain.sent_calls import ChangedCallDenied, current_sent_call, is_covered

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage


class ChangedCallHandler(BaseCallbackHandler):
    """Stops a call that was changed on the way and that the governor which evaluated it does not allow now."""

    run_inline = True
    raise_error = True

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A tool is about to run. Raises `DeniedToolError` if it must not, `PolicyDenied` if the decision says abort."""
        call = covered_call()
        # A tool that a tool calls begins below that tool's run, not where the evaluated call was to begin.
        if call is None or call.place != parent_run_id or call.action is None or call.governor is acting_governor():
            return
        name, call_id = (serialized or {}).get("name") or "tool", kwargs.get("tool_call_id")
        arguments = inputs if inputs is not None else {"input": input_str}
        if call.covers(call.governor, name, arguments, call_id):
            return
        action = replace(
            call.action,
            name=name,
            kind=tool_results.kind_of(name),
            arguments=own_arguments(arguments),
            call_id=call_id,
        )
        decision = enforceable(call.governor.decide(action), "arguments")
        call.changed_to(action, decision if decision.blocks else None)
        if decision.blocks:
            raise_denial(decision, name)

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """A model is about to be called. Raises `ChangedCallDenied` if it must not get these messages."""
        for one in messages:
            _evaluate_if_changed(one)


def _evaluate_if_changed(prompt: list[BaseMessage]) -> None:
    sent = current_sent_call()
    if sent is None or sent.call.governor is acting_governor():
        return
    governor = sent.call.governor
    if not model_call_covered(governor) or is_covered(governor, prompt):
        return
    mappings = messages.as_mappings(prompt)
    if mappings == messages.as_mappings(sent.messages):
        return
    decision = enforceable(governor.decide(sent.call.changed_request(mappings)), "messages")
    if decision.blocks:
        raise ChangedCallDenied(decision)


def expect_call_below(config: Mapping[str, Any]) -> None:
    """Notes below which run the evaluated tool call that the running code is inside of is going to begin."""
    if (call := covered_call()) is not None:
        call.place = getattr(config.get("callbacks"), "parent_run_id", None)
