"""Governs every LangChain agent of this process without touching its code.

`arm` does three things. Every agent made with ``create_agent`` from then on gets the middleware, outermost. The
callback handler watches every run. And ``BaseTool.run``/``arun``, through which every invocation of a tool goes,
becomes a backstop: a call that no governed agent has judged (a hand-made graph, a bare ``tool.invoke``, a reference
to ``create_agent`` taken before arming, middleware that rewrote the arguments) is judged there. What stays outside:
``tool.func(...)``, a tool class that overrides ``run`` itself, and code that undoes the patches. This is governance
of cooperating programs, not a sandbox.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib.metadata
import importlib.util
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lgov_core.errors import ArmError
from lgov_core.types import Action, Decision, Effect

if TYPE_CHECKING:
    from lgov_core.governor import Governor

#: The versions that the tests run against.
TESTED = {"langchain": ">=1.4,<2", "langchain-core": ">=1.7,<2", "langgraph": ">=1.2,<2"}


@dataclass(frozen=True, slots=True)
class _Armed:
    """The governor of this process, and how to undo each patch."""

    governor: Governor
    undo: tuple[Callable[[], None], ...]


class _Process:
    """Arming is a property of the process, so this is its one piece of state; changed only under ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.armed: _Armed | None = None
        self.governor: Governor | None = None
        self.handler_installed = False


_PROCESS = _Process()
_PROBE: contextvars.ContextVar[Governor | None] = contextvars.ContextVar("lgov_langchain_probe", default=None)


def acting_governor() -> Governor | None:
    """The governor that the patches ask: that of a self-test that is running, else the armed one, else None."""
    return _PROBE.get() or _PROCESS.governor


def arm(governor: Governor) -> None:
    """Makes every LangChain agent and tool of this process governed by ``governor``, and proves it by a self-test.

    Arming again with the same governor changes nothing. Warns about framework versions outside the tested range.
    Raises `ArmError` if LangChain is missing, if another governor is armed already, or if the self-test finds a way
    around; then nothing stays patched and the process must not run agents.
    """
    with _PROCESS.lock:
        if _PROCESS.armed is not None:
            if _PROCESS.armed.governor is governor:
                return
            raise ArmError("LangChain is already governed by another governor", hint="call disarm() first")
        for problem in outside_tested_range(TESTED):
            warnings.warn(problem, stacklevel=2)
        undo: list[Callable[[], None]] = []
        try:
            _patch(undo)
            _PROCESS.governor = governor
            _self_test()
        except BaseException as error:
            _PROCESS.governor = None
            for step in reversed(undo):
                step()
            if isinstance(error, ArmError) or not isinstance(error, Exception):
                raise
            raise ArmError(
                f"LangChain cannot be governed here: {type(error).__name__}: {error}",
                hint=f"lgov is tested with {', '.join(f'{name}{range_}' for name, range_ in TESTED.items())}",
            ) from error
        _PROCESS.armed = _Armed(governor, tuple(undo))


def disarm() -> None:
    """Undoes `arm`. Agents made meanwhile keep their middleware; tools and new agents are no longer governed."""
    with _PROCESS.lock:
        armed, _PROCESS.armed, _PROCESS.governor = _PROCESS.armed, None, None
        if armed is not None:
            for step in reversed(armed.undo):
                step()


