"""The attribute names of other instrumentations beside lgov's: a table, and nothing else.

Sources: OpenInference's ``openinference.semconv.trace``, OpenLLMetry's ``opentelemetry.semconv_ai``, ``agentops.semconv``,
``agentlightning.semconv``, and the earlier names of OpenTelemetry's own ``gen_ai`` conventions, each checked against what
the instrumentation really sends (tests/otlp/samples).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lgov_core.trace import semconv


@dataclass(frozen=True, slots=True)
class AttributeSource:
    """Where the value of ``ours`` may be: in ``theirs``, or in the JSON text there at ``path`` (keys with dots).

    ``form`` names how it is read (`canonical.FORMS`). ``choice`` translates values (in lower case); what it lacks is
    not read. ``when`` limits the row to spans that have an attribute of that value. The
    first row of a name that gives a value counts.
    """

    ours: str
    theirs: str
    path: str = ""
    form: str = "as it is"
    choice: Mapping[str, str] = field(default_factory=dict[str, str])
    when: tuple[str, str] | None = None


_KINDS: Final = {
    "llm": semconv.CHAT,
    "chat": semconv.CHAT,
    "completion": semconv.TEXT_COMPLETION,
    "embedding": semconv.EMBEDDINGS,
    "embeddings": semconv.EMBEDDINGS,
    "tool": semconv.EXECUTE_TOOL,
    "agent": semconv.INVOKE_AGENT,
}
_OPENINFERENCE: Final = "openinference.span.kind"
_OI_TOOL: Final = (_OPENINFERENCE, "tool")
_OI_LLM: Final = (_OPENINFERENCE, "llm")
_TRACELOOP_TOOL: Final = ("traceloop.span.kind", "tool")
_TRACELOOP_AGENT: Final = ("traceloop.span.kind", "agent")
_AGENTOPS_TOOL: Final = ("agentops.span.kind", "tool")
_AGENTOPS_AGENT: Final = ("agentops.span.kind", "agent")
#: What agent-lightning's tracer of functions puts before the fields of a reply.
_AGL_OUT: Final = "agentlightning.operation.output"
#: Where LangChain's reply is in the text that OpenInference writes of it.
_LC_REPLY: Final = "generations.0.0.message.kwargs.response_metadata"

ROWS: Final = (
    # Which operation it is.
    AttributeSource(semconv.OPERATION, _OPENINFERENCE, choice=_KINDS),
    AttributeSource(semconv.OPERATION, "traceloop.span.kind", choice=_KINDS),
    AttributeSource(semconv.OPERATION, "agentops.span.kind", choice=_KINDS),
    AttributeSource(semconv.OPERATION, "llm.request.type", choice=_KINDS),
    AttributeSource(semconv.OPERATION, "gen_ai.request.type", choice=_KINDS),
    # The model, and how it was asked.
    AttributeSource(semconv.PROVIDER, "gen_ai.system", form="lower case"),
    AttributeSource(semconv.PROVIDER, "llm.provider", form="lower case"),
    AttributeSource(semconv.PROVIDER, "llm.system", form="lower case"),
    AttributeSource(semconv.REQUEST_MODEL, "llm.request.model_name"),
    AttributeSource(semconv.REQUEST_MODEL, "llm.model_name"),
    AttributeSource(semconv.REQUEST_MODEL, "llm.request.model"),
    AttributeSource(semconv.REQUEST_MODEL, "embedding.model_name"),
    AttributeSource(semconv.RESPONSE_MODEL, "llm.response.model_name"),
    AttributeSource(semconv.RESPONSE_MODEL, "llm.response.model"),
    AttributeSource(semconv.RESPONSE_MODEL, "output.value", "model", when=_OI_LLM),
    AttributeSource(semconv.REQUEST_TEMPERATURE, "llm.temperature", form="number"),
    AttributeSource(semconv.REQUEST_TEMPERATURE, "llm.invocation_parameters", "temperature", form="number"),
    AttributeSource(semconv.REQUEST_TOP_P, "llm.top_p", form="number"),
    AttributeSource(semconv.REQUEST_TOP_P, "llm.invocation_parameters", "top_p", form="number"),
    AttributeSource(semconv.REQUEST_MAX_TOKENS, "gen_ai.request.max_completion_tokens", form="integer"),
    AttributeSource(semconv.REQUEST_MAX_TOKENS, "llm.request.max_tokens", form="integer"),
    AttributeSource(semconv.REQUEST_MAX_TOKENS, "llm.invocation_parameters", "max_completion_tokens", form="integer"),
    AttributeSource(semconv.REQUEST_MAX_TOKENS, "llm.invocation_parameters", "max_tokens", form="integer"),
    # The reply. Its id is what everything is joined on.
    AttributeSource(semconv.RESPONSE_ID, "gen_ai.completion.0.id"),
    AttributeSource(semconv.RESPONSE_ID, "llm.response.id"),
    AttributeSource(semconv.RESPONSE_ID, f"{_AGL_OUT}.id"),
    AttributeSource(semconv.RESPONSE_ID, "output.value", "id", when=_OI_LLM),
    AttributeSource(semconv.RESPONSE_ID, "output.value", f"{_LC_REPLY}.id", when=_OI_LLM),
    AttributeSource(semconv.RESPONSE_ID, "output.value", "llm_output.id", when=_OI_LLM),
    AttributeSource(semconv.FINISH_REASONS, "gen_ai.response.finish_reason", form="list"),
    AttributeSource(semconv.FINISH_REASONS, "gen_ai.response.stop_reason", form="list"),
    AttributeSource(semconv.FINISH_REASONS, "llm.response.finish_reason", form="list"),
    AttributeSource(semconv.FINISH_REASONS, "llm.finish_reason", form="list"),
    AttributeSource(semconv.FINISH_REASONS, "gen_ai.completion.0.finish_reason", form="list"),
    AttributeSource(semconv.FINISH_REASONS, f"{_AGL_OUT}.choices.0.finish_reason", form="list"),
    AttributeSource(semconv.INPUT_TOKENS, "gen_ai.usage.prompt_tokens", form="integer"),
    AttributeSource(semconv.INPUT_TOKENS, "llm.token_count.prompt", form="integer"),
    AttributeSource(semconv.INPUT_TOKENS, "llm.usage.prompt_tokens", form="integer"),
    AttributeSource(semconv.INPUT_TOKENS, f"{_AGL_OUT}.usage.prompt_tokens", form="integer"),
    AttributeSource(semconv.OUTPUT_TOKENS, "gen_ai.usage.completion_tokens", form="integer"),
    AttributeSource(semconv.OUTPUT_TOKENS, "llm.token_count.completion", form="integer"),
    AttributeSource(semconv.OUTPUT_TOKENS, "llm.usage.completion_tokens", form="integer"),
    AttributeSource(semconv.OUTPUT_TOKENS, f"{_AGL_OUT}.usage.completion_tokens", form="integer"),
    # The exact tokens, where an instrumentation kept them.
    AttributeSource(semconv.PROMPT_TOKEN_IDS, "prompt_token_ids", form="token ids"),
    AttributeSource(semconv.PROMPT_TOKEN_IDS, f"{_AGL_OUT}.prompt_token_ids", form="token ids"),
    AttributeSource(semconv.PROMPT_TOKEN_IDS, "llm.hosted_vllm.prompt_token_ids", form="token ids"),
    AttributeSource(semconv.PROMPT_TOKEN_IDS, "output.value", "prompt_token_ids", form="token ids", when=_OI_LLM),
    AttributeSource(semconv.RESPONSE_TOKEN_IDS, "response_token_ids", form="token ids"),
    AttributeSource(semconv.RESPONSE_TOKEN_IDS, f"{_AGL_OUT}.response_token_ids.0", form="token ids"),
    AttributeSource(semconv.RESPONSE_TOKEN_IDS, f"{_AGL_OUT}.choices.0.token_ids", form="token ids"),
    AttributeSource(
        semconv.RESPONSE_TOKEN_IDS, f"{_AGL_OUT}.choices.0.provider_specific_fields.token_ids", form="token ids"
    ),
    AttributeSource(semconv.RESPONSE_TOKEN_IDS, "llm.hosted_vllm.response_token_ids", form="token ids"),
    AttributeSource(semconv.RESPONSE_TOKEN_IDS, "output.value", "choices.0.token_ids", form="token ids", when=_OI_LLM),
    AttributeSource(semconv.RESPONSE_LOGPROBS, "logprobs.content", form="logprobs"),
    AttributeSource(
        semconv.RESPONSE_LOGPROBS, "output.value", "choices.0.logprobs.content", form="logprobs", when=_OI_LLM
    ),
    # Who.
    AttributeSource(semconv.AGENT_NAME, "agent.name"),
    AttributeSource(semconv.AGENT_NAME, "operation.name", when=_AGENTOPS_AGENT),
    AttributeSource(semconv.AGENT_NAME, "agentops.entity.name", when=_AGENTOPS_AGENT),
    AttributeSource(semconv.AGENT_NAME, "traceloop.entity.name", when=_TRACELOOP_AGENT),
    AttributeSource(semconv.AGENT_NAME, "recipient_agent_type"),
    AttributeSource(semconv.AGENT_NAME, "metadata", "lc_agent_name"),
    AttributeSource(semconv.AGENT_NAME, "lc_agent_name"),
    AttributeSource(semconv.AGENT_NAME, "executor.id"),
    AttributeSource(semconv.AGENT_NAME, "graph.node.id", when=(_OPENINFERENCE, "agent")),
    AttributeSource(semconv.AGENT_ID, "agent.id"),
    AttributeSource(semconv.CONVERSATION_ID, "session.id"),
    AttributeSource(semconv.CONVERSATION_ID, "traceloop.association.properties.session_id"),
    AttributeSource(semconv.CONVERSATION_ID, "traceloop.association.properties.thread_id"),
    # A tool call.
    AttributeSource(semconv.TOOL_NAME, "tool.name"),
    AttributeSource(semconv.TOOL_NAME, "operation.name", when=_AGENTOPS_TOOL),
    AttributeSource(semconv.TOOL_NAME, "agentops.entity.name", when=_AGENTOPS_TOOL),
    AttributeSource(semconv.TOOL_NAME, "traceloop.entity.name", when=_TRACELOOP_TOOL),
    AttributeSource(semconv.TOOL_CALL_ID, "tool.call.id"),
    AttributeSource(semconv.TOOL_CALL_ID, "tool_call.id"),
    AttributeSource(semconv.TOOL_CALL_ID, "tool.id"),
    AttributeSource(semconv.TOOL_CALL_ID, "output.value", "data.tool_call_id", when=_OI_TOOL),
    AttributeSource(semconv.TOOL_CALL_ID, "output.value", "tool_call_id", when=_OI_TOOL),
    AttributeSource(semconv.TOOL_CALL_ID, "output.value", "kwargs.tool_call_id", when=_OI_TOOL),
    AttributeSource(semconv.TOOL_ARGUMENTS, "input.value", form="text", when=_OI_TOOL),
    AttributeSource(semconv.TOOL_ARGUMENTS, "agentops.tool.input", form="text"),
    AttributeSource(semconv.TOOL_ARGUMENTS, "tool.parameters", form="text", when=_AGENTOPS_TOOL),
    AttributeSource(semconv.TOOL_ARGUMENTS, "traceloop.entity.input", form="text", when=_TRACELOOP_TOOL),
    AttributeSource(semconv.TOOL_RESULT, "output.value", "data.content", form="text", when=_OI_TOOL),
    AttributeSource(semconv.TOOL_RESULT, "output.value", "kwargs.content", form="text", when=_OI_TOOL),
    AttributeSource(semconv.TOOL_RESULT, "output.value", form="text", when=_OI_TOOL),
    AttributeSource(semconv.TOOL_RESULT, "agentops.tool.output", form="text"),
    AttributeSource(semconv.TOOL_RESULT, "tool.result", form="text"),
    AttributeSource(semconv.TOOL_RESULT, "traceloop.entity.output", form="text", when=_TRACELOOP_TOOL),
    # What went wrong.
    AttributeSource(semconv.ERROR_TYPE, "exception.type"),
)

#: Messages that are spread over many attributes (``PREFIX.0.role`` and so on).
MESSAGE_FAMILIES: Final = {
    semconv.INPUT_MESSAGES: ("llm.input_messages", "gen_ai.prompt", "agentlightning.operation.input.messages"),
    semconv.OUTPUT_MESSAGES: ("llm.output_messages", "gen_ai.completion", f"{_AGL_OUT}.choices"),
}

#: Events that hold messages: the attribute that holds them as JSON text, or none where the event is one message.
MESSAGE_EVENTS: Final[Mapping[str, Mapping[str, str]]] = {
    semconv.INPUT_MESSAGES: {
        "gen_ai.client.inference.operation.details": semconv.INPUT_MESSAGES,
        "gen_ai.content.prompt": "gen_ai.prompt",
        "gen_ai.system.message": "",
        "gen_ai.user.message": "",
        "gen_ai.assistant.message": "",
        "gen_ai.tool.message": "",
    },
    semconv.OUTPUT_MESSAGES: {
        "gen_ai.client.inference.operation.details": semconv.OUTPUT_MESSAGES,
        "gen_ai.content.completion": "gen_ai.completion",
        "gen_ai.choice": "message",
    },
}

#: Rewards as agent-lightning emits them: ``PREFIX.0.name`` and ``PREFIX.0.value``, and what ``LINK.0`` points at.
REWARD_FAMILY: Final = "agentlightning.reward"
REWARD_LINK_FAMILY: Final = "agentlightning.link"
#: What a link's key means as the target of a reward.
REWARD_LINKS: Final = {
    semconv.RESPONSE_ID: semconv.RESPONSE_ID,
    f"{_AGL_OUT}.id": semconv.RESPONSE_ID,
    semconv.TOOL_CALL_ID: semconv.TOOL_CALL_ID,
}
#: Its only dimension has this name when none was given; ours is then the default one.
REWARD_DEFAULT_NAMES: Final = ("primary", "")
#: A reward of an earlier version: the attribute, where its text holds one, and the span's name where only that tells.
OLD_REWARDS: Final = (
    ("agentops.task.output", "value", ""),
    ("agentops.entity.output", "value", ""),
    ("reward", "", "agentlightning.annotation"),
)
