"""A thread of LangGraph is a conversation."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from lgov_core.audit import AuditLog
from lgov_core.governor import Governor
from lgov_core.policies import load_policies
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedModelServer, call
from lgov_langchain import LgovMiddleware

POLICY = {
    "version": 1,
    "rules": [
        {"use": "allow"},
        {"name": "mail", "use": "provenance", "with": {"arguments": ["to"]}},
        {"name": "budget", "on": ["pre_tool_call"], "use": "cost", "with": {"max_calls": 2, "per": "conversation"}},
        {"name": "again", "use": "loop", "with": {"max_repeats": 2}},
    ],
}


@tool
def mail(to: str) -> str:
    """Sends a mail."""
    return f"sent to {to}"


def test_threads_that_share_a_rollout_are_conversations_of_their_own(tmp_path):
    audit = AuditLog(tmp_path / "audit.db")
    governor = Governor(load_policies(POLICY), audit=audit)
    with ScriptedModelServer([call("mail", to="bob@example.org"), "done"] * 7) as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="k")
        agent = create_agent(model, [mail], middleware=[LgovMiddleware(governor)], checkpointer=InMemorySaver())

        def says(text: str, thread: str) -> str:
            config = {"configurable": {"thread_id": thread}}
            return agent.invoke({"messages": [("user", text)]}, config)["messages"][-2].text

        with enter_scope(RolloutScope("r-1")):
            assert says("Write to bob@example.org", "ada") == "sent to bob@example.org"
            assert "was not given by the user" in says("Write to Bob", "eve")
            assert says("Again", "ada") == "sent to bob@example.org"
            assert "The budget of this conversation does not reach" in says("And again", "ada")
            assert says("Write to bob@example.org", "eve") == "sent to bob@example.org"
        with enter_scope(RolloutScope("r-2")):
            assert "was not given by the user" in says("Write to Bob", "ada"), (
                "another rollout has a thread of that name"
            )
        with enter_scope(RolloutScope("r-3", session_id="own")):
            assert says("Write to bob@example.org", "ada") == "sent to bob@example.org"
    sessions = {(entry.rollout_id, entry.session_id) for entry in audit.entries() if entry.kind == "decision"}
    assert sessions == {("r-1", "ada"), ("r-1", "eve"), ("r-2", "ada"), ("r-3", "own")}
    audit.close()
