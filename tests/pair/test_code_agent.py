"""Code agents are trained by what their programs do in sandboxes: that of examples/08_code_agent, and the document's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Client, sandbox
from lgov_core.client.tasks import load_agent
from lgov_core.errors import InstrumentationError
from lgov_core.server.training import TrainingServer
from tests.pair.habits import habits_model
from tests.pair.skill_imports import ChatAnthropic
from tests.pair.test_skill_document import TASK, names, recorded, run, server  # noqa: F401 # pyright: ignore[reportUnusedImport]
from tests.slow import slow

FOLDER = Path(__file__).parents[2] / "examples" / "08_code_agent"
QUESTION, ANSWER = "6 times 7?", "42"
PROGRAMS = ("print(42)", "print(41)", "print(42", "42 / 0")

SANDBOX = """
from daytona import Daytona, DaytonaConfig, CreateSandboxFromSnapshotParams

def code_agent_with_sandbox(resource, task):
    # Create sandbox
    daytona = Daytona(DaytonaConfig(api_key=key))
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(language="python"))

    try:
        # Generate code
        llm = ChatAnthropic(base_url=resource.model_api)
        code = llm.invoke(f"Code for: {task.question}").content

        # Execute in sandbox
        result = sandbox.process.code_run(code)

        # Reward
        exec_reward = 0.3 if result.exit_code == 0 else 0.0
        correct_reward = 0.7 if result.result == task.ground_truth else 0.0
        return exec_reward + correct_reward
    finally:
        sandbox.delete()
"""


@pytest.fixture
def no_box_no_test() -> None:
    box = sandbox.create()
    try:
        box.process.code_run("")
    except InstrumentationError as error:
        pytest.skip(str(error))
    finally:
        box.delete()


@slow
@pytest.mark.usefixtures("no_box_no_test")
def test_programs_that_print_the_answer_become_more_frequent(
    serve: Callable[..., TrainingServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    agent = load_agent(f"{FOLDER / 'rollout.py'}:code_agent")
    prompt = sys.modules.pop("main").PROMPT
    habits_model(QUESTION, PROGRAMS, system=prompt).save(tmp_path / "model")
    trainer = serve(tmp_path / "model", max_new_tokens=16, steps=4, batch_size=1, group_size=12, learning_rate=3e-4)
    client = Client(trainer.url, quiet=True)
    client.upload_data([{"question": QUESTION, "ground_truth": ANSWER}])
    result = client.train(agent, nworkers=3)
    rewards = {round(one.value, 6) for one in trainer.store.rewards()}
    assert rewards == {0.0, 0.3, 1.0}
    first, *_, last = result.curves["reward"]
    assert last > first + 0.2


@pytest.mark.usefixtures("no_box_no_test")
def test_a_code_agent_in_a_sandbox(
    server: TrainingServer,  # noqa: F811
    names: dict[str, Any],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code_run = sandbox.Process.code_run
    done: list[sandbox.CodeExecution] = []

    def noted(process: sandbox.Process, code: str) -> sandbox.CodeExecution:
        done.append(code_run(process, code))
        return done[-1]

    monkeypatch.setattr(sandbox.Process, "code_run", noted)
    block = f"{SANDBOX}\nresult = client.train(code_agent_with_sandbox)"
    result = run(block, names | {"key": "not-used", "ChatAnthropic": ChatAnthropic}, server)
    recorded(server, result)
    assert len(done) == 3
    rewards = [0.3 * (one.exit_code == 0) + 0.7 * (one.result == TASK["ground_truth"]) for one in done]
    assert result.curves["reward"] == [pytest.approx(sum(rewards) / 3)]
