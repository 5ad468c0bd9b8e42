"""Each quickstart does what it says, typed as written."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from lgov_core.commands import cli
from lgov_core.testing import ScriptedModelServer, call
from tests.docs.page_runner import follow, page_text, read_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/start/quickstart.md"
STEPS = f"{PAGE}#Five steps"
BASE_URL = f"{PAGE}#Only a base URL"
TRAINING = ROOT / "docs/start/first-training.md"
#: The tabs of the page: the module of each, and the name of its framework for the command line.
TABS = {
    "LangChain": ("langchain", "langchain"),
    "AutoGen": ("autogen_agentchat", "autogen"),
    "OpenAI Agents SDK": ("agents", "openai-agents"),
    "openai client": ("openai", "openai"),
}
REFUND = [
    call("read_order", number=7),
    call("refund", number=7, euros=120),
    "I can't refund order 7 myself: a person decides on refunds.",
]
#: AutoGen warns of a server that does not reply with the dated name of OpenAI's model.
QUIET = {"PYTHONWARNINGS": "ignore:Resolved model mismatch"}


@pytest.mark.parametrize("tab", TABS)
def test_an_agent_is_put_under_policy_as_written(tab: str, tmp_path: Path) -> None:
    pytest.importorskip(TABS[tab][0])
    with ScriptedModelServer(REFUND) as model:
        environment = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none", **QUIET}
        printed = follow(STEPS, tmp_path, environment, tab=tab)
        assert "a person decides on refunds" in str(model.requests[2].body), "the model reads why"
    assert "PAID" not in printed[0]


def test_the_page_begins_with_what_its_steps_print() -> None:
    _, steps = read_page(STEPS)
    assert read_page(PAGE)[1][0] == steps[0]


def test_a_program_with_a_base_url_is_recorded_as_written(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ScriptedModelServer(["Jupiter."]) as model:
        replace = {"https://api.openai.com/v1": model.base_url, "127.0.0.1:8321": f"127.0.0.1:{port}"}
        environment = {"OPENAI_API_KEY": "none", "LGOV_PORT": str(port)}
        follow(BASE_URL, tmp_path, environment, replace)


def test_a_first_training_learns_as_written(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("openai")
    files, _ = read_page(TRAINING)
    example = ROOT / "examples/07_first_training"
    assert files == {name: (example / name).read_text() for name in files}, "the page is the example"
    (printed,) = follow(TRAINING, tmp_path, {"LGOV_CACHE": str(tmp_path / "cache")})
    first, last = map(float, re.findall(r"10 updates, training reward ([\d.]+) -> ([\d.]+)", printed)[0])
    assert last > first + 0.05


@pytest.mark.parametrize(("page", "tab"), [*((STEPS, tab) for tab in TABS), (BASE_URL, None), (TRAINING, None)])
def test_a_reader_types_five_things(page: Path | str, tab: str | None) -> None:
    text = page_text(page, tab)
    assert [line[:4] for line in text.splitlines() if line.startswith("**")] == [f"**{n}." for n in range(1, 6)]
    files, steps = read_page(page, tab=tab)
    assert len(files) + len(steps) + text.count("\npip install") == 5
    assert all(len(step.commands.splitlines()) == 1 for step in steps)


@pytest.mark.parametrize("tab", TABS)
def test_without_a_key_the_files_are_written(tab: str, tmp_path: Path) -> None:
    (names,) = re.findall(r"`lgov init --framework (\S+` \(or .*?)\)", page_text(STEPS, tab))
    framework = TABS[tab][1]
    assert framework in re.findall(r"[\w-]+", names)
    done = CliRunner().invoke(cli, ["init", "--framework", framework, str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert {"agent.py", "policy.yaml"} <= {path.name for path in tmp_path.iterdir()}
