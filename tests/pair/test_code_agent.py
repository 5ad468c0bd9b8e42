"""The agent of examples/08_code_agent is trained by what its programs do in sandboxes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lgov_core import Client, sandbox
from lgov_core.client.agent_name import load_agent
from lgov_core.errors import InstrumentationError
from lgov_core.server.training import TrainingServer
from tests.pair.habits import habits_model

FOLDER = Path(__file__).parents[2] / "examples" / "08_code_agent"
QUESTION, ANSWER = "6 times 7?", "42"
PROGRAMS = ("print(42)", "print(41)", "print(42", "42 / 0")


@pytest.fixture
def no_box_no_test() -> None:
    box = sandbox.create()
    try:
        box.process.code_run("")
    except InstrumentationError as error:
        pytest.skip(str(error))
    finally:
        box.delete()


@pytest.mark.usefixtures("no_box_no_test")
def test_programs_that_print_the_answer_become_more_frequent(
    serve: Callable[..., TrainingServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    agent = load_agent(f"{FOLDER / 'rollout.py'}:code_agent")
    prompt = sys.modules.pop("main").PROMPT
    habits_model(QUESTION, PROGRAMS, system=prompt).save(tmp_path / "model")
    server = serve(tmp_path / "model", max_new_tokens=16, steps=4, batch_size=1, group_size=12, learning_rate=3e-4)
    client = Client(server.url, quiet=True)
    client.upload_data([{"question": QUESTION, "ground_truth": ANSWER}])
    result = client.train(agent, nworkers=3)
    rewards = {round(one.value, 6) for one in server.store.rewards()}
    assert rewards == {0.0, 0.3, 1.0}
    first, *_, last = result.curves["reward"]
    assert last > first + 0.2
