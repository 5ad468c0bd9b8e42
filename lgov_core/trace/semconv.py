"""Names of spans and attributes, pinned, and whose a span is by its attributes, whatever instrumentation wrote it.

The ``gen_ai.*`` names are those of OpenTelemetry's semantic conventions for generative AI, as its own registry
(``semantic-conventions-genai``) has them; the Python package ``opentelemetry-semantic-conventions`` marks its copies as
deprecated and no package carries the new registry, so they are written down here and nowhere else in lgov. Names under
``lgov.*`` have no convention yet: exact tokens, policy decisions, rewards, rollouts.

The text under a name says on which spans it is, its type and its meaning; docs/reference/data.md is made from it.

Values: ids and names are strings; token counts, attempts and weights versions are integers; messages, arguments and
results are JSON text; finish reasons are a list of strings; token ids and logprobs are lists of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final

from lgov_core.types import JSONValue

# What kind of operation a span is: values of ``gen_ai.operation.name``, and the first word of its span's name.
OPERATION: Final = "gen_ai.operation.name"
"""all of an agent's | text | kind of operation"""
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
INVOKE_AGENT: Final = "invoke_agent"
TEXT_COMPLETION: Final = "text_completion"
EMBEDDINGS: Final = "embeddings"

# A model call.
PROVIDER: Final = "gen_ai.provider.name"
"""model calls | text | whose API"""
REQUEST_MODEL: Final = "gen_ai.request.model"
"""model calls | text | the model that was asked for"""
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
"""model calls | number | sampling temperature"""
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
"""model calls | number | nucleus sampling"""
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
"""model calls | number | limit of the reply"""
RESPONSE_ID: Final = "gen_ai.response.id"
"""model calls, rewards | text | **the identity of a call**: what joins an adapter's span to the endpoint's record"""
RESPONSE_MODEL: Final = "gen_ai.response.model"
"""model calls | text | the model that answered"""
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
"""model calls | list of text | why the reply ended"""
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
"""model calls | integer | tokens of the prompt"""
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
"""model calls | integer | tokens of the reply"""
INPUT_MESSAGES: Final = "gen_ai.input.messages"
"""model calls | JSON text | the prompt; only with content capture on"""
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
"""model calls | JSON text | the reply; only with content capture on"""
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
"""model calls | JSON text | the system prompt, where it is not among the messages; read, not written"""
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
"""model calls | JSON text | the tools that the model could call; read, not written"""

# Who, and in which conversation.
AGENT_ID: Final = "gen_ai.agent.id"
"""agents, calls | text | id of the agent"""
AGENT_NAME: Final = "gen_ai.agent.name"
"""agents, calls | text | which agent; a call without one belongs to the nearest `invoke_agent` above it"""
CONVERSATION_ID: Final = "gen_ai.conversation.id"
"""all | text | the framework's session or thread"""

# A tool call.
TOOL_NAME: Final = "gen_ai.tool.name"
"""tool calls | text | name of the tool"""
TOOL_TYPE: Final = "gen_ai.tool.type"
"""tool calls | text | kind of the tool"""
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
"""tool calls, rewards | text | the call as the model proposed it; what a tool's reward names"""
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
"""tool calls | JSON text | arguments; only with content capture on"""
TOOL_RESULT: Final = "gen_ai.tool.call.result"
"""tool calls | JSON text | result; only with content capture on"""

# What went wrong: a class name or a status, of low cardinality.
ERROR_TYPE: Final = "error.type"
"""all | text | a class name or a status, when it failed"""

# Whose work it is.
ROLLOUT_ID: Final = "lgov.rollout_id"
"""all | text | the rollout; a span without it belongs to that of its parent"""
ATTEMPT: Final = "lgov.attempt"
"""all | integer from 1 | which try at the rollout"""
TASK_ID: Final = "lgov.task_id"
"""rollouts, agents, calls, the decision that begins a rollout | text | the task: rollouts of one task are compared"""
OUTCOME: Final = "lgov.outcome"
"""rollouts, agents | text | `succeeded`, `failed`, `blocked`, `truncated`; `infrastructure` and `timeout` are not trained on"""
FRAMEWORK: Final = "lgov.framework"
"""all | text | the adapter that wrote the span"""

