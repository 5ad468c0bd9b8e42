"""A process that serves several people is one rollout, in which the window tells their conversations apart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lgov_core.store import open_store
from lgov_core.store.pages import Filters
from lgov_core.testing import ScriptedModelServer, ScriptedReply, call
from lgov_core.views.agent_runs import run_page
from tests.docs.page_runner import CLEAN

LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")
POLICY = """
version: 1
rules:
  - name: to-the-desk
    tools: [send_mail]
    use: deny
    when: {field: arguments.to, eq: eve@example.org}
    with: {reason: only to the desk}
  - {name: rest, use: allow}
"""
#: Two people in turn, and the first again, in one process.
TOOL = '''
def send_mail(to: str) -> str:
    """Sends a mail."""
    return "sent"
'''
LANGCHAIN = f"""
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
{TOOL}
agent = create_agent("openai:gpt-5-mini", [send_mail], checkpointer=InMemorySaver())
for user, text in [("ann", "I am Ann"), ("ben", "I am Ben"), ("ann", "Ann again")]:
    agent.invoke({{"messages": [("user", text)]}}, {{"configurable": {{"thread_id": user}}}})
"""
WITHOUT_THREADS = f"""
from langchain.agents import create_agent
{TOOL}
agent, kept = create_agent("openai:gpt-5-mini", [send_mail]), {{"ann": [], "ben": []}}
for user, text in [("ann", "I am Ann"), ("ben", "I am Ben"), ("ann", "Ann again")]:
    kept[user] = agent.invoke({{"messages": [*kept[user], ("user", text)]}})["messages"]
"""
AGENTS_SDK = f"""
from agents import Agent, Runner, SQLiteSession, function_tool, set_default_openai_api, set_tracing_disabled
set_tracing_disabled(True)
set_default_openai_api("chat_completions")
{TOOL}
agent = Agent("desk", model="gpt-5-mini", tools=[function_tool(send_mail)])
sessions = {{"ann": SQLiteSession("ann"), "ben": SQLiteSession("ben")}}
for user, text in [("ann", "I am Ann"), ("ben", "I am Ben"), ("ann", "Ann again")]:
    Runner.run_sync(agent, text, session=sessions[user])
"""
OPENAI = f"""
import asyncio, json
from openai import AsyncOpenAI
client, kept = AsyncOpenAI(), {{"ann": [], "ben": []}}
{TOOL}
schema = {{"type": "object", "properties": {{"to": {{"type": "string"}}}}}}
tool = {{"type": "function", "function": {{"name": "send_mail", "parameters": schema}}}}

async def chat(user, text):
    messages = kept[user]
    messages.append({{"role": "user", "content": text}})
    while True:
        response = await client.chat.completions.create(model="gpt-5-mini", messages=messages, tools=[tool])
        reply = response.choices[0].message
        messages.append(reply)
        if not reply.tool_calls:
            return
        for call in reply.tool_calls:
            sent = send_mail(**json.loads(call.function.arguments))
            messages.append({{"role": "tool", "tool_call_id": call.id, "content": sent}})

async def main():
    await asyncio.gather(chat("ann", "I am Ann"), chat("ben", "I am Ben"))
    await chat("ann", "Ann again")

asyncio.run(main())
"""


def mailer(body: Mapping[str, Any]) -> ScriptedReply | str:
    """Sends a mail to whoever asks, then answers with the last text of the user."""
    said = [message["content"] for message in body["messages"] if message["role"] == "user"]
    if body["messages"][-1]["role"] == "tool" or len(said) > 1:
        return f"Answer to: {said[-1]}"
    return call("send_mail", to="eve@example.org" if "Ben" in said[0] else "the desk")


@pytest.fixture
def runs_of(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs a program under `lgov run` and returns the window's rows of its runs."""

    def run(program: str, **filters: str) -> list[dict[str, Any]]:
        (tmp_path / "policy.yaml").write_text(POLICY)
        (tmp_path / "app.py").write_text(program)
        with ScriptedModelServer(mailer) as model:
            environment = {
                **CLEAN, "OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none", "PYTHONWARNINGS": "ignore",
            }  # fmt: skip
            command = [*LGOV, "run", "--store", "traces.sqlite", "--", "python", "app.py"]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with closing(open_store(tmp_path / "traces.sqlite")) as store:
            return run_page(store, Filters(**filters), None, 20, {})["items"]

    return run


@pytest.mark.parametrize(
    ("package", "program", "names"),
    [
        ("langchain", LANGCHAIN, ["ben", "ann"]),
        ("langchain", WITHOUT_THREADS, ["from turn 3", "from turn 1"]),
        ("agents", AGENTS_SDK, ["ben", "ann"]),
        ("openai", OPENAI, None),
    ],
    ids=["thread", "messages", "session", "interleaved"],
)
def test_two_people_in_one_process_have_a_row_each(
    runs_of: Callable[..., list[dict[str, Any]]], package: str, program: str, names: list[str] | None
) -> None:
    pytest.importorskip(package)
    (row,) = runs_of(program)
    conversations = row["conversations"]
    if names is not None:
        assert [part["conversation"] for part in conversations] == names
    shown = {
        part["asked"]["text"]: (part["answered"]["text"], part["turns"], part["tool_calls"], part["denials"])
        for part in conversations
    }
    assert shown == {
        "I am Ann": ("Answer to: Ann again", 3, 1, 0),
        "I am Ben": ("Answer to: I am Ben", 2, 1, 1),
    }
