"""What a setting is: agents that know nothing of lgov, tasks, a reward, a policy, and a log to begin with."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lgov_core.policies import load_policy_file
from lgov_core.types import Action, Point

HERE = Path(__file__).parent
Message = Mapping[str, Any]
#: ``train``; ``values`` (forms of training, with values that training has none of); ``forms`` (forms and values that training
#: has none of); ``development`` (other new forms and values, half of them in forms of training: plans are chosen on these).
SPLITS = ("train", "values", "forms", "development")


@dataclass(frozen=True)
class Conversation:
    """Logged messages in OpenAI form, system message first, and the tools that the model was offered."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()


class World(Protocol):
    """What one seed's tasks are about. ``options`` go to the agents' runner (JSON values)."""

    options: Mapping[str, Any]

    def draw_task(self, chance: random.Random, split: str) -> Mapping[str, Any]:
        """A task (JSON values) of one of `SPLITS`."""
        ...

    def draw_log(self, chance: random.Random) -> Sequence[Conversation]:
        """One or several conversations of the imperfect log, about a training task."""
        ...

    def texts(self, chance: random.Random) -> Iterable[str]:
        """Further texts that the model will read: the tokenizer learns their words."""
        ...


@dataclass(frozen=True)
class Setting:
    """One of the documents' settings. ``agent`` names the function that runs it; ``score`` says what the task reward is.

    ``plans`` is by model what of a plan is its own, ``sizes`` what is its own with every model.
    """

    name: str
    title: str
    framework: str
    score: str
    trained: tuple[str, ...]
    agent: str
    policy: Path
    make_world: Callable[[Path, int, Mapping[str, Any]], World]
    frozen: tuple[str, ...] = ()
    plans: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    sizes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def function_tool(name: str, description: str, argument: str) -> Mapping[str, Any]:
    """A tool with one text argument, as its framework describes it to the model."""
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def call(name: str, **arguments: str) -> Message:
    """An assistant's message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_log", "type": "function", "function": function}],
    }


def result(text: str) -> Message:
    """What the tool answered."""
    return {"role": "tool", "tool_call_id": "call_log", "content": text}


def says(text: str) -> Message:
    """An assistant's message without a call."""
    return {"role": "assistant", "content": text}


def denial(policy: Path, tool: str, **arguments: str) -> str:
    """The text with which the policy denies a call. Raises `AssertionError` when it does not."""
    verdict = load_policy_file(policy).judge(Action(Point.PRE_TOOL_CALL, tool, arguments=arguments, rollout_id="log"))
    if not verdict.blocks:
        raise AssertionError(f"{policy} does not deny {tool} {arguments}")
    return verdict.denial_message()


def split_of(form: Any, held_out: Sequence[Any], development: Sequence[Any], kept_for: str) -> str | None:
    """The split of a question of ``form`` whose values are kept for ``train``, ``held_out`` or ``development``.

    None for a new form with values that are not kept for the same purpose: such questions are not asked.
    """
    if form in held_out:
        return "forms" if kept_for == "held_out" else None
    if form in development:
        return "development" if kept_for == "development" else None
    return "values" if kept_for == "held_out" else kept_for


def forms_of(
    chance: random.Random, split: str, every: Iterable[Any], held_out: Sequence[Any], development: Sequence[Any]
) -> Sequence[Any]:
    """The forms from which a question of ``split`` is drawn; new ones half of the time for ``development``."""
    if split == "forms":
        return held_out
    if split == "development" and chance.random() < 0.5:
        return development
    return [form for form in every if form not in held_out and form not in development]
