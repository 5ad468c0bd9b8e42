"""The code blocks of the document on training any agent, as they stand there: only names in import lines are changed.

    from agent_lightning import Client              from lgov_core import Client
    from agent_lightning.runtime import air         from lgov_core import air
    from langchain.agents import ... (AgentExecutor) from langchain_classic.agents import ...   where LangChain 1 moved it
    from langchain_anthropic import ChatAnthropic   from tests.pair.skill_imports import ChatAnthropic
    from autogen import ConversableAgent            unchanged
    from daytona import Daytona, ...                from tests.pair.skill_imports import Daytona, ... (lgov's sandboxes)

``ChatAnthropic`` wants the name of a model, which the document leaves out: the class imported here is the real one with a
name as its default. ``autogen`` is AG2, as in the document: AutoGen 0.4 and later (``autogen_agentchat``) has no
ConversableAgent. The server's port is that of the test's server. What the document leaves to its reader (a retriever, an
evaluation, agents of their own) is defined here; frameworks, clients, endpoint, model and training are real.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lgov_core import air
from lgov_core.reward import RuleSet
from lgov_core.server.local import serving
from lgov_core.server.training import TrainingServer
from lgov_core.transitions import build_transitions
from tests.gateway.taught import SYSTEM
from tests.pair.conftest import settings

IMPORTS = (
    (r"from agent_lightning\.runtime import", "from lgov_core import"),
    (r"from agent_lightning import", "from lgov_core import"),
    (r"from langchain\.agents import", "from langchain_classic.agents import"),
    (r"from langchain_anthropic import", "from tests.pair.skill_imports import"),
    (r"from daytona import", "from tests.pair.skill_imports import"),
)

BASIC = '''
from agent_lightning import Client

# 1. Define agent function
def my_agent(resource, task):
    """
    resource: Contains model_api endpoint
    task: Data from JSONL (task.question, task.ground_truth, etc.)
    """
    # Use resource.model_api for LLM calls
    answer = your_agent_logic(resource.model_api, task.question)

    # Return scalar reward
    reward = 1.0 if answer == task.ground_truth else 0.0
    return reward

# 2. Train
client = Client("http://localhost:8000")
client.upload_data("train.jsonl", test_file="test.jsonl")
result = client.train(my_agent, nworkers=4)
'''

LANGCHAIN = """
from langchain.agents import create_tool_calling_agent, AgentExecutor
from langchain_anthropic import ChatAnthropic

def langchain_agent(resource, task):
    # Use Lightning Server endpoint
    llm = ChatAnthropic(base_url=resource.model_api, api_key="not-used")

    # Your existing agent
    agent = create_tool_calling_agent(llm, tools, prompt)
    executor = AgentExecutor(agent=agent, tools=tools)

    result = executor.invoke({"input": task.question})
    reward = evaluate(result["output"], task.ground_truth)
    return reward

# Train
client.train(langchain_agent, nworkers=8)
"""

OPENAI = """
from openai import OpenAI

def openai_agent(resource, task):
    # Use Lightning Server endpoint
    client = OpenAI(base_url=resource.model_api, api_key="not-used")

    # Multi-turn RAG
    query = client.chat.completions.create(
        model="llama-3.2-3b",
        messages=[{"role": "user", "content": f"Query: {task.question}"}]
    ).choices[0].message.content

    docs = retriever.search(query)

    answer = client.chat.completions.create(
        model="llama-3.2-3b",
        messages=[{"role": "user", "content": f"Q: {task.question}\\nDocs: {docs}"}]
    ).choices[0].message.content

    reward = compute_f1(answer, task.ground_truth)
    return reward

client.train(openai_agent)
"""

AUTOGEN = """
from autogen import ConversableAgent

def autogen_agent(resource, task):
    config_list = [{
        "base_url": resource.model_api,
        "api_key": "not-used",
        "model": "llama-3.2-3b"
    }]

    assistant = ConversableAgent(
        name="assistant",
        llm_config={"config_list": config_list}
    )

    response = assistant.generate_reply(
        messages=[{"role": "user", "content": task.question}]
    )

    reward = evaluate(response, task.ground_truth)
    return reward

client.train(autogen_agent)
"""

MULTI_AGENT = """
def sql_multiagent(resource, task):
    llm = ChatAnthropic(base_url=resource.model_api)

    # Agent 1: SQL Writer (optimize ✓)
    sql = sql_writer_agent(llm, task.question)

    # Execute
    result = execute_sql(sql)

    # Agent 2: Checker (optimize ✓)
    is_valid = checker_agent(llm, sql, result)

    if not is_valid:
        # Agent 3: Rewriter (optimize ✓)
        sql = rewriter_agent(llm, sql, result)
        result = execute_sql(sql)

    # Answer generator (optimize ✓)
    answer = answer_agent(llm, result)

    reward = 1.0 if answer == task.ground_truth else 0.0
    return reward

