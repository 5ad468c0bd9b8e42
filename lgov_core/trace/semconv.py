"""Names of spans and attributes, pinned.

The ``gen_ai.*`` names are those of OpenTelemetry's semantic conventions for generative AI, as its own registry
(``semantic-conventions-genai``) has them; the Python package ``opentelemetry-semantic-conventions`` marks its copies as
deprecated and no package carries the new registry, so they are written down here and nowhere else in lgov. Names under
``lgov.*`` have no convention yet: exact tokens, policy decisions, rewards, rollouts.

Values: ids and names are strings; token counts, attempts and weights versions are integers; messages, arguments and
results are JSON text; finish reasons are a list of strings; token ids and logprobs are lists of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lgov_core.types import JSONValue

# What kind of operation a span is: values of ``gen_ai.operation.name``, and the first word of its span's name.
OPERATION: Final = "gen_ai.operation.name"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
INVOKE_AGENT: Final = "invoke_agent"
TEXT_COMPLETION: Final = "text_completion"
EMBEDDINGS: Final = "embeddings"

# A model call.
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"

# Who, and in which conversation.
AGENT_ID: Final = "gen_ai.agent.id"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"

# A tool call.
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"

# What went wrong: a class name or a status, of low cardinality.
ERROR_TYPE: Final = "error.type"

# Whose work it is.
ROLLOUT_ID: Final = "lgov.rollout_id"
ATTEMPT: Final = "lgov.attempt"
TASK_ID: Final = "lgov.task_id"
OUTCOME: Final = "lgov.outcome"
FRAMEWORK: Final = "lgov.framework"

# The id that a framework gave to a model call: not always the response's id.
CALL_ID: Final = "lgov.call_id"

# The exact tokens of a model call.
PROMPT_TOKEN_IDS: Final = "lgov.prompt_token_ids"
RESPONSE_TOKEN_IDS: Final = "lgov.response_token_ids"
RESPONSE_LOGPROBS: Final = "lgov.response_logprobs"
WEIGHTS_VERSION: Final = "lgov.weights_version"
# Which choice of a reply of several (from 0), on a model call or a reward; the tool calls that a model call proposed.
CHOICE: Final = "lgov.choice"
TOOL_CALL_IDS: Final = "lgov.tool_call_ids"

# A policy decision.
DECISION_SPAN_NAME: Final = "lgov.decision"
POINT: Final = "lgov.point"
ACTION_KIND: Final = "lgov.action.kind"
ACTION_NAME: Final = "lgov.action.name"
DECISION_ID: Final = "lgov.decision.id"
DECISION_EFFECT: Final = "lgov.decision.effect"
DECISION_POLICY: Final = "lgov.decision.policy"
DECISION_RULE: Final = "lgov.decision.rule"
DECISION_REASON: Final = "lgov.decision.reason"
DECISION_SEVERITY: Final = "lgov.decision.severity"
DECISION_SHADOWED: Final = "lgov.decision.shadowed"
DECISION_WOULD: Final = "lgov.decision.would"
DECISION_LATENCY_US: Final = "lgov.decision.latency_us"

# What a connection out of a box was to reach (`docs/how-to/confinement.md`), beside its decision.
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

# The status of a tool call: one of the values of `lgov_core.types.ToolStatus`, and the error's text.
TOOL_STATUS: Final = "lgov.tool.status"
ERROR_MESSAGE: Final = "lgov.error.message"

# A reward.
REWARD_SPAN_NAME: Final = "lgov.reward"
REWARD_VALUE: Final = "lgov.reward.value"
REWARD_DIMENSION: Final = "lgov.reward.dimension"
REWARD_SOURCE: Final = "lgov.reward.source"

# A judgement of a model call, as an event of the call's span: the convention's own way to write a reward.
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"

# One attempt at a rollout as a whole: the root span of the attempt when rollouts are exported.
ROLLOUT_SPAN_NAME: Final = "lgov.rollout"
RUN_ID: Final = "lgov.run_id"
# What a rollout is for: train, or test, val or eval, which no training may use.
ROLLOUT_MODE: Final = "lgov.rollout.mode"

# On a span that is sent elsewhere: it came in from outside, so that it proves nothing there either.
CLAIMED: Final = "lgov.claimed"

# What an OTLP span has besides its attributes, under the names that OpenTelemetry gives it where there is no field for it.
SCOPE_NAME: Final = "otel.scope.name"
SCOPE_VERSION: Final = "otel.scope.version"
STATUS_CODE: Final = "otel.status_code"
STATUS_DESCRIPTION: Final = "otel.status_description"
SPAN_KIND: Final = "span.kind"
LINKS: Final = "otel.links"
DROPPED_ATTRIBUTES: Final = "otel.dropped_attributes_count"
DROPPED_EVENTS: Final = "otel.dropped_events_count"
SERVICE_NAME: Final = "service.name"


def execute_tool_span_name(tool: str) -> str:
    """The name of a tool call's span: ``execute_tool {tool}``."""
    return f"{EXECUTE_TOOL} {storable(tool)}"


def storable(name: str) -> str:
    """``name`` as every store can keep it: NULs and lone surrogates are replaced."""
    if not name.isascii():
        name = name.encode("utf-8", "replace").decode()
    return name.replace("\0", "\ufffd")


def said(attributes: Mapping[str, JSONValue]) -> dict[str, JSONValue]:
    """The attributes that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}
