"""A server's users share one rollout, and models write the ids of tool calls anew: each conversation keeps its own calls."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from lgov_core.authoring.replay import RecordedAction, from_store, in_order
from lgov_core.scope import RolloutScope, current_scope, enter_scope
from lgov_core.store import open_store
from lgov_core.trace import semconv
from lgov_core.types import Action, Point, Span, ToolOutcome
from lgov_core.views.attempt_builder import read_attempt
from tests.authoring.recorded_acts import ActRecord
from tests.commands.cli_runner import LGOV, lgov

POLICY = """
version: 1
name: desk
default: deny
rules:
  - {name: tools, tools: [mail], use: allow}
  - {name: to-the-user's, tools: [mail], use: flow, with: {argument: to, allow: [user], deny: ["*"]}}
  - {name: budget, on: [pre_tool_call], use: cost, with: {max_calls: 2, per: conversation}}
"""
SERVER = """
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply


@tool
def mail(to: str) -> str:
    "Write a mail."
    return f"sent to {to}"


turns = [("ada/x", "mail ada@x.org", "ada@x.org"), ("bo/x", "mail bo@x.org", "ada@x.org"), ("bo/x", "and?", "bo@x.org"),
         ("ada/x", "also mail a2@x.org", "a2@x.org"), ("ada/y", "hello", "a2@x.org")]
script = []
for _, _, to in turns:
    script += [ScriptedReply("", [ScriptedCall("mail", {"to": to}, "call_0")]), "Done."]
with ScriptedModelServer(script) as model:
    agent = create_agent(
        ChatOpenAI(model="m", base_url=model.base_url, api_key="x"), [mail], checkpointer=InMemorySaver()
    )
    for thread, text, _ in turns:
        agent.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": thread}})
"""
#: Of each conversation the mails that it asked for, how they ended, and what was decided about each.
CALLS = {
    "ada/x": [("ada@x.org", "ok", ["allow"]), ("a2@x.org", "ok", ["allow"])],
    "bo/x": [("ada@x.org", "denied", ["deny"]), ("bo@x.org", "ok", ["allow"])],
    "ada/y": [("a2@x.org", "denied", ["deny"])],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / ".git").mkdir()
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "server.py").write_text(SERVER)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LGOV_")}
    command = [*LGOV, "run", "--policy", "policy.yaml", "--store", "runs.db", "--", "python", "server.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert "3 conversations shared one rollout" in done.stderr, done.stderr
    return folder


def test_a_conversation_shows_its_own_calls_decisions_and_results(run: Path) -> None:
    with closing(open_store(run / "runs.db")) as store:
        (rollout,) = store.rollouts()
        view = read_attempt(store, rollout.rollout_id)
    assert view.conversations == tuple(CALLS)
    for conversation, calls in CALLS.items():
        tools = [tool for step in view.part_of(conversation).steps for tool in step.tools]
        assert {tool.call_id for tool in tools} == {"call_0"}
        before = [[each.effect for each in tool.decisions if each.point == "pre_tool_call"] for tool in tools]
        to = [json.loads(tool.arguments)["to"] for tool in tools]
        assert list(zip(to, [tool.status for tool in tools], before, strict=True)) == calls
        sent = [tool.result for tool in tools if tool.status == "ok"]
        assert sent == [f"sent to {address}" for address, status, _ in calls if status == "ok"]
    assert view.loose_tools == ()


@pytest.mark.parametrize("source", ["runs.db", ".lgov/audit.db"])
def test_the_same_policy_changes_nothing_for_anybody(run: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    done = lgov("policy", "eval", "policy.yaml", source)
    assert "0 changed; 2 were blocked then, 2 would be now" in done.stdout
    assert done.exit_code == 0


def test_a_call_is_replayed_with_its_session_and_with_what_was_said_there(run: Path) -> None:
    with closing(open_store(run / "runs.db")) as store:
        acts = [act for act in from_store(store) if act is not None]
    said: dict[str | None, Sequence[str]] = {
        act.action.session_id: act.action.context["user_text"].split("\n") for act in acts
    }
    assert said == {
        "ada/x": ["mail ada@x.org", "also mail a2@x.org"],
        "bo/x": ["mail bo@x.org", "and?"],
        "ada/y": ["hello"],
    }


def test_a_policy_is_suggested_from_every_call_that_ran(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    done = lgov("policy", "suggest", "runs.db", "-o", "suggested.yaml")
    assert "it denies 0 of the 3 calls that it is made from" in done.output


@pytest.mark.parametrize(
    ("chat_of", "asker", "text"),
    [
        ("ada", "mallory", None),
        ("ada", None, "mail ada@x.org"),
        (None, "mallory", "mail ada@x.org"),
        ("ada", "ada", "mail ada@x.org"),
    ],
    ids=["of another", "asker without one", "said in none", "its own"],
)
def test_nobody_gets_the_words_of_another_conversation(
    chat_of: str | None, asker: str | None, text: str | None
) -> None:
    record = ActRecord()
    messages = json.dumps([{"role": "user", "content": "mail ada@x.org"}])
    attributes = {semconv.OPERATION: semconv.CHAT, semconv.INPUT_MESSAGES: messages}
    attributes |= {} if chat_of is None else {semconv.CONVERSATION_ID: chat_of}
    record.store.add_span(Span("chat", "s-ada", 0.0, 1.0, attributes, "r", 1))
    with enter_scope(RolloutScope("r", 1, session_id=asker)):
        mail = Action(Point.PRE_TOOL_CALL, "mail", arguments={"to": "ada@x.org"}, call_id="call_0")
        record.governor.record(ToolOutcome(mail, "ok", decision=record.governor.decide(mail)))
    (act,) = record.acts()
    assert act is not None
    assert (act.action.session_id, act.action.context.get("user_text")) == (asker, text)


@pytest.mark.parametrize(
    ("rollout", "sessions", "of_program"),
    [
        ("r", ["ada", "ada"], "ada"),
        ("r", ["ada", None], None),
        ("r", ["ada", "bo"], None),
        (None, ["ada", "ada"], None),
    ],
)
def test_a_program_has_the_session_that_every_action_of_its_rollout_has(
    rollout: str | None, sessions: list[str | None], of_program: str | None
) -> None:
    actions = [Action(Point.PRE_TOOL_CALL, "mail", rollout_id=rollout, session_id=session) for session in sessions]
    recorded = [RecordedAction(action, None, None, None, None) for action in actions]

    def session_in_force(_: RecordedAction) -> str | None:
        scope = current_scope()
        return None if scope is None else scope.session_id

    assert [session for _, session in in_order(recorded, print, session_in_force)] == [of_program] * 2