def outside_tested_range(
    tested: Mapping[str, str], version_of: Callable[[str], str] = importlib.metadata.version
) -> list[str]:
    """One sentence for each installed distribution whose version lies outside the range it was tested in."""
    from packaging.specifiers import SpecifierSet

    found: list[str] = []
    for name, tested_range in tested.items():
        try:
            version = version_of(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not SpecifierSet(tested_range).contains(version, prereleases=True):
            found.append(f"{name} {version} is outside the range lgov was tested with ({tested_range})")
    return found


# ---------------------------------------------------------------------- the patches


def _patch(undo: list[Callable[[], None]]) -> None:
    from langchain_core.tools import BaseTool

    from lgov_langchain.backstop import wrap_arun, wrap_run

    _replace(BaseTool, "run", wrap_run(BaseTool.run), undo)
    _replace(BaseTool, "arun", wrap_arun(BaseTool.arun), undo)
    if importlib.util.find_spec("langchain") is not None:
        import langchain.agents
        import langchain.agents.factory

        governed = _governed_create_agent(langchain.agents.factory.create_agent)
        _replace(langchain.agents.factory, "create_agent", governed, undo)
        _replace(langchain.agents, "create_agent", governed, undo)
    _install_handler()


def _replace(owner: Any, name: str, new: Any, undo: list[Callable[[], None]]) -> None:
    old = getattr(owner, name)
    setattr(owner, name, new)

    def restore() -> None:
        # Someone who wrapped our wrapper keeps it: without a governor it only passes calls through.
        if getattr(owner, name) is new:
            setattr(owner, name, old)

    undo.append(restore)


def _governed_create_agent(create_agent: Callable[..., Any]) -> Callable[..., Any]:
    from lgov_langchain.middleware import LgovMiddleware

    class ArmedLgovMiddleware(LgovMiddleware):
        """The middleware of the armed process; its own name lets it stand beside one that a program adds itself."""

    @functools.wraps(create_agent)
    def create_governed_agent(*args: Any, middleware: Any = (), **kwargs: Any) -> Any:
        governor = acting_governor()
        if governor is None:
            return create_agent(*args, middleware=middleware, **kwargs)
        # One that asks the same governor would judge everything twice; one that asks another has its own say.
        others = [one for one in middleware if not (isinstance(one, LgovMiddleware) and one.governor is governor)]
        return create_agent(*args, middleware=[ArmedLgovMiddleware(governor), *others], **kwargs)

    return create_governed_agent


def _install_handler() -> None:
    """Lets every LangChain run of the process, in every thread, be watched while the process is armed.

    LangChain cannot forget a configure hook, so it is registered once and its handler asks who is armed.
    """
    if _PROCESS.handler_installed:
        return
    from langchain_core.tracers.context import register_configure_hook

    from lgov_langchain.callback import LgovCallbackHandler
    from lgov_langchain.watching import ArmedCallbackHandler

    handler = ArmedCallbackHandler(acting_governor)
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("lgov_langchain_handler", default=handler)
    register_configure_hook(variable, inheritable=True, handle_class=LgovCallbackHandler)
    _PROCESS.handler_installed = True


# ---------------------------------------------------------------------- the proof


class _DenyEverything:
    name = "arming-self-test"
    bounded = True

    def judge(self, action: Action) -> Decision:
        return Decision(Effect.DENY, policy=self.name, reason="the self-test denies everything")


def _self_test() -> None:
    """Raises `ArmError` if a probe tool runs although a probe governor denies everything."""
    import pluggy
    from langchain_core.tools import StructuredTool

    from lgov_core import hookspecs
    from lgov_core.governor import Governor

    ran: list[str] = []

    def probe(text: str) -> str:
        ran.append(text)
        return text

    tool = StructuredTool.from_function(probe, name="lgov_probe", description="Must not run.")
    alone = pluggy.PluginManager(hookspecs.PROJECT)
    alone.add_hookspecs(hookspecs)
    denier = Governor(_DenyEverything(), manager=alone)

    def attempt() -> None:
        _PROBE.set(denier)
        tool.run({"text": "run"})
        tool.invoke({"name": "lgov_probe", "args": {"text": "invoke"}, "id": "probe", "type": "tool_call"})
        asyncio.run(tool.arun({"text": "arun"}))
        if "langchain" in sys.modules:
            _check_create_agent()

    _in_fresh_thread(attempt)
    denier.close()
    if ran:
        raise ArmError(f"a denied probe tool ran all the same ({', '.join(ran)})")


def _check_create_agent() -> None:
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import FakeListChatModel
    from langgraph.prebuilt import ToolNode

    agent = create_agent(FakeListChatModel(responses=[""]), [])
    tools = agent.nodes.get("tools")
    if tools is None or not isinstance(tools.bound, ToolNode):
        raise ArmError("an agent made with create_agent did not get the governing middleware")


def _in_fresh_thread(function: Callable[[], None]) -> None:
    """Runs ``function`` in a thread of its own, where no event loop is running, and raises what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread below
            raised.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="lgov-arming")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
