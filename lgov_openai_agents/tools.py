"""Governs the calls of the SDK's tools, each at the callable that acts, and of MCP servers in ``MCPServer.call_tool``.

The SDK's own guardrails cannot rewrite arguments and do not see what a tool raised; the callable of a tool is its public
field, it gets the raw arguments, and its return value is what the model reads. So a call is evaluated, run and recorded
there, whatever calls it. `governed_tool` copies a tool with governed callables, each usable like the one that it replaces.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import json
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agents import ApplyPatchTool, CustomTool, FunctionTool, LocalShellTool, ShellTool
from agents.editor import ApplyPatchResult
from agents.tool import ShellCallOutcome, ShellCommandOutput, ShellResult

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Flow, Governor, arun_flow, carrying
from lgov_core.instrumentation.live_span import covered_call, note_error
from lgov_core.instrumentation.tool_arguments import ToolArguments
from lgov_core.instrumentation.tool_call import GovernedToolCall, ToolReading, failure_status, tool_flow
from lgov_core.types import Kind, ToolStatus
from lgov_core.wire.turns import read_arguments
from lgov_openai_agents._internals import (
    Invoke,
    approval_of,
    bind,
    hand_over,
    kind_of,
    observe_errors,
)
from lgov_openai_agents.items import result_text, text_of
from lgov_openai_agents.runs import (
    CarriedToolCall,
    FunctionArguments,
    SdkRun,
    call_name,
    current_run,
    parent_in,
    tool_action,
)

#: The part of its timeout that a cancelled tool must have used: the SDK's clock started a little earlier.
_NEARLY = 0.95


class ToolTimedOut(TimeoutError):
    """A tool that the SDK cancelled because its time was up."""


@dataclass(frozen=True, slots=True)
class Act:
    """One call of a tool. ``context`` is the SDK's.

    ``run`` gets the permitted arguments and returns the result, or an awaitable of it; ``read`` reads that; ``denied``
    makes what the SDK expects from the denial's text; ``rewritten`` puts a new text into a result. ``validated`` are the
    arguments as the tool's schema yields them. ``call`` is the call where it is judged already, or in a way of its own.
    """

    name: str
    kind: Kind
    arguments: Mapping[str, Any]
    call_id: str | None
    context: Any
    run: Callable[[Mapping[str, Any]], Any]
    read: Callable[[Any], ToolReading]
    denied: Callable[[str], Any] = str
    rewritten: Callable[[Any, str], Any] = lambda result, text: text
    validated: ToolArguments | None = None
    call: GovernedToolCall | None = None


async def govern_act(governor: Governor, act: Act) -> Any:
    """Evaluates the call, runs it if it may run, records the outcome, evaluates the result; returns what the SDK gets.

    Raises what the tool raised, and `lgov_core.PolicyDenied` where a decision says abort. A call that was evaluated on
    its way here is not evaluated again. Fails closed.
    """
    around = covered_call()
    if around is not None and around.covers(governor, act.name, act.arguments, act.call_id):
        return await awaited(act.run(act.arguments))

    async def call(permitted: Mapping[str, Any]) -> Any:
        return await awaited(act.run(permitted))

    judged = act.call
    if judged is None:
        agent = getattr(act.context, "agent", None)
        action = tool_action(governor, act.name, act.kind, act.arguments, act.context, call_id=act.call_id, agent=agent)
        judged = GovernedToolCall(governor, action, parent_in(current_run(governor)), act.validated)
    governed = await arun_flow(tool_flow(judged, call, act.read))
    if governed.denial is not None:
        return act.denied(governed.denial)
    return governed.result if governed.text is None else act.rewritten(governed.result, governed.text)


async def awaited(result: Any) -> Any:
    """``result``, or what it is an awaitable of."""
    return await result if inspect.isawaitable(result) else result


# ---------------------------------------------------------------------- function tools


async def govern_function(governor: Governor, tool: FunctionTool, invoke: Invoke, context: Any, raw: str) -> Any:
    """As `govern_act`, for a call of ``tool`` with the arguments text ``raw``. ``invoke`` notes what the tool raises."""
    began = time.monotonic()  # the SDK's clock for the tool is running
    validated = FunctionArguments(tool, raw, getattr(context, "tool_name", tool.name))
    call_id = getattr(context, "tool_call_id", None)
    sdk_run, call = current_run(governor), None
    if sdk_run is not None and validated.problem is None:
        call = sdk_run.take_judged(call_name(call_id, tool.name, raw))
    if call is not None:
        validated = call.validated

    def run(permitted: Mapping[str, Any]) -> Awaitable[Any]:
        hand_over(context, *validated.result())
        return _within_timeout(tool, invoke(context, validated.text), began)

    name, kind = tool.qualified_name, kind_of(tool)
    act = Act(name, kind, validated.judged, call_id, context, run, _read_value, validated=validated, call=call)
    try:
        return await govern_act(governor, act)
    except ToolTimedOut as late:
        raise asyncio.CancelledError from late  # the SDK waits for the task it cancelled to be cancelled


def new_carried_call(
    run: SdkRun, tool: FunctionTool, arguments: Mapping[str, Any], context: Any, call_id: str | None, agent: Any
) -> CarriedToolCall:
    """The call, to be judged before it runs, by ``agent`` or else by the one that acts in ``run``."""
    validated = FunctionArguments(tool, json.dumps(arguments, ensure_ascii=False), tool.name)
    action = tool_action(
        run.governor, tool.qualified_name, kind_of(tool), validated.judged, context, call_id=call_id, agent=agent
    )
    name = call_name(call_id, tool.name, arguments)
    call = run.judged[name] = CarriedToolCall(run.governor, action, validated, name)
    return call


async def _within_timeout(tool: FunctionTool, result: Awaitable[Any], began: float) -> Any:
    """The tool's result. Raises `ToolTimedOut` where the SDK cancels the tool because its time is up."""
    try:
        return await result
    except asyncio.CancelledError as error:
        limit = tool.timeout_seconds
        if limit is not None and time.monotonic() - began >= limit * _NEARLY:
            raise ToolTimedOut(f"{tool.name} did not finish within {limit:g} s") from error
        raise


