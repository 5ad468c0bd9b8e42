"""Governs every LangChain agent of this process without touching its code.

Every agent made with ``create_agent`` from then on gets the middleware, outermost. ``BaseTool.run`` and ``arun``, which every
invocation of a tool passes, evaluate the calls that no middleware has evaluated (a hand-made graph, a bare ``tool.invoke``, a
reference to ``create_agent`` taken before, middleware that changed the arguments); where ``BaseChatModel`` generates or
streams, the same is done for model calls. A callback handler observes every run, for the spans of agents. With a governor
that has no evaluators (``observe_only``) all of it works the same and allows everything. What is not governed is declared in
`plugin`. This is governance of cooperating programs, not a sandbox.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lgov_core.instrumentation.framework import Patches
from lgov_langchain.current_governor import INSTRUMENTOR, acting_governor

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor


def instrument(governor: Governor) -> None:
    """Makes every LangChain agent, model and tool of this process governed by ``governor``, and proves it by a self-test.

    Raises `InstrumentationError` if LangChain is missing, and as `Instrumentor.instrument` does.
    """

    def prove() -> None:
        from lgov_langchain.self_test import self_test

        self_test(INSTRUMENTOR)

    INSTRUMENTOR.instrument(governor, _patch, prove)


def uninstrument() -> None:
    """Undoes `instrument`. Agents made meanwhile stay governed; tools, models and new agents are not governed any more."""
    INSTRUMENTOR.uninstrument()


def _patch(patches: Patches) -> None:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

    from lgov_langchain import chat_models
    from lgov_langchain import tools as base_tools
    from lgov_langchain.process_handler import process_handler

    for name in ("run", "arun"):
        patches.replace(BaseTool, name, base_tools.wrap_run(getattr(BaseTool, name)))
    for name in ("generate", "agenerate"):
        patches.replace(BaseChatModel, name, chat_models.wrap_generate(getattr(BaseChatModel, name)))
    for name in ("stream", "astream"):
        patches.replace(BaseChatModel, name, chat_models.wrap_stream(getattr(BaseChatModel, name)))
    if importlib.util.find_spec("langchain") is not None:
        import langchain.agents
        import langchain.agents.factory

        governed = _governed_create_agent(langchain.agents.factory.create_agent)
        patches.replace(langchain.agents.factory, "create_agent", governed)
        patches.replace(langchain.agents, "create_agent", governed)
    process_handler()


def _governed_create_agent(create_agent: Callable[..., Any]) -> Callable[..., Any]:
    from lgov_langchain.middleware import InnermostMiddleware, InstrumentedLgovMiddleware, LgovMiddleware

    @functools.wraps(create_agent)
    def create_governed_agent(*args: Any, middleware: Any = (), **kwargs: Any) -> Any:
        governor = acting_governor()
        if governor is not None:
            # One of the same governor would evaluate everything twice; one of another governor evaluates on its own.
            others = [
                other for other in middleware if not (isinstance(other, LgovMiddleware) and other.governor is governor)
            ]
            last = [InnermostMiddleware(governor)] if any(map(_wraps_models, others)) else []
            middleware = [InstrumentedLgovMiddleware(governor), *others, *last]
        return create_agent(*args, middleware=middleware, **kwargs)

    return create_governed_agent


def _wraps_models(middleware: Any) -> bool:
    """Returns whether ``middleware`` is around model calls, and so may change them."""
    from langchain.agents.middleware import AgentMiddleware

    names = ("wrap_model_call", "awrap_model_call")
    return any(getattr(type(middleware), name, None) is not getattr(AgentMiddleware, name) for name in names)
