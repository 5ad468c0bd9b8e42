"""A policy that asks a function at one point, and a governed client of a scripted model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai

from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.types import Action, Decision, Point
from lgov_openai import govern_client
from tests.cells import Seen
from tests.openai import openai_programs as programs

USER = {"role": "user", "content": "go"}


class Rule(BoundedPolicy):
    """Asks a function at one point; allows at the others."""

    name = "rule"

    def __init__(self, point: Point, judge: Callable[[Rule, Action], Decision | None]) -> None:
        self.point, self.asked = point, judge

    def judge(self, action: Action) -> Decision | None:
        if action.point is not self.point:
            return self.allow("fine") if action.point is Point.PRE_TOOL_CALL else None
        return self.asked(self, action) or self.allow("fine")


def denies(rule: Rule, action: Action) -> Decision:
    return rule.deny("no", "not here")


def hides(rule: Rule, action: Action) -> Decision | None:
    text = action.text or ""
    return rule.transform("hide", "hidden", text=text.replace("4711", "****")) if "4711" in text else None


class Served:
    def __init__(self, server: ScriptedModelServer, rule: Rule) -> None:
        self.server, self.rule, self.seen = server, rule, Seen()
        self.governor = Governor([rule], plugins=[self.seen], capture_content=True)
        self.client = govern_client(programs.client(server.base_url), self.governor)

    def chat(self, *messages: Any, **asked: Any) -> Any:
        return self.client.chat.completions.create(model="m", messages=list(messages) or [USER], **asked)

    @property
    def judged(self) -> list[Action]:
        """What was judged at the rule's point, as it came."""
        return [event.action for event in self.seen.decisions(self.rule.point)]

    def sent(self, number: int = -1) -> Any:
        body = self.server.requests[number].body
        return body.get("messages") or body["input"]


@contextmanager
def served(point: Point, judge: Any, *script: ScriptedReply) -> Iterator[Served]:
    with ScriptedModelServer(list(script)) as server:
        one = Served(server, Rule(point, judge))
        yield one
        one.governor.close()


def chat(client: openai.OpenAI, *messages: Any, **asked: Any) -> Any:
    return client.chat.completions.create(model="m", messages=list(messages) or [USER], **asked).choices[0].message