def _read_value(value: Any) -> ToolReading:
    text, call = result_text(value), covered_call()
    error = call.raised if call is not None else None
    if error is None:
        return ToolReading(text)
    if type(error).__module__.startswith("agents."):  # the SDK's words for what went wrong
        error = error.__cause__ or error
    return ToolReading(text, failure_status_of(error), type(error).__name__, str(error))


def failure_status_of(error: BaseException) -> ToolStatus:
    """As `failure_status`, with the SDK's errors for arguments that do not fit."""
    if type(error).__name__ in ("ModelBehaviorError", "JSONDecodeError"):
        return "invalid_args"
    return failure_status(error)


# ---------------------------------------------------------------------- shell tools


def governed_shell(tool: Any, inner: Any, acting: Callable[[], Governor | None]) -> Callable[..., Any]:
    """``ShellTool.executor``: the executor may run each command on its own, so each is an act of its own."""

    async def call(request: Any) -> Any:
        governor = acting()
        if governor is None:
            return await awaited(inner(request))
        commands = request.data.action.commands
        results = [await govern_act(governor, _command(tool, inner, request, command)) for command in commands]
        if len(results) == 1:
            return results[0]
        outputs: list[Any] = []
        for result in results:
            outputs += result.output if isinstance(result, ShellResult) else [ShellCommandOutput(stdout=str(result))]
        limits = (result.max_output_length for result in results if isinstance(result, ShellResult))
        return ShellResult(output=outputs, max_output_length=next(limits, None))

    return call


