"""Has `watching`'s handler told of the calls that no other patch sees, where it is not told of everything.

Those are calls of plain text models, event streams of bare chat models, and models and tools whose class generates or runs
in its own way. Installed by `instrumentation` where nobody judges.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables.config import ensure_config

from lgov_langchain.graph_runs import standing_by
from lgov_langchain.watching import told

if TYPE_CHECKING:
    from collections.abc import Coroutine

#: Through which methods of a chat model or a tool its calls pass where they are seen.
_SEEN_IN = ("generate", "agenerate", "run", "arun")


def wrap_taking_callbacks(generate: Callable[..., Any]) -> Callable[..., Any]:
    """``generate`` or ``agenerate`` of plain text models."""

    @functools.wraps(generate)
    def told_generate(self: Any, prompts: Any, stop: Any = None, callbacks: Any = None, **options: Any) -> Any:
        several = isinstance(callbacks, list) and _are_several(callbacks)
        return generate(
            self, prompts, stop, [told(one) for one in callbacks] if several else told(callbacks), **options
        )

    return told_generate


def wrap_taking_config(stream: Callable[..., Any]) -> Callable[..., Any]:
    """A method that takes an input and a config, and begins its run with what is in there."""

    @functools.wraps(stream)
    def told_stream(self: Any, input: Any, config: Any = None, **options: Any) -> Any:
        return stream(self, input, _told_by(config), **options)

    return told_stream


def wrap_invoke(invoke: Callable[..., Any], base: type) -> Callable[..., Any]:
    """``invoke`` of ``base``: models or tools."""

    @functools.wraps(invoke)
    def told_invoke(self: Any, input: Any, config: Any = None, **options: Any) -> Any:
        with standing_by(config):
            return invoke(self, input, config if _is_seen(type(self), base) else _told_by(config), **options)

    return told_invoke


def wrap_ainvoke(ainvoke: Callable[..., Coroutine[Any, Any, Any]], base: type) -> Callable[..., Any]:
    """``ainvoke`` of ``base``."""

    @functools.wraps(ainvoke)
    async def told_ainvoke(self: Any, input: Any, config: Any = None, **options: Any) -> Any:
        with standing_by(config):
            return await ainvoke(self, input, config if _is_seen(type(self), base) else _told_by(config), **options)

    return told_ainvoke


def _told_by(config: Any) -> Any:
    whole = ensure_config(config)
    return {**whole, "callbacks": told(whole.get("callbacks"))}


def _are_several(callbacks: list[Any]) -> bool:
    """Whether these are the callbacks of each of several calls."""
    return any(one is None or isinstance(one, (list, BaseCallbackManager)) for one in callbacks[:1])


@functools.lru_cache(maxsize=256)
def _is_seen(kind: type, base: type) -> bool:
    return all(getattr(kind, name, None) is getattr(base, name, None) for name in _SEEN_IN)
