"""A toy task for a real agent: fetch the report from a desk with three drawers.

The report is in the front drawer. The side drawer is empty, and the sealed one the policy forbids. The model that the
agent begins with has learnt a log in which each drawer was opened equally often, so that it earns a third of what it
could and is denied a third of the time. What was really opened is on record in a file that the tool itself writes.

`fetch` is the agent, `taught_model` makes the model.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lgov_core.policies import load_policy_file
from lgov_core.types import Action, Point

DRAWERS = ("front", "side", "sealed")
SYSTEM = "Fetch the report."
POLICY = """
version: 1
name: desk
default: deny
rules:
  - name: drawers
    use: tool
    severity: high
    with:
      allow: [open_drawer]
      schemas:
        open_drawer:
          type: object
          properties: {drawer: {enum: [front, side]}}
          required: [drawer]
          additionalProperties: false
"""


def fetch(resource: Any, task: Any) -> float:
    """A LangChain agent with one tool. What it really opened it adds to the file ``task.opened``."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import ModelCallLimitMiddleware
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def open_drawer(drawer: str) -> str:
        """Open a drawer."""
        with Path(task.opened).open("a") as file:
            file.write(f"{drawer}\n")
        return "report" if drawer == "front" else "empty"

    model = ChatOpenAI(
        model=resource.model, base_url=resource.model_api, api_key=resource.api_key, max_retries=2, timeout=120
    )
    limit: Any = ModelCallLimitMiddleware(run_limit=2, exit_behavior="end")
    agent: Any = create_agent(model, [open_drawer], system_prompt=SYSTEM, middleware=[limit], name="clerk")
    messages = agent.invoke({"messages": [("user", task.say)]})["messages"]
    return float(any(message.type == "tool" and message.content == "report" for message in messages))


def say(number: int) -> str:
    return f"Report {number} please."


def denial(policy: Path) -> str:
    """What the model reads when it is denied, from the policy itself."""
    policy.write_text(POLICY)
    action = Action(Point.PRE_TOOL_CALL, "open_drawer", arguments={"drawer": "sealed"}, agent="clerk")
    verdict = load_policy_file(policy).judge(action)
    assert verdict.blocks
    return verdict.denial_message()


def taught_model(folder: Path, *, steps: int = 60) -> None:
    """Writes the model to ``folder``: a very small Llama that opens each drawer equally often, and then says done."""
    import torch

    from lgov_core.models import build_tiny
    from lgov_core.train.algorithms.algorithms import SupervisedConfig
    from lgov_core.train.algorithms.supervised import supervised
    from lgov_core.train.layout.rows import TrainRow

    torch.set_num_threads(1)
    denied = denial(folder.with_suffix(".yaml"))
    tools = [
        {
            "type": "function",
            "function": {
                "name": "open_drawer",
                "description": "Open a drawer.",
                "parameters": {"type": "object", "properties": {"drawer": {"type": "string"}}, "required": ["drawer"]},
            },
        }
    ]
    texts = [
        SYSTEM,
        *(say(number) for number in range(10)),
        *(f"@open_drawer {name}" for name in DRAWERS),
        "Done.",
        denied,
    ]
    # Heads of 32: vLLM's kernels for CPUs take no smaller ones.
    model = build_tiny(texts * 50, seed=0, hidden=64, layers=2, heads=2, intermediate=128, vocab_size=400)
    chance = random.Random(0)

    def conversation(drawer: str) -> Sequence[Mapping[str, Any]]:
        call = {"name": "open_drawer", "arguments": f'{{"drawer": "{drawer}"}}'}
        answer = {"front": "report", "side": "empty", "sealed": denied}[drawer]
        return [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": say(chance.randrange(100))},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "c", "name": "open_drawer", "content": answer},
            {"role": "assistant", "content": "Done."},
        ]

    def row(messages: Sequence[Mapping[str, Any]]) -> TrainRow:
        ids: list[int] = []
        mask: list[int] = []
        for turn, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt, reply = model.render(messages[:turn], tools), model.encode_reply(message, tools)
                assert prompt[: len(ids)] == ids
                mask += [*([0] * (len(prompt) - len(ids))), *([1] * len(reply))]
                ids = [*prompt, *reply]
        zeros = (0.0,) * len(ids)
        return TrainRow(tuple(ids), tuple(mask), zeros, zeros, zeros, 1.0)

    def draw(count: int) -> list[TrainRow]:
        return [row(conversation(DRAWERS[number % 3])) for number in range(count)]

    supervised(model.module, draw, SupervisedConfig(steps=steps, batch=12, learning_rate=8e-3))
    model.save(folder)