def _command(tool: Any, inner: Any, request: Any, command: str) -> Act:
    action = request.data.action
    limits = {name: value for name, value in vars(action).items() if name != "commands" and value is not None}

    def run(arguments: Mapping[str, Any]) -> Any:
        changed = {name: arguments.get(name) for name in limits}
        alone = replace(action, commands=[arguments["command"]], **changed)
        # Without the raw item: it holds the other commands, and this one as it was before a transform.
        return inner(replace(request, data=replace(request.data, action=alone, raw=None)))

    def denied(text: str) -> ShellResult:
        outcome = ShellCallOutcome(type="exit", exit_code=126)
        return ShellResult(output=[ShellCommandOutput(stderr=text, outcome=outcome)])

    def rewritten(result: Any, text: str) -> Any:
        return ShellResult(output=[ShellCommandOutput(stdout=text)]) if isinstance(result, ShellResult) else text

    context, call_id = request.ctx_wrapper, request.data.call_id
    return Act(
        tool.name, "shell", {"command": command, **limits}, call_id, context, run, read_output, denied, rewritten
    )


def local_shell_act(tool: Any, inner: Any, request: Any) -> Act:
    """Judged with every field: where it runs, as whom and its environment are in the command, as a shell has them."""
    action = request.data.action
    fields = {name: value for name, value in action.model_dump(exclude={"type"}).items() if value not in (None, {})}
    arguments = {**fields, "command": _shell_text(fields)}

    def run(permitted: Mapping[str, Any]) -> Any:
        changed = {name: permitted[name] for name in fields if permitted.get(name) != arguments[name]}
        command = changed.get("command")
        if command is not None:  # it says all that the other fields do
            words = list(command) if isinstance(command, list | tuple) else ["sh", "-c", command]
            changed = {"command": words, "env": {}, "user": None, "working_directory": None}
        allowed = request.data.model_copy(update={"action": action.model_copy(update=changed)})
        return inner(replace(request, data=allowed))

    return Act(tool.name, "shell", arguments, request.data.call_id, request.ctx_wrapper, run, read_output)


def _shell_text(fields: Mapping[str, Any]) -> str | list[str]:
    """The command as words; as text of a shell where it has a folder, a user or an environment."""
    words: list[str] = []
    for name, value in fields.get("env", {}).items():
        words.append(
            f"{name}={shlex.quote(value)}" if name.isascii() and name.isidentifier() else shlex.quote(f"{name}={value}")
        )
    words += map(shlex.quote, fields["command"])
    text = " ".join(words)
    if "user" in fields:
        text = f"sudo -u {shlex.quote(fields['user'])} {text}"
    if "working_directory" in fields:
        text = f"cd {shlex.quote(fields['working_directory'])} && {text}"
    return text if fields.keys() & {"env", "user", "working_directory"} else list(fields["command"])


def read_output(result: Any) -> ToolReading:
    """The result of a shell, patch or custom tool."""
    output = getattr(result, "output", result)
    if isinstance(output, list):
        parts = [(getattr(command, "stdout", ""), getattr(command, "stderr", "")) for command in output]
        text = "\n".join("\n".join(filter(None, streams)) for streams in parts)
        timed_out = any(getattr(command, "status", "") == "timeout" for command in output)
        return ToolReading(text, "timeout" if timed_out else "ok", "timeout" if timed_out else None)
    text = result_text(output) if output is not None else ""
    failed = getattr(result, "status", None) == "failed"
    return ToolReading(text, "error" if failed else "ok", "failed" if failed else None)


class MCPToolError(Exception):
    """A tool of an MCP server whose result says that it is an error."""


def _reading(result: Any) -> ToolReading:
    text = text_of(list(result.content))
    if getattr(result, "is_error", None) or getattr(result, "isError", None):  # mcp 2, mcp 1
        return ToolReading(text, "error", MCPToolError.__name__, text)
    return ToolReading(text)


def _observed(result: Any) -> Any:
    reading = _reading(result)
    if reading.status == "error":
        note_error(MCPToolError(reading.text))
    return result