# All LLM calls automatically optimized
client.train(sql_multiagent)
"""

AIR = """
from agent_lightning.runtime import air

# Define reward rules
@air.on_tool_success
def reward_tool_success(tool_name, output):
    return 0.3  # Partial reward

@air.on_tool_failure
def penalize_failure(tool_name, error):
    return -0.2  # Penalty

def agent_with_air(resource, task):
    # AIR automatically assigns intermediate rewards
    # based on tool execution status
    result = my_agent.run(resource.model_api, task)
    final_reward = evaluate(result, task.ground_truth)
    return final_reward
"""

CUSTOM_REWARD = """
def agent_with_custom_reward(resource, task):
    result = my_agent.run(resource.model_api, task)

    # Composite reward
    correctness = 1.0 if result.answer == task.ground_truth else 0.0
    efficiency = 1.0 / max(result.num_steps, 1)
    tool_success = result.successful_tools / max(result.total_tools, 1)

    reward = 0.7 * correctness + 0.2 * efficiency + 0.1 * tool_success
    return reward
"""

TASK = {"question": "How much?", "ground_truth": "Answer: 12"}


@pytest.fixture(scope="module")
def server(taught_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingServer]:
    chosen = settings(taught_folder, max_new_tokens=24, steps=1, batch_size=1, group_size=3, learning_rate=1e-5)
    with serving(chosen, tmp_path_factory.mktemp("run")) as server:
        yield server


@pytest.fixture
def names(server: TrainingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The reader's namespace, with the client of the first block in it, and their folder with the data."""
    from lgov_core import Client

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "not-used")  # the block on several agents takes it from here
    for name in ("train", "test"):
        Path(f"{name}.jsonl").write_text(json.dumps(TASK) + "\n")
    client = Client(server.url, quiet=True)
    client.upload_data("train.jsonl")
    return {"client": client, "__name__": "skill", "evaluate": evaluate, "compute_f1": evaluate}


def run(code: str, names: dict[str, Any], server: TrainingServer) -> Any:
    """Runs a block; returns the result of the training in it."""
    lines = code.splitlines()
    for number, line in enumerate(lines):
        for theirs, ours in IMPORTS:
            lines[number] = re.sub(rf"^{theirs}", ours, lines[number])
        lines[number] = lines[number].replace("http://localhost:8000", server.url)
        assert line == lines[number] or line.startswith("from ") or "Client(" in line
    results: list[Any] = []
    if "client" in names:
        train = names["client"].train
        names["client"] = SimpleNamespace(train=lambda *given, **more: results.append(train(*given, **more)))
    exec(compile("\n".join(lines), "<document>", "exec"), names)
    return results[0] if results else names.get("result")


def evaluate(said: Any, expected: str) -> float:
    if isinstance(said, list):  # of Anthropic's models an executor gives the blocks of the reply
        said = " ".join(str(block.get("text", "")) for block in said)
    words, wanted = set(str(said).split()), set(expected.split())
    return len(words & wanted) / len(wanted)


def recorded(server: TrainingServer, result: Any) -> dict[str, list[Any]]:
    """The calls of the last update's rollouts, by rollout."""
    rollouts = [one.rollout_id for one in server.store.rollouts() if one.input["mode"] == "train"][-3:]
    calls: dict[str, list[Any]] = {rollout_id: [] for rollout_id in rollouts}
    for call in server.store.calls(rollouts):
        assert call.prompt_ids
        assert call.response_ids
        assert call.logprobs
        calls[str(call.rollout_id)].append(call)
    assert result.updates == 1
    assert all(calls.values())
    return calls


def test_basic_training(server: TrainingServer, names: dict[str, Any]) -> None:
    from tests.pair.pair_agents import ask

    def your_agent_logic(model_api: str, question: str) -> str:
        return ask(SimpleNamespace(model_api=model_api), question)

    del names["client"]
    result = run(BASIC, names | {"your_agent_logic": your_agent_logic}, server)
    recorded(server, result)
    assert len(result.test_curves["reward"]) == 2


def langchain_tools() -> list[Any]:
    from langchain_core.tools import tool

    @tool
    def run_sql(query: str) -> str:
        """Run SQL on the company database."""
        with sqlite3.connect(":memory:") as connection:
            return str(connection.execute(query).fetchone()[0])

    run_sql.handle_tool_error = True
    return [run_sql]


def test_langchain(server: TrainingServer, names: dict[str, Any]) -> None:
    pytest.importorskip("langchain_classic", reason="AgentExecutor is in langchain-classic")
    from langchain_core.prompts import ChatPromptTemplate

    prompt = ChatPromptTemplate.from_messages(
        [("system", SYSTEM["content"]), ("human", "{input}"), ("placeholder", "{agent_scratchpad}")]
    )
    result = run(LANGCHAIN, names | {"tools": langchain_tools(), "prompt": prompt}, server)
    calls = recorded(server, result)
    assert {call.route for of_rollout in calls.values() for call in of_rollout} == {"messages"}
    # The model has learnt this conversation: it calls its tool, reads 12 and answers so, as a rule.
    longest = max(calls.values(), key=len)
    assert len(longest) >= 2
    assert result.curves["reward"][0] > 0


