"""Governors, policies and plugins for the tests of the governor."""

from __future__ import annotations

import asyncio
from typing import Any

from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.types import Action, Decision, Effect, Point


def governor(*plugins: object, **options: Any) -> Governor:
    return Governor(plugins=plugins, manager=make_plugin_manager(builtin=(), third_party=False), **options)


def call(**arguments: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, "run_sql", arguments=arguments, call_id="call_1")


class Says:
    """A plugin that gives one fixed answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Any:
        return self.answer(action) if callable(self.answer) else self.answer


ALLOW = Decision(Effect.ALLOW, "p", "fine")


DENY = Decision(Effect.DENY, "p", "no", "because")


def both(governor_: Governor, action: Action) -> list[Decision]:
    """The decision of the synchronous and of the asynchronous dispatcher."""
    return [governor_.decide(action), asyncio.run(governor_.adecide(action))]
