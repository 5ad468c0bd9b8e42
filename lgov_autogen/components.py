"""Governed calls of model clients and code executors, and the components that a program puts around its own.

One path serves whole and streamed replies: a reply is a stream of text whose last item is the result. The text is withheld
until the reply has been evaluated, or passed on as it comes where nothing evaluates replies. Each block of code is evaluated
as the shell command or program that it is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self, cast

from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import ChatCompletionClient, CreateResult, LLMMessage
from pydantic import BaseModel

from lgov_autogen.instrumentor import INSTRUMENTOR
from lgov_autogen.model_calls import AutoGenCall, CallMemory, ProgramCall
from lgov_autogen.proposals import ProposedCalls, results_in
from lgov_autogen.runs import GovernedComponent, Run, behind, ensure_run
from lgov_autogen.tools import is_governed_schema, note_abort, tool_action
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor, arun_flow
from lgov_core.instrumentation.live_span import covered_call, model_call_covered
from lgov_core.instrumentation.model_flow import model_flow
from lgov_core.instrumentation.streams import arun_stream
from lgov_core.instrumentation.tool_call import GovernedToolCall, ToolReading, tool_flow
from lgov_core.types import Action

#: Text as it comes, then the result.
Reply = AsyncGenerator[str | CreateResult, None]


class ModelCalls:
    """Governs model calls, and remembers what their callers do not see. Serves any number of clients and tasks.

    ``evaluated_later``: see `ProposedCalls`.
    """

    def __init__(self, evaluated_later: Callable[[Governor, Any], bool]) -> None:
        self._memory = CallMemory(ProposedCalls(evaluated_later))

    async def create(
        self,
        governor: Governor | None,
        client: Any,
        create: Callable[..., Awaitable[CreateResult]],
        messages: Sequence[LLMMessage],
        options: Mapping[str, Any],
        agent: str | None = None,
    ) -> CreateResult:
        """The governed reply of ``create``, a method of ``client``, with the keyword arguments ``options``.

        Raises what the client raises, and `PolicyDenied` where a decision says abort, or where a denial cannot replace
        the structured answer that was asked for. Without a governor, and inside a call that it has evaluated, the
        client answers.
        """

        async def ask(sent: Sequence[LLMMessage], **how: Any) -> Reply:
            yield await create(sent, **how)

        async with aclosing(self.create_stream(governor, client, ask, messages, options, agent)) as reply:
            async for piece in reply:
                if isinstance(piece, CreateResult):
                    return piece
        raise RuntimeError("the model client gave no result")

    async def create_stream(
        self,
        governor: Governor | None,
        client: Any,
        create_stream: Callable[..., AsyncIterator[str | CreateResult]],
        messages: Sequence[LLMMessage],
        options: Mapping[str, Any],
        agent: str | None = None,
    ) -> Reply:
        """As `create`, for a streamed reply."""
        if governor is None or model_call_covered(governor):
            async for piece in create_stream(messages, **options):
                yield piece
            return
        run = ensure_run()
        _raise_abort(run, messages)
        await self._memory.proposals.settle(messages)
        call = AutoGenCall(self._memory, governor, client, create_stream, run, ProgramCall(messages, options, agent))
        async with aclosing(arun_stream(model_flow(call))) as reply:
            async for piece in reply:
                yield piece


def _raise_abort(run: Run, messages: Sequence[LLMMessage]) -> None:
    """Ends a run whose tool call was denied with ``abort``: here raising reaches the caller."""
    if run.aborted is None:
        return
    decision = run.aborted
    if run.owner is None:  # a program's own loop, which may be another one than the one that was aborted
        run.aborted = None
        is_same_loop = run.aborted_calls & results_in(messages).keys()
        run.aborted_calls.clear()
        if not is_same_loop:
            return
    raise PolicyDenied(decision)


class GovernedChatCompletionClientConfig(BaseModel):
    """The configuration of a `GovernedChatCompletionClient`, without its governor."""

    client: ComponentModel
    agent: str | None = None


class GovernedChatCompletionClient(
    GovernedComponent, ChatCompletionClient, Component[GovernedChatCompletionClientConfig]
):
    """Evaluates everything that goes to and comes from the model behind ``client``.

    Policies see what the user (or another agent) newly said, the call, the reply, a final answer, and, as soon as the
    model proposes them, hand-offs and the calls of tools that nothing evaluates when they run (a `GovernedWorkbench` of
    the same governor does, and so does an instrumented process). A denied call is taken out of the reply; if nothing is
    left of it the model reads the denial and is asked again, at most three times. At the next call the model finds its denied
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

    close: Any = behind("client.close")
    actual_usage: Any = behind("client.actual_usage")
    total_usage: Any = behind("client.total_usage")
    count_tokens: Any = behind("client.count_tokens")
    remaining_tokens: Any = behind("client.remaining_tokens")
    capabilities: Any = behind("client.capabilities")
    model_info: Any = behind("client.model_info")

    def _to_config(self) -> GovernedChatCompletionClientConfig:
        return GovernedChatCompletionClientConfig(client=self.client.dump_component(), agent=self.agent)

    @classmethod
    def _from_config(cls, config: GovernedChatCompletionClientConfig) -> Self:
        return cls(ChatCompletionClient.load_component(config.client), agent=config.agent)


