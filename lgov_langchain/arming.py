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
import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lgov_core.arming import Arming, Patches, in_fresh_thread
from lgov_core.errors import ArmError

if TYPE_CHECKING:
    from lgov_core.governor import Governor

#: The versions that the tests run against.
TESTED = {"langchain": ">=1.4,<2", "langchain-core": ">=1.7,<2", "langgraph": ">=1.2,<2"}

_ARMING = Arming("LangChain", TESTED)
#: LangChain cannot forget a configure hook, so the handler is registered once a process.
_HANDLER: list[Any] = []


def acting_governor() -> Governor | None:
    """The governor that the patches ask: that of a self-test that is running, else the armed one, else None."""
    return _ARMING.governor


def arm(governor: Governor) -> None:
    """Makes every LangChain agent and tool of this process governed by ``governor``, and proves it by a self-test.

    Arming again with the same governor changes nothing. Warns about framework versions outside the tested range.
    Raises `ArmError` if LangChain is missing, if another governor is armed already, or if the self-test finds a way
    around; then nothing stays patched and the process must not run agents.
    """
    _ARMING.arm(governor, _patch, _self_test)


def disarm() -> None:
    """Undoes `arm`. Agents made meanwhile keep their middleware; tools and new agents are no longer governed."""
    _ARMING.disarm()


# ---------------------------------------------------------------------- the patches


def _patch(patches: Patches) -> None:
    from langchain_core.tools import BaseTool

    from lgov_langchain.backstop import wrap_arun, wrap_run

    patches.replace(BaseTool, "run", wrap_run(BaseTool.run))
    patches.replace(BaseTool, "arun", wrap_arun(BaseTool.arun))
    if importlib.util.find_spec("langchain") is not None:
        import langchain.agents
        import langchain.agents.factory

        governed = _governed_create_agent(langchain.agents.factory.create_agent)
        patches.replace(langchain.agents.factory, "create_agent", governed)
        patches.replace(langchain.agents, "create_agent", governed)
    _install_handler()


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
    if _HANDLER:
        return
    from langchain_core.tracers.context import register_configure_hook

    from lgov_langchain.callback import LgovCallbackHandler
    from lgov_langchain.watching import ArmedCallbackHandler

    handler = ArmedCallbackHandler(acting_governor)
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("lgov_langchain_handler", default=handler)
    register_configure_hook(variable, inheritable=True, handle_class=LgovCallbackHandler)
    _HANDLER.append(handler)


# ---------------------------------------------------------------------- the proof


def _self_test() -> None:
    """Raises `ArmError` if a probe tool runs although a probe governor denies everything."""
    from langchain_core.tools import StructuredTool

    ran: list[str] = []

    def probe(text: str) -> str:
        ran.append(text)
        return text

    tool = StructuredTool.from_function(probe, name="lgov_probe", description="Must not run.")

    def attempt() -> None:
        with _ARMING.denying_everything():
            tool.run({"text": "run"})
            tool.invoke({"name": "lgov_probe", "args": {"text": "invoke"}, "id": "probe", "type": "tool_call"})
            asyncio.run(tool.arun({"text": "arun"}))
            if "langchain" in sys.modules:
                _check_create_agent()

    in_fresh_thread(attempt)
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
