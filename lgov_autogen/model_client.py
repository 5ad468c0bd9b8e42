"""`GovernedChatCompletionClient`: any model client of AutoGen, governed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Self

from autogen_core import Component, ComponentModel
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    ModelCapabilities,  # type: ignore[reportDeprecated]
    ModelInfo,
    RequestUsage,
)
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel

from lgov_autogen.current_governor import GovernedComponent, acting_governor
from lgov_autogen.model_calls import ModelCalls
from lgov_autogen.workbench import is_governed_schema
from lgov_core.instrumentation import Governor


class GovernedChatCompletionClientConfig(BaseModel):
    """What a `GovernedChatCompletionClient` is made from; its governor is not part of it."""

    client: ComponentModel
    agent: str | None = None


class GovernedChatCompletionClient(
    GovernedComponent, ChatCompletionClient, Component[GovernedChatCompletionClientConfig]
):
    """Evaluates everything that goes to and comes from the model behind ``client``.

    Policies see what the user (or another agent) newly said, the call, the reply, a final answer, and, as soon as the
    model proposes them, hand-offs and the calls of tools that nothing evaluates when they run (a `GovernedWorkbench` of
    the same governor does, and so does an instrumented process). A denied call is taken out of the reply; if nothing is
    left of it the model is told and asked again, at most three times. At the next call the model finds its denied
    proposal and the denial where they were, although the agent's own conversation does not hold them. ``usage`` counts
    every request.

    A streamed reply is withheld until it has been evaluated. A denied question or answer is replaced by the denial; where
    a structured answer (``json_output`` with a model class) was asked for, `PolicyDenied` is raised instead, as it is
    where a decision says abort. Without a governor it asks that of the instrumented process and raises
    `InstrumentationError` where there is none: fails closed. ``agent`` is the agent's name for policies in a process
    that is not instrumented. Any number of agents may use it at once. Serialisable; see `governing` for the governor of
    a loaded one.
    """

    component_type = "model"
    component_config_schema = GovernedChatCompletionClientConfig
    component_provider_override = "lgov_autogen.GovernedChatCompletionClient"

    def __init__(
        self, client: ChatCompletionClient, governor: Governor | None = None, *, agent: str | None = None
    ) -> None:
        self.client = client
        self.agent = agent
        self._use_governor(governor)
        self._calls = ModelCalls(_evaluated_when_run)

    async def create(self, messages: Sequence[LLMMessage], **options: Any) -> CreateResult:  # type: ignore[override]
        """The governed reply; takes and raises what that of the client behind does."""
        client = self.client
        return await self._calls.create(self.governor, client, client.create, messages, options, self.agent)

    async def create_stream(  # type: ignore[override]
        self, messages: Sequence[LLMMessage], **options: Any
    ) -> AsyncGenerator[str | CreateResult, None]:
        """As `create`; the text comes once the reply has been evaluated, or as it comes where nothing evaluates it."""
        client = self.client
        stream = self._calls.create_stream(self.governor, client, client.create_stream, messages, options, self.agent)
        async with aclosing(stream) as reply:
            async for piece in reply:
                yield piece

    async def close(self) -> None:
        """Closes the client behind."""
        await self.client.close()

    def actual_usage(self) -> RequestUsage:
        """That of the client behind."""
        return self.client.actual_usage()

    def total_usage(self) -> RequestUsage:
        """That of the client behind."""
        return self.client.total_usage()

    def count_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        """As the client behind counts."""
        return self.client.count_tokens(messages, tools=tools)

    def remaining_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        """As the client behind counts."""
        return self.client.remaining_tokens(messages, tools=tools)

    @property
    def capabilities(self) -> ModelCapabilities:  # type: ignore[reportDeprecated]
        """Those of the client behind."""
        return self.client.capabilities

    @property
    def model_info(self) -> ModelInfo:
        """That of the client behind."""
        return self.client.model_info

    def _to_config(self) -> GovernedChatCompletionClientConfig:
        return GovernedChatCompletionClientConfig(client=self.client.dump_component(), agent=self.agent)

    @classmethod
    def _from_config(cls, config: GovernedChatCompletionClientConfig) -> Self:
        return cls(ChatCompletionClient.load_component(config.client), agent=config.agent)


def _evaluated_when_run(governor: Governor, tool: Any) -> bool:
    """In a process that is not instrumented only a governed workbench evaluates calls when they run."""
    return acting_governor() is governor or is_governed_schema(tool, governor)
