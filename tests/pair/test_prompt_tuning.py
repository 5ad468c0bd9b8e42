"""``lgov train --algorithm prompt``: a better template is found, over real HTTP with a scripted critic and a scripted model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lgov_core.commands import cli
from lgov_core.errors import TrainError
from lgov_core.server.prompt import ChatCritic, between
from lgov_core.store import open_store
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.train.prompt_search import PromptCase, PromptSearch, Scored, placeholders

FIRST, BETTER = "Greet {name}.", "Greet {name} and say please."


def model(body: dict[str, Any]) -> str:
    """Does what it is asked, when it is asked nicely."""
    text = body["messages"][-1]["content"]
    return f"Hello {text.split()[1]}!" if "please" in text else "No."


class ScriptedCritic:
    """Criticises, and rewrites in a different way each time: most of it useless."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, body: dict[str, Any]) -> str:
        text = body["messages"][-1]["content"]
        self.asked.append(text)
        if "Say in at most three sentences" in text:
            return "It does not ask nicely."
        answers = (
            "I would rather not.",  # no template at all
            "<template>Greet someone, please.</template>",  # its placeholder is gone
            "<template>Greet {name}, {title}, please.</template>",  # one that nobody fills in
            "<template>Greet {name</template>",
            f"Here it is:\n<template>\n{BETTER}\n</template>\nGood luck.",
        )
        return answers[(len(self.asked) // 2 - 1) % len(answers)]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    names = ("Ada", "Bob", "Cyd", "Dan")
    path.write_text("".join(json.dumps({"name": name, "wanted": f"Hello {name}!"}) + "\n" for name in names))
    return path


def tuned(tmp_path: Path, tasks: Path, upstream: str, critic: str, **more: Any) -> Any:
    (tmp_path / "first.txt").write_text(FIRST + "\n")
    section = {
        "template": "first.txt", "name": "greeting", "critic_url": critic, "critic_model": "critic", "upstream": upstream,
        "rounds": 1, "beam": 1, "candidates": 5, "tasks": 2, **more,
    }  # fmt: skip
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"prompt": section, "runtime": {"nworkers": 2, "auto_instrumentation": False}}))
    arguments = [
        "train", str(config), "--algorithm", "prompt", "--agent", "tests.pair.prompt_agent:polite", "--tasks", str(tasks),
        "--test", str(tasks), "--folder", str(tmp_path / "run"), "--json",
    ]  # fmt: skip
    return CliRunner().invoke(cli, arguments)


def test_a_better_template_is_found_and_every_version_is_kept(tmp_path: Path, tasks: Path) -> None:
    critic = ScriptedCritic()
    with ScriptedModelServer(model) as upstream, ScriptedModelServer(critic) as judge:
        run = tuned(tmp_path, tasks, upstream.base_url, judge.base_url)
    assert run.exit_code == 0, run.output
    report = json.loads(run.stdout)
    assert report["score"] == [0.0, 1.0]
    assert report["held_out_score"] == [0.0, 1.0]
    assert report["dropped"] == {"empty_template": 1, "other_placeholders": 2, "cannot_be_filled_in": 1}
    assert report["critic_calls"] == 10
    # The first on 2 tasks, and again beside the new one, then both on the 4 held out.
    assert report["rollouts"] == 2 + 2 + 2 + 4 + 4
    folder = tmp_path / "run"
    versions = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    assert [(one["version"], one["parent"], one["score"], one["template"]) for one in versions] == [
        (0, None, 0.0, FIRST),
        (1, 0, 1.0, BETTER),
    ]
    assert versions[1]["criticism"] == "It does not ask nicely."
    assert (folder / "best.txt").read_text() == BETTER + "\n"
    shown = critic.asked[0]
    assert FIRST in shown
    assert "No." in shown  # what the model said stands in the cases
    with open_store(str(folder / "store.sqlite")) as store:  # every rollout is on record, with its calls
        assert len(list(store.calls())) == len(store.rollouts()) == report["rollouts"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"template": "nowhere.txt"}, "cannot be read"),
        ({"critic_url": None}, "there is no critic"),
        ({"rouns": 3}, "did you mean rounds"),
    ],
)
def test_what_is_missing_is_told_before_anything_is_run(tmp_path: Path, tasks: Path, more: Any, said: str) -> None:
    run = tuned(tmp_path, tasks, "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1", **more)
    assert run.exit_code != 0
    assert said in run.output
    assert not (tmp_path / "run" / "store.sqlite").exists()


def test_a_critic_that_is_not_there_ends_the_search_with_the_first_on_record(tmp_path: Path, tasks: Path) -> None:
    with ScriptedModelServer(model) as upstream:
        run = tuned(tmp_path, tasks, upstream.base_url, "http://127.0.0.1:9/v1")
    assert run.exit_code != 0
    assert "the critic at http://127.0.0.1:9/v1/chat/completions gave no answer" in run.output
    assert json.loads((tmp_path / "run" / "prompts.jsonl").read_text())["score"] == 0.0


@pytest.mark.parametrize("status", [302, 401, 500])
def test_a_critic_that_refuses_is_told(status: int) -> None:
    with ScriptedModelServer(lambda _: ScriptedReply("not for you", status=status)) as server:
        critic = ChatCritic(server.base_url, "critic", key="k", seed=0)
        with pytest.raises(TrainError, match=rf"the critic refused: {status} .*not for you"):
            critic.criticise("x", (), 0)


@pytest.mark.parametrize("address", ["critic.example/v1", "ftp://critic.example/v1", "http://critic.example:x/v1"])
def test_what_is_no_address_of_a_critic_is_told(address: str) -> None:
    with pytest.raises(TrainError, match="gave no answer"):
        ChatCritic(address, "critic", key=None, seed=0).criticise("x", (), 0)


class Letters:
    """Each rewriting is one letter longer; a template is worth its length."""

    def criticise(self, template: str, cases: Any, number: int) -> str:
        return f"too short, {number}"

    def rewrite(self, template: str, criticism: str) -> str:
        return template + "abc"[int(criticism[-1])]


def search(**more: Any) -> tuple[PromptSearch, list[str]]:
    scored: list[str] = []

    def score(template: str, tasks: Any) -> Scored:
        scored.append(template)
        return Scored(float(len(template)), (PromptCase({}, 1.0),) * len(tasks), len(tasks))

    given: dict[str, Any] = {"rounds": 3, "beam": 2, "candidates": 3, "draw": lambda number: [0, 1], **more}
    return PromptSearch("x", score=score, critic=Letters(), **given), scored


def test_the_best_go_on() -> None:
    found, _ = search()
    best = found.run()
    assert (len(best.template), best.round) == (4, 3)
    assert [len(one.template) for one in found.versions] == [1] + [2] * 3 + [3] * 6 + [4] * 6
    parents = {one.parent for one in found.versions if one.round == 3}
    assert len(parents) == 2


def test_no_more_rollouts_than_the_budget() -> None:
    found, scored = search(budget=9)
    found.run()
    assert len(scored) == 4  # two rollouts each: a fifth would make ten
    assert found.best.score is not None


def test_placeholders_and_marks() -> None:
    assert placeholders("{a} and {b} but not {{c}}") == {"a", "b"}
    with pytest.raises(TrainError, match="cannot be filled in"):
        placeholders("{a")
    assert between("<template>x</template> then <template>\ny\n</template>") == "y"
    assert between("<template>x") == between("x") == ""
