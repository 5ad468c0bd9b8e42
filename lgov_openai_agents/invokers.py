"""The callables of tools, governed: each looks like the one it stands for and is judged when it is called."""

from __future__ import annotations

import contextvars
import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from agents import ApplyPatchTool, CustomTool, FunctionTool, LocalShellTool, ShellTool
from agents.tool import ShellCallOutcome, ShellCommandOutput, ShellResult

from lgov_openai_agents.tools import govern_act, govern_function

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor

GovernorOf = Callable[[], "Governor | None"]


class GovernedInvoker:
    """``FunctionTool.on_invoke_tool`` of ``tool``, governed by whoever ``acting`` answers; by nobody while it answers None.

    The SDK looks closely at this callable (its class, its signature, what it can prepare), so everything but the call
    itself is that of ``inner``.
    """

    #: The class of what it stands for: the SDK asks ``isinstance``, at every call. It stands in each instance.
    __class__ = None  # type: ignore[assignment]  # without a type here, which would be an annotation of each instance

    def __init__(self, tool: FunctionTool, inner: Any, acting: GovernorOf, *, keeps: bool = False) -> None:
        self.__dict__.update(
            __class__=type(inner), lgov_tool=tool, lgov_inner=inner, lgov_acting=acting, lgov_keeps=keeps
        )

    @property
    def __signature__(self) -> inspect.Signature:
        found: inspect.Signature | None = self.__dict__.get("lgov_signature")
        if found is None:  # the SDK asks at every call
            try:
                found = self.__dict__["lgov_signature"] = inspect.signature(self.__dict__["lgov_inner"])
            except (TypeError, ValueError) as error:
                raise AttributeError("__signature__") from error
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["lgov_inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["lgov_inner"], name, value)

    def __repr__(self) -> str:
        return repr(self.__dict__["lgov_inner"])

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __agents_bind_function_tool__(self, tool: FunctionTool) -> Any:
        """What a copy of the tool gets: the SDK asks for it whenever it makes one."""
        bind: Any = getattr(self.__dict__["lgov_inner"], "__agents_bind_function_tool__", None)
        inner = bind(tool) if callable(bind) else self.__dict__["lgov_inner"]
        if not self.__dict__["lgov_keeps"]:
            return inner
        return GovernedInvoker(tool, inner, self.__dict__["lgov_acting"], keeps=True)

    def __call__(self, context: Any, raw: str) -> Awaitable[Any]:
        """One governed call."""
        kept = self.__dict__
        governor = kept["lgov_acting"]()
        if governor is None:
            return kept["lgov_inner"](context, raw)
        return govern_function(governor, kept["lgov_tool"], kept["lgov_inner"], context, raw)


def is_governed(invoker: Any) -> bool:
    """Whether ``invoker`` is a `GovernedInvoker`, whatever it says of its class."""
    return type(invoker) is GovernedInvoker


def governed_custom(tool: Any, inner: Any, acting: GovernorOf) -> Any:
    """``CustomTool.on_invoke_tool``, governed; its one text is the argument ``input``."""

    async def on_invoke_tool(context: Any, given: str) -> Any:
        governor = acting()
        if governor is None:
            return inner(context, given)
        return await govern_act(
            governor,
            name=tool.name,
            kind="function",
            arguments={"input": given},
            call_id=getattr(context, "tool_call_id", None),
            context=context,
            run=lambda arguments: inner(context, arguments["input"]),
            refuse=lambda told: told,
        )

    async def call(context: Any, given: str) -> Any:
        result = await on_invoke_tool(context, given)
        return await result if inspect.isawaitable(result) else result

    return call


def governed_shell(tool: Any, inner: Any, acting: GovernorOf) -> Any:
    """``ShellTool.executor``, governed; its commands are the argument ``command``, a line each."""

    async def executor(request: Any) -> Any:
        governor = acting()
        if governor is None:
            result = inner(request)
            return await result if inspect.isawaitable(result) else result
        action = request.data.action
        command = "\n".join(action.commands)

        def run(arguments: Mapping[str, Any]) -> Any:
            if arguments["command"] != command:
                action.commands = [arguments["command"]]
            return inner(request)

        def refuse(told: str) -> ShellResult:
            outcome = ShellCallOutcome(type="exit", exit_code=126)
            return ShellResult(output=[ShellCommandOutput(stderr=told, outcome=outcome)])

        def rewrite(result: Any, text: str) -> Any:
            return ShellResult(output=[ShellCommandOutput(stdout=text)]) if isinstance(result, ShellResult) else text

        return await govern_act(
            governor,
            name=tool.name,
            kind="shell",
            arguments={"command": command},
            call_id=request.data.call_id,
            context=request.ctx_wrapper,
            run=run,
            refuse=refuse,
            rewrite=rewrite,
        )

    return executor


def governed_local_shell(tool: Any, inner: Any, acting: GovernorOf) -> Any:
    """``LocalShellTool.executor``, governed; its command is a list of words."""

    async def executor(request: Any) -> Any:
        governor = acting()
        if governor is None:
            result = inner(request)
            return await result if inspect.isawaitable(result) else result
        action = request.data.action
        given = {"command": list(action.command), "working_directory": action.working_directory}

        def run(arguments: Mapping[str, Any]) -> Any:
            if arguments["command"] != given["command"]:
                wanted = arguments["command"]
                action.command = [wanted] if isinstance(wanted, str) else list(wanted)
            return inner(request)

        return await govern_act(
            governor,
            name=tool.name,
            kind="shell",
            arguments={key: value for key, value in given.items() if value is not None},
            call_id=request.data.call_id,
            context=request.ctx_wrapper,
            run=run,
            refuse=lambda told: told,
        )

    return executor


#: The id of the ``apply_patch`` call whose operations run: the SDK gives it to the approval only.
PATCH_CALL: contextvars.ContextVar[str | None] = contextvars.ContextVar("lgov_patch_call", default=None)


class GovernedEditor:
    """``ApplyPatchTool.editor``, governed: each operation is an act of its own."""

    def __init__(self, tool: Any, inner: Any, acting: GovernorOf) -> None:
        self._tool = tool
        self._inner = inner
        self._acting = acting

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    async def create_file(self, operation: Any) -> Any:
        """Creates a file, if it may."""
        return await self._govern("create_file", operation)

    async def update_file(self, operation: Any) -> Any:
        """Changes a file, if it may."""
        return await self._govern("update_file", operation)

    async def delete_file(self, operation: Any) -> Any:
        """Deletes a file, if it may."""
        return await self._govern("delete_file", operation)

    async def _govern(self, method: str, operation: Any) -> Any:
        from agents.editor import ApplyPatchResult

        act: Any = getattr(self._inner, method)
        governor = self._acting()
        if governor is None:
            result = act(operation)
            return await result if inspect.isawaitable(result) else result
        given = {name: getattr(operation, name, None) for name in ("type", "path", "diff", "move_to")}
        given = {name: value for name, value in given.items() if value is not None}

        def run(arguments: Mapping[str, Any]) -> Any:
            for name, value in arguments.items():
                if given.get(name) != value and name != "type":
                    setattr(operation, name, value)
            return act(operation)

        def rewrite(result: Any, text: str) -> ApplyPatchResult:
            return ApplyPatchResult(status=getattr(result, "status", None), output=text)

        return await govern_act(
            governor,
            name=self._tool.name,
            kind="function",
            arguments=given,
            call_id=PATCH_CALL.get(),
            context=operation.ctx_wrapper,
            run=run,
            refuse=lambda told: ApplyPatchResult(status="failed", output=told),
            rewrite=rewrite,
        )


def patch_approval(tool: Any, inner: Any, acting: GovernorOf) -> Any:
    """``ApplyPatchTool.needs_approval``, which is the only place where the SDK says which call an operation belongs to."""

    async def needs_approval(context: Any, operation: Any, call_id: str) -> bool:
        PATCH_CALL.set(call_id)
        if not callable(inner):
            return bool(inner)
        needed: Any = inner(context, operation, call_id)
        return bool(await needed if inspect.isawaitable(needed) else needed)

    return needs_approval


def governed_tool(tool: Any, governor: Governor) -> Any:
    """A copy of ``tool`` whose calls are governed by ``governor``; tools that run elsewhere are given back as they are.

    The calls of those (hosted tools, computers) are governed with the model's.
    """

    def acting() -> Governor:
        return governor

    if isinstance(tool, FunctionTool):
        stored = vars(tool)["on_invoke_tool"]
        if is_governed(stored) and stored.__dict__["lgov_acting"]() is governor:
            return tool
        twin = copy.copy(tool)
        twin.on_invoke_tool = GovernedInvoker(twin, vars(twin)["on_invoke_tool"], acting, keeps=True)
        return twin
    if getattr(tool, "lgov_governor", None) is governor:
        return tool
    if isinstance(tool, CustomTool):
        twin = _marked(tool, governor)
        twin.on_invoke_tool = governed_custom(twin, vars(tool)["on_invoke_tool"], acting)
    elif isinstance(tool, ShellTool) and vars(tool)["executor"] is not None:
        twin = _marked(tool, governor)
        twin.executor = governed_shell(twin, vars(tool)["executor"], acting)
    elif isinstance(tool, LocalShellTool):
        twin = _marked(tool, governor)
        twin.executor = governed_local_shell(twin, vars(tool)["executor"], acting)
    elif isinstance(tool, ApplyPatchTool):
        twin = _marked(tool, governor)
        twin.editor = GovernedEditor(twin, vars(tool)["editor"], acting)
        twin.needs_approval = patch_approval(twin, vars(tool)["needs_approval"], acting)
    else:
        return tool
    return twin


def _marked(tool: Any, governor: Governor) -> Any:
    twin = copy.copy(tool)
    twin.__dict__["lgov_governor"] = governor
    return twin