def _evaluated_when_run(governor: Governor, tool: Any) -> bool:
    """In a process that is not instrumented only a governed workbench evaluates calls when they run."""
    return INSTRUMENTOR.governor is governor or is_governed_schema(tool, governor)


#: The languages whose blocks are commands for a shell. Others are programs, in an argument of another name.
SHELLS = frozenset({"bash", "sh", "shell", "zsh", "console", "terminal", "pwsh", "powershell", "ps1", "cmd", "bat"})

#: The status of a block that was not run: that of a shell for a command that must not be executed.
NOT_RUN = 126


def code_action(block: CodeBlock, executor: Any, agent: str | None = None) -> Action:
    """The execution of one block: ``run_shell`` with ``command``, or ``run_code`` with ``code``; and its ``language``."""
    language = block.language.strip().lower()
    is_shell = language in SHELLS
    arguments = {"command" if is_shell else "code": block.code, "language": language}
    return tool_action("run_shell" if is_shell else "run_code", "shell", arguments, executor, agent=agent)


async def govern_code(
    governor: Governor | None,
    blocks: Sequence[CodeBlock],
    execute: Callable[[list[CodeBlock]], Awaitable[CodeResult]],
    executor: Any,
    agent: str | None = None,
) -> CodeResult:
    """Evaluates and runs one block after the other, and stops at the first that is denied or fails.

    The output is that of the blocks before, then the denial.
    """
    if governor is None or _is_evaluated(governor, blocks):
        return await execute(list(blocks))
    outputs: list[str] = []
    last: CodeResult | None = None
    for block in blocks:
        action = code_action(block, executor, agent)

        async def run(permitted: Mapping[str, Any], block: CodeBlock = block) -> CodeResult:
            code = str(permitted.get("command" if "command" in permitted else "code", block.code))
            return await execute([block if code == block.code else replace(block, code=code)])

        result = await arun_flow(tool_flow(GovernedToolCall(governor, action), run, _code_reading, raise_abort=False))
        note_abort(result.decision, None)
        if result.denial is not None:
            return CodeResult(exit_code=NOT_RUN, output="\n".join([*outputs, result.denial]))
        last = cast("CodeResult", result.result)
        outputs.append(last.output if result.text is None else result.text)
        if last.exit_code != 0:
            break
    if last is None:
        return await execute([])
    last.output = outputs[0] if len(outputs) == 1 else "\n".join(text.rstrip("\n") for text in outputs)
    return last


def _code_reading(result: CodeResult) -> ToolReading:
    if result.exit_code == 0:
        return ToolReading(result.output)
    return ToolReading(result.output, "error", error_type=f"exit_code_{result.exit_code}", error=result.output)


async def execute_code_blocks(
    executor: Any, own: Callable[..., Any], code_blocks: list[CodeBlock], cancellation_token: CancellationToken
) -> CodeResult:
    """``CodeExecutor.execute_code_blocks`` in an instrumented process; ``own`` is the executor's own method."""
    return await govern_code(
        INSTRUMENTOR.governor, code_blocks, lambda blocks: own(blocks, cancellation_token), executor
    )


def _is_evaluated(governor: Governor, blocks: Sequence[CodeBlock]) -> bool:
    """Returns whether these blocks are the one that was evaluated and is running now."""
    call = covered_call()
    if call is None or call.governor is not governor or len(blocks) != 1:
        return False
    action = code_action(blocks[0], None)
    return action.name == call.name and dict(action.arguments) == dict(call.arguments)


class GovernedCodeExecutorConfig(BaseModel):
    """The configuration of a `GovernedCodeExecutor`, without its governor."""

    executor: ComponentModel
    agent: str | None = None


class GovernedCodeExecutor(GovernedComponent, CodeExecutor, Component[GovernedCodeExecutorConfig]):
    """Evaluates each block of code before ``executor`` runs it, and its output.

    A block in the language of a shell is the act ``run_shell`` with the argument ``command``; any other is ``run_code`` with
    ``code``; both have ``language``. Blocks are evaluated and run one after the other; after one that is denied or fails
    nothing more is run. A denial is a result with status 126 whose output is the denial.

    Without a governor it asks that of the instrumented process and raises `InstrumentationError` where there is
    none: fails closed. Serialisable; see `governing` for the governor of a loaded one.
    """

    component_type = "code_executor"
    component_config_schema = GovernedCodeExecutorConfig
    component_provider_override = "lgov_autogen.GovernedCodeExecutor"

    def __init__(self, executor: CodeExecutor, governor: Governor | None = None, *, agent: str | None = None) -> None:
        self.executor = executor
        self.agent = agent
        self._use_governor(governor)

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """The governed result of the blocks."""

        def execute(blocks: list[CodeBlock]) -> Awaitable[CodeResult]:
            return self.executor.execute_code_blocks(blocks, cancellation_token)

        return await govern_code(self.governor, code_blocks, execute, self.executor, self.agent)

    start: Any = behind("executor.start")
    stop: Any = behind("executor.stop")
    restart: Any = behind("executor.restart")

    def _to_config(self) -> GovernedCodeExecutorConfig:
        return GovernedCodeExecutorConfig(executor=self.executor.dump_component(), agent=self.agent)

    @classmethod
    def _from_config(cls, config: GovernedCodeExecutorConfig) -> Self:
        return cls(CodeExecutor.load_component(config.executor), agent=config.agent)
