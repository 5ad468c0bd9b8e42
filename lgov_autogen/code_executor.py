"""Governed code executors: each block of code is evaluated as the shell command or program that it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, cast

from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import BaseModel

from lgov_autogen.current_governor import GovernedComponent, behind
from lgov_autogen.instrumentor import INSTRUMENTOR
from lgov_autogen.tools import note_abort, tool_action
from lgov_core.instrumentation import Governor, arun_flow
from lgov_core.instrumentation.live_span import covered_call
from lgov_core.instrumentation.tool_call import ToolReading, tool_flow
from lgov_core.types import Action

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

        result = await arun_flow(tool_flow(governor, action, run, _reading, raise_abort=False))
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


def _reading(result: CodeResult) -> ToolReading:
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
