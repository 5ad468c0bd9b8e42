"""The callables of tools, governed: each can be used like the one that it replaces."""

from __future__ import annotations

import contextvars
import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agents import ApplyPatchTool, CustomTool, FunctionTool, LocalShellTool, ShellTool
from agents.editor import ApplyPatchResult

from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.live_span import note_error
from lgov_openai_agents._internals import Invoke, bind, observe_errors
from lgov_openai_agents.tools import (
    Act,
    awaited,
    govern_act,
    govern_function,
    governed_shell,
    local_shell_act,
    read_output,
)

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

    def __call__(self, context: Any, raw: str) -> Awaitable[Any]:
        """One governed call."""
        governor = self.lgov_acting()
        if governor is None:
            return self.lgov_inner(context, raw)
        if self.lgov_invoke is None:
            self.lgov_invoke = observe_errors(self.lgov_tool, self.lgov_inner, note_error)
        return govern_function(governor, self.lgov_tool, self.lgov_invoke, context, raw)


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
    FunctionTool: {"on_invoke_tool": _governed_invoker},
    CustomTool: {"on_invoke_tool": _by(_custom)},
    ShellTool: {"executor": governed_shell},
    LocalShellTool: {"executor": _by(local_shell_act)},
    ApplyPatchTool: {"editor": GovernedEditor, "needs_approval": _patch_approval},
}


def governed_tool(tool: Any, governor: Governor) -> Any:
    """A copy of ``tool`` whose calls are governed by ``governor``; a tool that runs elsewhere is returned as it is.

    The calls of those (hosted tools, computers) are governed with the model's.
    """

    def acting() -> Governor:
        return governor

    if isinstance(tool, FunctionTool):
        stored = vars(tool)["on_invoke_tool"]
        if is_governed(stored) and stored.lgov_acting() is governor:
            return tool
        copied = copy.copy(tool)
        copied.on_invoke_tool = GovernedInvoker(copied, vars(copied)["on_invoke_tool"], acting, keeps=True)
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