# The id that a framework gave to a model call: not always the response's id.
CALL_ID: Final = "lgov.call_id"
"""model calls, decisions | text | the framework's own id of a model call"""
REQUEST_ID: Final = "lgov.request_id"
"""model calls | text | the `x-request-id` that the endpoint's client gave"""

# The exact tokens of a model call.
PROMPT_TOKEN_IDS: Final = "lgov.prompt_token_ids"
"""model calls | list of integers from 0, below 2^31 | the exact tokens of the prompt"""
RESPONSE_TOKEN_IDS: Final = "lgov.response_token_ids"
"""model calls | list of integers from 0, below 2^31 | the exact tokens of the reply"""
RESPONSE_LOGPROBS: Final = "lgov.response_logprobs"
"""model calls | list of numbers | log-probability of each token of the reply, at the temperature sampled"""
WEIGHTS_VERSION: Final = "lgov.weights_version"
"""model calls | integer from 0 | version of the weights that answered: updates in a training, 0 where a model is only served"""
# Which choice of a reply of several (from 0), on a model call or a reward; the tool calls that a model call proposed.
CHOICE: Final = "lgov.choice"
"""model calls, rewards | integer from 0 | which of several choices of one reply"""
TOOL_CALL_IDS: Final = "lgov.tool_call_ids"
"""model calls | list of text | the tool calls that the reply proposed"""

# A policy decision.
DECISION_SPAN_NAME: Final = "lgov.decision"
"""the span's name |  | a policy's decision"""
POINT: Final = "lgov.point"
"""decisions | text | where: `pre_tool_call`, ..."""
ACTION_KIND: Final = "lgov.action.kind"
"""decisions | text | kind of what was evaluated"""
ACTION_NAME: Final = "lgov.action.name"
"""decisions | text | name of the tool or model"""
DECISION_ID: Final = "lgov.decision.id"
"""decisions, tool calls | text | the entry in the audit record, which proves it"""
DECISION_EFFECT: Final = "lgov.decision.effect"
"""decisions | text | `allow`, `warn`, `transform`, `escalate` or `deny`"""
DECISION_POLICY: Final = "lgov.decision.policy"
"""decisions | text | name of the rule, or of the policy"""
DECISION_RULE: Final = "lgov.decision.rule"
"""decisions | text | slug of the reason"""
DECISION_REASON: Final = "lgov.decision.reason"
"""decisions | text | the reason; only with content capture on"""
DECISION_SEVERITY: Final = "lgov.decision.severity"
"""decisions | text | `low`, `medium`, `high` or `critical`"""
DECISION_SHADOWED: Final = "lgov.decision.shadowed"
"""decisions | true or false | evaluated and not enforced"""
DECISION_WOULD: Final = "lgov.decision.would"
"""decisions | text | in shadow mode: the effect that was not enforced, to which policy, rule, reason and severity belong"""
DECISION_SOURCES: Final = "lgov.decision.sources"
"""decisions | text | JSON: by argument the texts that its value is in, as a flow rule saw them"""
DECISION_LATENCY_US: Final = "lgov.decision.latency_us"
"""decisions | number | microseconds of evaluating"""

# What a connection out of a box was to reach (`docs/how-to/confinement.md`), beside its decision.
SERVER_ADDRESS: Final = "server.address"
"""connections out of a box | text | host"""
SERVER_PORT: Final = "server.port"
"""connections out of a box | integer | port"""

# The status of a tool call: one of the values of `lgov_core.types.ToolStatus`, and the error's text.
TOOL_STATUS: Final = "lgov.tool.status"
"""tool calls | text | `ok`, `error`, `denied`, `timeout`, `invalid_args`, `unknown_tool` or `paused`"""
ERROR_MESSAGE: Final = "lgov.error.message"
"""tool calls | text | the error's text"""

# A reward.
REWARD_SPAN_NAME: Final = "lgov.reward"
"""the span's name |  | a reward"""
REWARD_VALUE: Final = "lgov.reward.value"
"""rewards | number | finite"""
REWARD_DIMENSION: Final = "lgov.reward.dimension"
"""rewards | text | the channel, `task` where nothing is said"""
REWARD_SOURCE: Final = "lgov.reward.source"
"""rewards | text | the rule or function that gave it"""

# A judgement of a model call, as an event of the call's span: the convention's own way to write a reward.
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
"""an event's name |  | a judgement of the span that it is on"""
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
"""that event | text | the reward's dimension"""
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
"""that event | number | the reward's value"""
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"
"""that event | text | kept, not read"""

