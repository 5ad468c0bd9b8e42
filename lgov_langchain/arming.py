"""Governs every LangChain agent of this process without touching its code.

`arm` does four things. Every agent made with ``create_agent`` from then on gets the middleware, outermost. A callback
handler watches every run. ``BaseTool.run``/``arun``, through which every invocation of a tool goes, becomes a backstop: a
call that no governed agent has judged (a hand-made graph, a bare ``tool.invoke``, a reference to ``create_agent`` taken
before arming, middleware that rewrote the arguments) is judged there. And so is, where ``BaseChatModel`` generates or
streams, every model call that none of them has judged. What stays outside is declared in `plugin`. This is governance of
cooperating programs, not a sandbox.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lgov_core.arming import Arming, Patches

if TYPE_CHECKING:
    from lgov_core.governor import Governor

#: The versions that the tests run against.
TESTED = {"langchain": ">=1.4,<1.6", "langchain-core": ">=1.7,<1.9", "langgraph": ">=1.2.11,<1.3"}

_ARMING = Arming("LangChain", TESTED)


def acting_governor() -> Governor | None:
    """The governor that the patches ask: that of a self-test that is running, else the armed one, else None."""
    return _ARMING.governor


def arm(governor: Governor) -> None:
    """Makes every LangChain agent, model and tool of this process governed by ``governor``, and proves it by a self-test.

    Arming again with the same governor changes nothing. Warns about framework versions outside the tested range.
    Raises `ArmError` if LangChain is missing, if another governor is armed already, or if the self-test finds a way
    around; then nothing stays patched and the process must not run agents.
    """

    def prove() -> None:
        from lgov_langchain.self_test import self_test

        self_test(_ARMING)

    _ARMING.arm(governor, _patch, prove)


def disarm() -> None:
    """Undoes `arm`. Agents made meanwhile keep their middleware; tools and new agents are no longer governed."""
    _ARMING.disarm()


def _patch(patches: Patches) -> None:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

    from lgov_langchain import backstop, chat_models
    from lgov_langchain.watching import watch_process

    patches.replace(BaseTool, "run", backstop.wrap_run(BaseTool.run))
    patches.replace(BaseTool, "arun", backstop.wrap_arun(BaseTool.arun))
    patches.replace(BaseChatModel, "generate", chat_models.wrap_generate(BaseChatModel.generate))
    patches.replace(BaseChatModel, "agenerate", chat_models.wrap_agenerate(BaseChatModel.agenerate))
    patches.replace(BaseChatModel, "stream", chat_models.wrap_stream(BaseChatModel.stream))
    patches.replace(BaseChatModel, "astream", chat_models.wrap_astream(BaseChatModel.astream))
    if importlib.util.find_spec("langchain") is not None:
        import langchain.agents
        import langchain.agents.factory

        governed = _governed_create_agent(langchain.agents.factory.create_agent)
        patches.replace(langchain.agents.factory, "create_agent", governed)
        patches.replace(langchain.agents, "create_agent", governed)
    watch_process()


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