def test_openai(server: TrainingServer, names: dict[str, Any]) -> None:
    retriever = SimpleNamespace(search=lambda query: f"found for {query[:20]}")
    result = run(OPENAI, names | {"retriever": retriever}, server)
    assert all(len(of_rollout) == 2 for of_rollout in recorded(server, result).values())


def test_autogen(server: TrainingServer, names: dict[str, Any]) -> None:
    pytest.importorskip("autogen", reason="AG2 before 1.0 brings the module autogen")
    result = run(AUTOGEN, names, server)
    assert all(len(of_rollout) == 1 for of_rollout in recorded(server, result).values())


def test_several_agents(server: TrainingServer, names: dict[str, Any]) -> None:
    from tests.pair.skill_imports import ChatAnthropic

    def said(llm: Any, *messages: Any) -> str:
        return str(llm.invoke(list(messages)).text)

    stand_ins = {
        "ChatAnthropic": ChatAnthropic,  # which the block has from the one on LangChain
        "sql_writer_agent": lambda llm, question: said(llm, ("system", "Write SQL."), ("user", question)),
        "checker_agent": lambda llm, sql, result: "yes" in said(llm, ("system", "Check."), ("user", f"{sql} {result}")),
        "rewriter_agent": lambda llm, sql, result: said(llm, ("system", "Repair."), ("user", f"{sql} {result}")),
        "answer_agent": lambda llm, result: said(llm, ("user", str(result))),
        "execute_sql": lambda sql: f"no such table in {sql[:10]}",
    }
    result = run(MULTI_AGENT, names | stand_ins, server)
    assert all(len(of_rollout) in (3, 4) for of_rollout in recorded(server, result).values())


class LangChainAgent:
    """The reader's own agent: as they have it, but for the address of its model."""

    def run(self, model_api: str, task: Any) -> Any:
        from langchain.agents import create_agent
        from langchain_openai import ChatOpenAI

        model = ChatOpenAI(model="any", base_url=model_api, api_key="not-used", max_retries=0, timeout=60)
        agent: Any = create_agent(model, langchain_tools(), system_prompt=SYSTEM["content"])
        messages = agent.invoke({"messages": [("user", task.question)]}, {"recursion_limit": 8})["messages"]
        tools = [message for message in messages if message.type == "tool"]
        return Ran(str(messages[-1].text), len(messages), sum(one.status == "success" for one in tools), len(tools))


class Ran(str):
    """What an agent said, with what it did on the way."""

    def __new__(cls, answer: str, *_counts: int) -> Ran:
        return super().__new__(cls, answer)

    def __init__(self, answer: str, num_steps: int, successful_tools: int, total_tools: int) -> None:
        self.answer, self.num_steps = answer, num_steps
        self.successful_tools, self.total_tools = successful_tools, total_tools


def test_air(server: TrainingServer, names: dict[str, Any]) -> None:
    with air.scope(RuleSet()):
        run(AIR, names | {"my_agent": LangChainAgent()}, server)
        agent = names | {"my_agent": LangChainAgent()}
        run(AIR, agent, server)
        from lgov_core import Client

        result = Client(server.url, quiet=True).train(agent["agent_with_air"])
    calls = recorded(server, result)
    proposed = {tool_call: call for ones in calls.values() for call in ones for tool_call in call.tool_call_ids}
    earned = [one for one in server.store.rewards(list(calls)) if one.dimension == "air" and one.value == 0.3]
    # Each names the tool call that earned it, and lands on the model call that proposed it.
    assert earned
    assert all(reward.tool_call_id in proposed for reward in earned)
    data = build_transitions(server.store, list(calls))
    assert data.unassigned == ()
    of_call = {one.response_id: one.rewards for one in data.transitions}
    for reward in earned:
        assert of_call[proposed[str(reward.tool_call_id)].response_id]["air"] > 0
    # Shaped, as ever: what was paid on the way is taken back in the end.
    for rollout_id in calls:
        ones = [one.value for one in server.store.rewards([rollout_id]) if one.dimension == "air"]
        assert sum(ones) == pytest.approx(0.0)


def test_custom_reward(server: TrainingServer, names: dict[str, Any]) -> None:
    from lgov_core import Client

    own = names | {"my_agent": LangChainAgent()}
    run(CUSTOM_REWARD, own, server)
    result = Client(server.url, quiet=True).train(own["agent_with_custom_reward"])
    recorded(server, result)
    assert 0 < result.curves["reward"][0] <= 1