# One attempt at a rollout as a whole: the root span of the attempt when rollouts are exported.
ROLLOUT_SPAN_NAME: Final = "lgov.rollout"
"""the span's name |  | one attempt as a whole, the parent of all its spans"""
RUN_ID: Final = "lgov.run_id"
"""rollouts | text | the run that the rollout is part of"""
# What a rollout is for: train, or test, val or eval, which no training may use.
ROLLOUT_MODE: Final = "lgov.rollout.mode"
"""rollouts | text | what the rollout is for: `train`, or `test`, `val`, `eval`, which no training data holds"""

# On a span that is sent elsewhere: it came in from outside, so that it proves nothing there either.
CLAIMED: Final = "lgov.claimed"
"""sent out | true or false | the span is a claim: it came from outside"""

# What an OTLP span has besides its attributes, under the names that OpenTelemetry gives it where there is no field for it.
SCOPE_NAME: Final = "otel.scope.name"
"""from outside | text | the instrumentation that wrote it"""
SCOPE_VERSION: Final = "otel.scope.version"
"""from outside | text | its version"""
STATUS_CODE: Final = "otel.status_code"
"""from outside |  | kept unchanged"""
STATUS_DESCRIPTION: Final = "otel.status_description"
"""from outside |  | kept unchanged"""
SPAN_KIND: Final = "span.kind"
"""from outside |  | kept unchanged"""
LINKS: Final = "otel.links"
"""from outside |  | kept unchanged"""
DROPPED_ATTRIBUTES: Final = "otel.dropped_attributes_count"
"""from outside | integer | attributes that the sender dropped"""
DROPPED_EVENTS: Final = "otel.dropped_events_count"
"""from outside | integer | events that the sender dropped"""
SERVICE_NAME: Final = "service.name"
"""from outside | text | the program that wrote it"""


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


#: Attributes that name the rollout, and the attempt, in order of preference.
ROLLOUT_NAMES: Final = (ROLLOUT_ID, "agentlightning.rollout_id", "agent_os.rollout_id")
ATTEMPT_NAMES: Final = (ATTEMPT, "agentlightning.attempt_id", "agent_os.attempt")

#: What a span takes over from its resource where it does not say it itself: who, and whose work it is.
OF_RESOURCE: Final = (
    *ROLLOUT_NAMES,
    *ATTEMPT_NAMES,
    TASK_ID,
    RUN_ID,
    AGENT_NAME,
    AGENT_ID,
    CONVERSATION_ID,
    WEIGHTS_VERSION,
    SERVICE_NAME,
    "session.id",
    "agentlightning.span_sequence_id",
)

_LONGEST: Final = 200


def take_identity(attributes: MutableMapping[str, JSONValue]) -> tuple[str | None, int | None]:
    """The rollout and attempt that ``attributes`` name. lgov's own two names are taken out of them.

    A name that is not a valid id stays where it is and is ignored.
    """
    rollout_id = next((named for name in ROLLOUT_NAMES if (named := _rollout(attributes.get(name))) is not None), None)
    attempt = next((nth for name in ATTEMPT_NAMES if (nth := _attempt(attributes.get(name))) is not None), None)
    if rollout_id is not None and attributes.get(ROLLOUT_ID) == rollout_id:
        del attributes[ROLLOUT_ID]
    if attempt is not None and _attempt(attributes.get(ATTEMPT)) == attempt:
        del attributes[ATTEMPT]
    return rollout_id, attempt


def put_identity(attributes: MutableMapping[str, JSONValue], rollout_id: str | None, attempt: int | None) -> None:
    """Writes the rollout and attempt into ``attributes``, under lgov's names."""
    if rollout_id is not None:
        attributes[ROLLOUT_ID] = rollout_id
    if attempt is not None:
        attributes[ATTEMPT] = attempt


def names_rollout(attributes: Mapping[str, JSONValue]) -> bool:
    """True where ``attributes`` say anything about a rollout, readable or not."""
    return any(attributes.get(name) is not None for name in ROLLOUT_NAMES)


def _rollout(value: JSONValue) -> str | None:
    if type(value) is int:
        value = str(value)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        return None
    return None if any(char in "/\r\n\0" for char in value) else value


def _attempt(value: JSONValue) -> int | None:
    number = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        number = int(value)
    return number if type(number) is int and 0 < number < 10**9 else None