async def call_tool(
    governor: Governor | None,
    server: Any,
    own: Callable[..., Any],
    tool_name: str,
    arguments: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``MCPServer.call_tool``, evaluated where no tool of an agent makes the call; ``own`` is the server's own method.

    A denial is an error result.
    """
    around = covered_call()
    if governor is None or (around is not None and around.action is not None and around.action.kind == "mcp"):
        return _observed(await own(tool_name, arguments, *args, **kwargs))
    action = tool_action(governor, tool_name, "mcp", dict(arguments or {}), server)

    async def call(permitted: Mapping[str, Any]) -> Any:
        passed = arguments if permitted is action.arguments else dict(permitted)
        return await own(tool_name, passed, *args, **kwargs)

    governed = await arun_flow(tool_flow(GovernedToolCall(governor, action), call, _reading))
    if governed.denial is not None:
        return _result(governed.denial, failed=True)
    if governed.text is not None:
        return _result(governed.text, failed=_reading(governed.result).status == "error")
    return governed.result


def _result(text: str, *, failed: bool) -> Any:
    from mcp.types import CallToolResult

    return CallToolResult.model_validate({"content": [{"type": "text", "text": text}], "isError": failed})


class ObservedServer:
    """``inner``, an MCP server, for an agent of `LgovRunner`: everything is that server's, and its failures are noted."""

    def __init__(self, inner: Any) -> None:
        self.__dict__["inner"] = inner

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """That of the server: the SDK and programs ask ``isinstance``."""
        return type(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["inner"], name, value)

    async def call_tool(self, *args: Any, **kwargs: Any) -> Any:
        """The server's result."""
        return _observed(await self.inner.call_tool(*args, **kwargs))


def observed_server(server: Any) -> Any:
    """``server`` with its failures noted; one that is observed already as it is."""
    return server if type(server) is ObservedServer else ObservedServer(server)


GovernorOf = Callable[[], Governor | None]


class GovernedInvoker:
    """``FunctionTool.on_invoke_tool`` of ``tool``, governed by what ``acting`` returns; not governed while that is None.

    The SDK looks at this callable's class, signature and methods, so everything but the call itself is that of ``inner``.
    With ``keeps`` a copy of the tool is governed too.
    """

    def __init__(self, tool: FunctionTool, inner: Any, acting: GovernorOf, *, keeps: bool = False) -> None:
        self.lgov_tool = tool
        self.lgov_inner = inner
        self.lgov_acting = acting
        self.lgov_keeps = keeps
        self.lgov_invoke: Invoke | None = None

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """That of ``inner``: the SDK asks ``isinstance``."""
        return type(self.lgov_inner)

    @property
    def __signature__(self) -> inspect.Signature:
        try:
            return inspect.signature(self.lgov_inner)
        except (TypeError, ValueError) as error:
            raise AttributeError("__signature__") from error

    def __getattr__(self, name: str) -> Any:
        if name == "lgov_inner":  # a copy that is being made has no attributes yet
            raise AttributeError(name)
        return getattr(self.lgov_inner, name)

    def __repr__(self) -> str:
        return repr(self.lgov_inner)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __agents_bind_function_tool__(self, tool: FunctionTool) -> Any:
        """The callable of a copy of the tool: the SDK asks for it whenever it makes one."""
        inner = bind(self.lgov_inner, tool)
        return GovernedInvoker(tool, inner, self.lgov_acting, keeps=True) if self.lgov_keeps else inner

    def prepare_arguments(self, raw: str, tool_name: str) -> Any:
        """See the SDK's. Where only policies ask for an approval nothing is prepared: they judge what the schema yields."""
        prepares = callable(own_approval(self.lgov_tool))
        return self.lgov_inner.prepare_arguments(raw, tool_name) if prepares else None

    def __call__(self, context: Any, raw: str) -> Awaitable[Any]:
        """One governed call."""
        governor = self.lgov_acting()
        if governor is None:
            return self.lgov_inner(context, raw)
        if self.lgov_invoke is None:
            self.lgov_invoke = observe_errors(self.lgov_tool, self.lgov_inner, note_error)
        return govern_function(governor, self.lgov_tool, self.lgov_invoke, context, raw)


def approval_first(tool: FunctionTool, inner: Any, acting: GovernorOf, agent: Any = None) -> Any:
    """``FunctionTool.needs_approval``. Where a rule has the SDK carry its question, the policies judge the call here already.

    ``agent`` is whose call it is, if not of the one that acts in the current run.
    """
    inner, governor = getattr(inner, "lgov_inner", inner), acting()
    if governor is None or not any(carrying(governor.policies, tool.qualified_name)):
        return inner

    async def needs_approval(context: Any, parameters: Any, call_id: str) -> bool:
        own = bool(await awaited(inner(context, parameters, call_id)) if callable(inner) else inner)
        governor, name = acting(), call_name(call_id, tool.name, parameters)
        run = None if governor is None or not name else current_run(governor)
        if run is None:
            return own
        call = new_carried_call(run, tool, parameters, context, call_id, agent)
        return call.is_asked(await arun_flow(call.judge_flow())) or own

    needs_approval.lgov_inner = inner  # pyright: ignore[reportFunctionMemberAccess]
    return needs_approval


def own_approval(tool: FunctionTool) -> Any:
    """The approval that the program itself wants for the tool: a bool, or a function."""
    stored = vars(tool)["needs_approval"]
    return getattr(stored, "lgov_inner", stored)


def settle_flow(run: SdkRun, state: Any) -> Flow[None]:
    """Puts the calls that interrupted a paused run to the policies again, and takes the answers across.

    Those that the run has an answer to come first, because that is for one call. A call that is interrupted again has a
    request that waits; any other the SDK runs, or tells the model why not. Raises `PolicyDenied` for an abort.
    """
    pending = [request for policy in carrying(run.governor.policies) for request in policy.pending()]
    open_calls = {call for request in pending for call in request.inquiry.calls}
    interruptions = [(item, *approval_of(state, item)) for item in state.get_interruptions()]
    for item, tool, status, words in sorted(interruptions, key=lambda each: each[2] is None):
        name = call_name(item.call_id, item.name, item.arguments)
        if tool is None or run.has_judged(name):  # the latter by the run of an agent around this one
            continue
        is_own = own_approval(tool) is not False
        if is_own and not any(carrying(run.governor.policies, tool.qualified_name)):
            continue
        arguments = read_arguments(item.arguments)
        if arguments is None or not name:  # denied when it runs
            if status is None and not is_own:
                state.approve(item)
            continue
        if status is not None:
            late = "" if name in open_calls or not status else "the request that this answers is not open any more"
            run.answers[name] = {"answer": "approve" if status else "reject", "reason": words, "late": late}
        call = new_carried_call(run, tool, arguments, item, item.call_id, item.agent)
        decision = yield from call.judge_flow()
        if decision.abort:
            raise PolicyDenied(decision)
        if status is not None or call.is_asked(decision):
            continue
        if decision.blocks:
            state.reject(item, rejection_message=decision.denial_message())
        elif not is_own or any(verdict.request for verdict in (decision, *decision.parts)):
            state.approve(item)


def is_governed(invoker: Any) -> bool:
    """Returns whether ``invoker`` is a `GovernedInvoker`, although it says that it is of another class."""
    return type(invoker) is GovernedInvoker


# ---------------------------------------------------------------------- custom, shell and patch tools

#: Describes a call of a tool: from the tool, its own callable, and the arguments of that.
Describe = Callable[..., Act]


def _governed(describe: Describe, tool: Any, inner: Any, acting: GovernorOf) -> Callable[..., Any]:
    async def call(*args: Any) -> Any:
        governor = acting()
        if governor is None:
            return await awaited(inner(*args))
        return await govern_act(governor, describe(tool, inner, *args))

    return call


def _custom(tool: Any, inner: Any, context: Any, text: str) -> Act:
    def run(arguments: Mapping[str, Any]) -> Any:
        return inner(context, arguments["input"])

    call_id = getattr(context, "tool_call_id", None)
    return Act(tool.name, "function", {"input": text}, call_id, context, run, read_output)


def _patch(tool: Any, method: Any, operation: Any) -> Act:
    fields = {name: getattr(operation, name, None) for name in ("type", "path", "diff", "move_to")}
    arguments = {name: value for name, value in fields.items() if value is not None}

    def run(permitted: Mapping[str, Any]) -> Any:
        for name, value in permitted.items():
            if fields.get(name) != value and name != "type":
                setattr(operation, name, value)
        return method(operation)

    def denied(text: str) -> ApplyPatchResult:
        return ApplyPatchResult(status="failed", output=text)

    def rewritten(result: Any, text: str) -> ApplyPatchResult:
        return ApplyPatchResult(status=getattr(result, "status", None), output=text)

    call_id = _PATCH_CALL.get()
    return Act(tool.name, "function", arguments, call_id, operation.ctx_wrapper, run, read_output, denied, rewritten)


class GovernedEditor:
    """``ApplyPatchTool.editor``, governed: each operation is an act."""

    def __init__(self, tool: Any, inner: Any, acting: GovernorOf) -> None:
        self.inner = inner
        for name in {"create_file", "update_file", "delete_file"} & set(dir(inner)):
            setattr(self, name, _governed(_patch, tool, getattr(inner, name), acting))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


#: The id of the ``apply_patch`` call whose operations run: the SDK gives it to the approval only.
_PATCH_CALL: contextvars.ContextVar[str | None] = contextvars.ContextVar("lgov_patch_call", default=None)


def _patch_approval(tool: Any, inner: Any, acting: GovernorOf) -> Any:
    """``ApplyPatchTool.needs_approval``, which notes the id of the call."""

    async def needs_approval(context: Any, operation: Any, call_id: str) -> bool:
        _PATCH_CALL.set(call_id)
        return bool(await awaited(inner(context, operation, call_id)) if callable(inner) else inner)

    return needs_approval


def _governed_invoker(tool: Any, inner: Any, acting: GovernorOf) -> Any:
    return inner if is_governed(inner) else GovernedInvoker(tool, inner, acting)


def _by(describe: Describe) -> Callable[[Any, Any, GovernorOf], Any]:
    return lambda tool, inner, acting: _governed(describe, tool, inner, acting)


#: The fields of tools that hold callables, and what governs each.
FIELDS: Mapping[type, Mapping[str, Callable[[Any, Any, GovernorOf], Any]]] = {
    FunctionTool: {"on_invoke_tool": _governed_invoker, "needs_approval": approval_first},
    CustomTool: {"on_invoke_tool": _by(_custom)},
    ShellTool: {"executor": governed_shell},
    LocalShellTool: {"executor": _by(local_shell_act)},
    ApplyPatchTool: {"editor": GovernedEditor, "needs_approval": _patch_approval},
}


def governed_tool(tool: Any, governor: Governor, agent: Any = None) -> Any:
    """A copy of ``tool`` whose calls are governed by ``governor``; a tool that runs elsewhere is returned as it is.

    The calls of those (hosted tools, computers) are governed with the model's. ``agent`` is whose tool it is.
    """

    def acting() -> Governor:
        return governor

    if isinstance(tool, FunctionTool):
        stored = vars(tool)["on_invoke_tool"]
        if is_governed(stored) and stored.lgov_acting() is governor:
            return tool
        copied = copy.copy(tool)
        copied.on_invoke_tool = GovernedInvoker(copied, vars(copied)["on_invoke_tool"], acting, keeps=True)
        copied.needs_approval = approval_first(copied, vars(copied)["needs_approval"], acting, agent)
        return copied
    fields = next((fields for cls, fields in FIELDS.items() if isinstance(tool, cls)), {})
    stored = {name: vars(tool)[name] for name in fields if vars(tool).get(name) is not None}
    if not stored or getattr(tool, "lgov_governor", None) is governor:
        return tool
    copied = copy.copy(tool)
    copied.lgov_governor = governor
    for name, inner in stored.items():
        setattr(copied, name, fields[name](copied, inner, acting))
    return copied
