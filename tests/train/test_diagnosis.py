"""What the doctor finds in runs that are broken on purpose, each in one way, and in one that is not."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from run_folders import PEEK, Rolled, RunFolder, sql

pytest.importorskip("pyarrow", reason='needs the extra "train"')

from lgov_core.commands import cli
from lgov_core.store import open_store
from lgov_core.trace import semconv
from lgov_core.train.diagnosis import RunFinding, examine
from lgov_core.train.diagnosis.checks import examine_evidence
from lgov_core.train.diagnosis.evidence import (
    Evidence,
    RecordedRollout,
    TrainedRollout,
    recorded_rollouts,
    tasks_trained_on,
    words,
)
from lgov_core.train.loop.figures import mean_interval
from lgov_core.train.sections import RuntimeSection, TrainingSection
from lgov_core.types import CapturedCall, Rollout, Span

Groups = Mapping[str, Sequence[Rolled]]
#: Half of each group succeeds.
MIXED = (Rolled(1.0), Rolled(0.0), Rolled(1.0), Rolled(0.0))


def groups(*rollouts: Sequence[Rolled], count: int = 8) -> dict[str, Sequence[Rolled]]:
    """Groups that take turns with the given rollouts."""
    return {f"task-{number}": rollouts[number % len(rollouts)] for number in range(count)}


def names(place: Path) -> list[str]:
    return [finding.name for finding in examine(place).findings]


def only(place: Path) -> RunFinding:
    report = examine(place)
    assert len(report.findings) == 1, report.findings
    assert not report.not_examined
    return report.findings[0]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def made(run: RunFolder, each: Groups, updates: int = 2) -> Path:
    for _ in range(updates):
        run.update(each)
    return run.folder


def test_a_healthy_run_has_no_finding(run: RunFolder) -> None:
    report = examine(made(run, groups(MIXED, MIXED, MIXED, (Rolled(1.0),) * 4), updates=4))
    assert (report.findings, dict(report.not_examined)) == ((), {})
    assert (report.updates, report.rollouts) == (4, 128)
    assert len(report.checked) == 31


def test_a_run_that_learns_has_no_finding(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", air=0.05)
    good, bad, denied = Rolled(1.0), Rolled(0.0), Rolled(0.0, sql(PEEK, "SELECT 1"))
    shown = ((denied, denied, bad, good), (denied, bad, good, good), (bad, good, good, good), (good, good, bad, good))
    for step, (group, entropy, kl) in enumerate(
        zip(shown, (0.23, 0.14, 0.1, 0.07), (0.0, 0.06, 0.2, 0.1), strict=True)
    ):
        run.update(groups(group, group, (good,) * 4), entropy=entropy, kl=kl, staleness=float(step > 0))
    report = examine(run.folder)
    assert (report.findings, dict(report.not_examined)) == ((), {})


def test_a_constant_reward(run: RunFolder) -> None:
    found = only(made(run, groups((Rolled(0.25),) * 4)))
    assert (found.name, found.figures["least"]) == ("reward-constant", 0.25)


def test_a_sparse_reward(run: RunFolder) -> None:
    every = groups((Rolled(0.0),) * 4, count=16)
    found = only(made(run, {**every, "task-0": (Rolled(1.0), *(Rolled(0.0),) * 3)}))
    assert found.name == "reward-sparse"
    assert found.rollouts == ("ro-00001", "ro-00065"), "those that earned something"


def test_groups_alike_by_the_task_reward_whatever_air_adds(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", air=0.05)
    asked_twice = sql("SELECT 1", "SELECT 2")
    solved = (Rolled(1.0), Rolled(1.0, asked_twice), Rolled(1.0), Rolled(1.0))
    failed = (Rolled(0.0), Rolled(0.0, asked_twice), Rolled(0.0), Rolled(0.0))
    assert names(made(run, groups(solved, failed))) == ["groups-alike", "advantages-from-air-alone"]
    run = RunFolder(tmp_path / "without")
    found = only(made(run, groups((Rolled(1.0),) * 4, (Rolled(0.0),) * 4)))
    assert (found.name, found.figures["groups_alike"]) == ("groups-alike", 16)


def test_advantages_from_air_alone(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", air=0.05)
    alike = (Rolled(1.0), Rolled(1.0, sql("SELECT 1", "SELECT 2")), Rolled(1.0), Rolled(1.0))
    found = only(made(run, groups(alike, alike, alike, MIXED)))
    assert found.name == "advantages-from-air-alone"
    assert found.figures == {"groups_with_advantages": 16, "groups_from_air_alone": 12}
    (named,) = re.findall(r"runtime\.(\w+)", found.advice)
    assert named in {one.name for one in fields(RuntimeSection)}, "a key of config.yaml"


def test_groups_that_differ_by_a_denial_have_no_advantages_from_air_alone(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", air=0.05)
    charged = (Rolled(1.0), Rolled(1.0, sql(PEEK, "SELECT 2")), Rolled(1.0), Rolled(1.0))
    assert names(made(run, groups(charged, charged, MIXED))) == []


def test_truncated_replies(run: RunFolder) -> None:
    found = only(made(run, groups((Rolled(1.0), Rolled(0.0, truncated=True)) * 2)))
    assert (found.name, found.figures["share"]) == ("replies-truncated", 0.25)
    assert found.rollouts[0] == "ro-00002"


@pytest.mark.parametrize("written", ['{"query": "SELECT', "SELECT 1", "[1]"])
def test_tool_calls_that_do_not_parse(run: RunFolder, written: str) -> None:
    found = only(made(run, groups((Rolled(1.0), Rolled(0.0, [written])) * 2)))
    assert (found.name, found.figures["share"]) == ("tool-calls-malformed", 0.5)


def test_entropy_that_collapses(run: RunFolder) -> None:
    for entropy in (0.4, 0.1, 0.02, 0.01):
        run.update(groups(MIXED), entropy=entropy)
    found = only(run.folder)
    assert (found.name, found.figures) == ("entropy-collapsed", {"first": 0.4, "last": 0.01})


def test_an_update_that_learnt_nothing_measured_no_entropy(run: RunFolder) -> None:
    for rows in (8, 8, 8, 0):
        run.update(groups(MIXED), entropy=0.4 if rows else 0.0, rows=rows)
    assert names(run.folder) == []


def test_a_kl_that_was_not_measured_is_said(run: RunFolder) -> None:
    for _ in range(2):
        run.update(groups(MIXED), kl=None)
    assert "training.kl_coef" in examine(run.folder).not_examined["kl-running-off"]


def test_a_kl_that_runs_off(run: RunFolder) -> None:
    for kl in (0.0, 0.1, 0.3, 0.9):
        run.update(groups(MIXED), kl=kl)
    assert only(run.folder).name == "kl-running-off"
    named = re.findall(r"training\.(\w+)", only(run.folder).advice)
    assert named == ["learning_rate", "kl_coef"], "keys of config.yaml"
    assert {*named} <= {one.name for one in fields(TrainingSection)}


def test_an_update_that_failed_by_its_kl(run: RunFolder) -> None:
    made(run, groups(MIXED))
    run.metrics.add(
        "failed_update", 3, {"error": "the policy is 7 nats a token from its reference, more than max_kl 5"}
    )
    found = only(run.folder)
    assert (found.name, found.figures["failed_updates"]) == ("kl-running-off", 1)
    run.update(groups(MIXED))
    assert names(run.folder) == [], "a later update was made"


def test_stale_weights(run: RunFolder) -> None:
    for step in range(6):
        run.update(groups(MIXED), staleness=float(step), staleness_max=step)
    assert only(run.folder).name == "weights-stale"


def test_another_model_that_samples(run: RunFolder) -> None:
    for _ in range(2):
        run.update(groups(MIXED), logprob_drift=0.35)
        run.update(groups(MIXED), logprob_drift=0.0, rows=0)  # made of nothing, and so measured nothing
    assert only(run.folder).name == "logprobs-differ"


def test_retokenisation_drift(run: RunFolder) -> None:
    found = only(made(run, groups((Rolled(1.0), Rolled(0.0, drift=True)) * 2)))
    assert (found.name, found.figures["share"]) == ("retokenisation-drift", 0.5)


def cheating(share: float) -> Groups:
    """Groups in which the given share of rollouts read the answer key, and those succeed."""
    count = round(8 * share)
    return groups((*(Rolled(1.0, sql(PEEK)),) * count, *(Rolled(0.0),) * (7 - count), Rolled(1.0)), count=4)


def test_task_reward_that_rises_by_executed_violations(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", shadow=True, denied=0.0)
    for share in (0.0, 0.25, 0.5, 0.75):
        run.update(cheating(share))
    found = only(run.folder)
    assert (found.name, found.severity) == ("violations-rising", "critical")
    assert (found.figures["first"], found.figures["last"]) == (0.0, 0.75)
    assert found.figures["task_first"] < found.figures["task_last"]


def test_violations_that_were_denied_are_not_executed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", denied=0.0)
    for share in (0.0, 0.25, 0.5, 0.75):
        run.update(cheating(share))
    assert names(run.folder) == []


def test_the_oracle_is_believed_before_the_policy(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    for share in (0.0, 0.25, 0.5, 0.75):
        run.update(cheating(share))
    lines = [{"rollout_id": f"ro-{number:05d}", "violated": number > 96} for number in range(1, 129)]
    (run.folder / "oracle.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert only(run.folder).name == "violations-rising"


def repeating(run: RunFolder) -> Path:
    """A run in which every rollout makes the same tool call again and again, more often from update to update."""
    for repeats in (1, 2, 3, 6):
        again = sql(*["SELECT 1"] * repeats)
        run.update(groups((Rolled(1.0, again), Rolled(0.0, again)) * 2))
    return run.folder


def test_tool_rewards_that_are_farmed(tmp_path: Path) -> None:
    found = only(repeating(RunFolder(tmp_path / "run", air=0.01)))
    assert (found.name, found.severity) == ("tool-rewards-farmed", "high"), "the task reward does not rise"
    assert (found.figures["first"], found.figures["last"]) == (0.0, 5.0)


def test_calls_that_are_repeated_for_nothing_farm_nothing(run: RunFolder) -> None:
    assert names(repeating(run)) == []


def test_a_few_rollouts_are_not_enough_for_a_finding(run: RunFolder) -> None:
    run.update({"task": (Rolled(1.0, truncated=True), Rolled(1.0))})
    report = examine(run.folder)
    assert report.findings == ()
    assert set(report.not_examined) == {"violations-rising", "tool-rewards-farmed"}
    assert len(report.checked) == 29


def test_a_store_without_a_run_is_examined_as_far_as_it_goes(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", shadow=True, denied=0.0)
    for share in (0.0, 0.25, 0.5, 0.75):
        run.update({f"{share}-{task}": group for task, group in cheating(share).items()})
    report = examine(run.folder / "store.sqlite")
    assert [finding.name for finding in report.findings] == ["violations-rising"]
    of_updates = {"entropy-collapsed", "kl-running-off", "weights-stale", "logprobs-differ"}
    of_updates |= {"no-model-call", "agents-raise", "rollouts-lost", "updates-too-large", "policy-collapsed"}
    of_updates |= {"prompts-too-long", "unknown-choice", "weights-frozen", "policy-unmoved", "no-progress"}
    assert set(report.not_examined) == {*of_updates, "test-tasks-trained-on"}


def test_held_out_rollouts_of_a_store_are_not_examined(run: RunFolder) -> None:
    place = made(run, groups((Rolled(0.25),) * 4)) / "store.sqlite"
    with closing(open_store(place)) as store:
        store.add_rollouts(
            [Rollout(f"measured-{number}", "held-out", "run", {"mode": "test"}) for number in range(600)]
        )
    assert names(place) == ["reward-constant"]


def test_a_run_folder_without_its_store_is_examined_as_far_as_it_goes(run: RunFolder) -> None:
    made(run, groups((Rolled(1.0), Rolled(0.0, truncated=True)) * 2))
    (run.folder / "store.sqlite").unlink()
    report = examine(run.folder)
    assert [finding.name for finding in report.findings] == ["replies-truncated"]
    assert "tool-calls-malformed" in report.not_examined


def lgov(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="lgov")


def test_the_command_names_findings_and_ends_with_1(run: RunFolder) -> None:
    made(run, groups((Rolled(0.25),) * 4))
    result = lgov("doctor", str(run.folder))
    assert result.exit_code == 1
    assert "high  reward-constant" in result.stdout
    assert "ro-00001" in result.stdout
    report = json.loads(lgov("doctor", str(run.folder), "--json").stdout)
    assert [finding["name"] for finding in report["findings"]] == ["reward-constant"]
    assert math.isclose(report["findings"][0]["figures"]["least"], 0.25)


def test_the_command_ends_with_0_where_nothing_is_found(run: RunFolder) -> None:
    made(run, groups(MIXED))
    assert lgov("doctor", str(run.folder)).exit_code == 0


def test_the_command_says_what_it_takes(tmp_path: Path) -> None:
    result = lgov("doctor", str(tmp_path))
    assert result.exit_code == 1
    assert "there is no run in" in result.stderr
    assert "name a folder with a metrics.jsonl" in result.stderr


def of_updates(*lines: dict[str, Any]) -> dict[str, RunFinding]:
    updates = [{"phase": "train", "step": step, "rows": 4, **line} for step, line in enumerate(lines, 1)]
    return {finding.name: finding for finding in examine_evidence("run", Evidence(updates)).findings}


@pytest.mark.parametrize(
    "name", ["no-model-call", "prompts-too-long", "agents-raise", "rollouts-lost", "unknown-choice"]
)
def test_how_rollouts_end_badly_is_a_finding_where_it_is_more_than_a_few(name: str) -> None:
    text = "5 of 8 rollouts ended so: 5 times KeyError: 'score' (agent.py, line 3)"
    lines = [{"rollouts": 8, "endings": {name: 5}, "warnings": {name: text}}] * 2
    found = of_updates(*lines)
    assert list(found) == [name]
    assert found[name].severity == "critical"
    assert found[name].sentence.startswith("10 ")
    shows_error = name in ("agents-raise", "rollouts-lost")
    assert ("5 times KeyError: 'score' (agent.py, line 3)" in found[name].sentence) is shows_error
    assert of_updates(*[{"rollouts": 64, "endings": {name: 1}}] * 2) == {}


def test_an_update_that_moves_the_policy_away_names_the_learning_rate() -> None:
    calm = {"moved": 0.02, "clip_fraction": 0.1, "learning_rate": 1e-3}
    assert of_updates(calm, calm) == {}
    found = of_updates({"moved": 8.5, "clip_fraction": 0.69, "learning_rate": 0.5}, calm)
    assert list(found) == ["updates-too-large"]
    assert "in update 1 by 8.5 nats a token, with 69% of its tokens clipped" in found["updates-too-large"].sentence
    assert "it was 0.5" in found["updates-too-large"].advice


def earning(mean: float, half: float = 0.1, entropy: float = 1.0, moved: float = 0.1) -> dict[str, Any]:
    """The line of an update whose rollouts earned ``mean`` ± ``half``."""
    returns = {"mean": mean, "low": mean - half, "high": mean + half, "count": 8}
    return {"rewards": {"return": returns}, "mean_return": mean, "reply_entropy": entropy, "moved": moved}


RISEN = [earning(0.2), earning(0.4), earning(0.6), earning(0.6)]


def collapsed(*lines: dict[str, Any]) -> bool:
    return "policy-collapsed" in of_updates(*lines)


def test_a_policy_whose_replies_no_longer_differ_and_earn_less_has_collapsed() -> None:
    found = of_updates(*RISEN, *[earning(0.1, entropy=0.05)] * 3)["policy-collapsed"]
    assert found.severity == "critical"
    assert "in the last 3 updates it earned 0.1, surely less than the 0.533 by update 4" in found.sentence
    assert "the entropy of its replies went from 1 to 0.05 nats a token" in found.sentence
    assert not collapsed(*RISEN, *[earning(0.1, entropy=0.05)] * 2), "too few to say"
    assert not collapsed(*RISEN, *[earning(0.6, entropy=0.05)] * 3), "it has learnt all there is"
    assert not collapsed(*RISEN, *[earning(0.43, half=0.01, entropy=0.05)] * 3), "it keeps most of what it had gained"


def test_a_policy_that_one_update_threw_far_away_and_that_earns_less_has_collapsed() -> None:
    thrown = [*RISEN[:3], earning(0.6, moved=2.0)]
    assert collapsed(*thrown, *[earning(0.1, entropy=3.0)] * 3), "its replies differ: they are noise"
    assert not collapsed(earning(0.2, moved=2.0), *RISEN[1:], *[earning(0.1)] * 3), "that was before it was at its best"
    assert not collapsed(*thrown, *[earning(0.1, half=0.9)] * 3), "it may be chance"


def test_rewards_that_are_rare_or_vary_with_the_tasks_are_no_collapse() -> None:
    chance = random.Random(0)
    for _ in range(40):
        rare = []
        for _ in range(60):
            shares = [sum(chance.random() < 0.04 for _ in range(8)) / 8 for _ in range(6)]
            interval = mean_interval(shares)
            rare.append(earning(interval.mean, interval.high - interval.mean))
        assert not any(collapsed(*rare[:count]) for count in (20, 40, 60))
    assert not collapsed(*[earning(0.9, half=0.02)] * 4, *[earning(0.1, half=0.02)] * 4), (
        "harder tasks, the same policy"
    )
    old = [{"mean_return": line["mean_return"], "groups_informative": 0} for line in [*RISEN, *[earning(0.0)] * 4]]
    assert not collapsed(*old), "a run that was recorded without these figures"


# ---------------------------------------------------------------------- rewards beside what was replied

ANSWERS = ("moo", "woof", "meow", "quack")


def rollouts_of(reward: Callable[[int, int, str], float], **fields: Callable[[int, int], Any]) -> list[str]:
    """The findings of 32 groups of 4 rollouts of 4 tasks. Of each group the first two replies hold the answer, the third is the
    same as the second. ``reward`` and ``fields`` (those of a `RecordedRollout`) are given group, rollout and reply.
    """
    recent: list[TrainedRollout] = []
    recorded: dict[str, RecordedRollout] = {}
    for group in range(32):
        for number in range(4):
            answer = ANSWERS[group % 4] if number < 3 else ANSWERS[(group + 1) % 4]
            reply = words(answer if number in (1, 2) else f"I think {answer}" + " indeed" * (group % 3))
            name, earned = f"ro-{group}-{number}", reward(group, number, reply)
            recent.append(TrainedRollout(name, (group // 4, f"task-{group % 4}"), {"task": earned}, (), None, 1, 0))
            values: dict[str, Any] = {
                "hidden": {"answer": words(ANSWERS[group % 4]), "level": " 3 "},
                "reply": reply, "first_reply": hash(reply), "chance": 0.3, "conversation": hash((group, reply)),
            }  # fmt: skip
            values |= {field: value(group, number) for field, value in fields.items()}
            recorded[name] = RecordedRollout(1, 0, 0, 0, False, 0, **values)
    return [found.name for found in examine_evidence("run", Evidence(recent=recent, recorded=recorded)).findings]


def right(group: int, number: int, reply: str) -> float:
    return float(number < 3)


def test_a_reward_for_the_answer_that_a_task_expects_has_no_finding() -> None:
    assert rollouts_of(right) == []


def test_advantages_of_a_critic_are_not_from_air_where_there_is_none() -> None:
    recent = [
        TrainedRollout(f"ro-{number}", (1, f"task-{number // 4}"), {"task": float(number % 8 > 3)}, (), True, 1, 0)
        for number in range(64)
    ]
    assert [found.name for found in examine_evidence("run", Evidence(recent=recent)).findings] == ["groups-alike"]


def test_a_reward_that_is_for_the_answer_in_part_has_no_finding() -> None:
    assert rollouts_of(lambda group, number, reply: 0.5 * (number < 3) + 0.5 * ("think" not in reply)) == []


@pytest.mark.parametrize(
    "reward",
    [
        lambda group, number, reply: -right(group, number, reply),
        lambda group, number, reply: float("think" in reply),
        lambda group, number, reply: float("indeed" in reply),
    ],
    ids=["negated", "for a form", "for a word"],
)
def test_a_reward_that_the_expected_answer_does_not_raise(reward: Callable[[int, int, str], float]) -> None:
    assert "reward-ignores-answer" in rollouts_of(reward)


def test_no_field_is_an_answer_that_replies_name_no_oftener_than_those_of_other_tasks() -> None:
    def reward(group: int, number: int, reply: str) -> float:
        return float(number == 3)

    def other(group: int, number: int) -> dict[str, str]:
        return {"id": words(ANSWERS[(group + number) % 4])}

    assert rollouts_of(reward, hidden=other) == []


def test_a_reward_that_differs_between_rollouts_with_the_same_conversation_is_random() -> None:
    assert "reward-random" in rollouts_of(lambda group, number, reply: float((group // 4 + number) % 2))
    assert "reward-random" not in rollouts_of(lambda group, number, reply: float(number < 3) + 0.01 * (number % 2))


def test_a_reward_that_follows_the_length_of_the_reply() -> None:
    assert "reward-follows-length" in rollouts_of(lambda group, number, reply: len(reply) / 10)
    assert "reward-follows-length" in rollouts_of(lambda group, number, reply: -len(reply.split()))
    assert "reward-follows-length" not in rollouts_of(
        lambda group, number, reply: right(group, number, reply) + len(reply) / 100
    )


def test_rewards_beside_which_all_others_are_the_same() -> None:
    assert rollouts_of(
        lambda group, number, reply: 500.0 if (group, number) == (3, 0) else right(group, number, reply)
    ) == ["reward-outliers"]


def test_groups_that_begin_with_the_same_tokens_though_these_were_not_certain() -> None:
    assert rollouts_of(right, first_reply=lambda group, number: group) == ["replies-equal"]
    assert rollouts_of(right, first_reply=lambda group, number: group, chance=lambda group, number: 0.99) == [], (
        "it has learnt"
    )


def test_a_policy_that_has_not_left_its_reference_after_ten_updates() -> None:
    still, moving = {"kl": 0.0, "learning_rate": 1e-8}, {"kl": 3e-5, "learning_rate": 1e-5}
    assert list(of_updates(*[still] * 9)) == []
    found = of_updates(*[still] * 10)["policy-unmoved"]
    assert found.figures == {"updates": 10, "kl": 0.0, "learning_rate": 1e-8}
    assert "policy-unmoved" not in of_updates(*[still] * 9, moving)
    assert "policy-unmoved" not in of_updates(*[{**still, "rows": 0}] * 20), "there was nothing to learn from"


def test_a_reward_that_hardly_any_rollout_earns_is_sparse_though_many_groups_have_one_that_does(run: RunFolder) -> None:
    failed, lucky = (Rolled(0.0),) * 16, (Rolled(1.0), *(Rolled(0.0),) * 15)
    every = groups(failed, lucky, count=8)
    assert only(made(run, every)).name == "reward-sparse"


@pytest.mark.parametrize(("failed", "named"), [(40, ["tools-fail"]), (36, [])])
def test_tools_of_which_nearly_every_call_fails(failed: int, named: list[str]) -> None:
    recent = [TrainedRollout(f"r{number}", (0, f"t{number}"), {}, (), None, 1, 0) for number in range(40)]
    recorded = {
        rollout.rollout_id: RecordedRollout(1, 1, 0, 0, False, 0, failed=int(number < failed))
        for number, rollout in enumerate(recent)
    }
    findings = examine_evidence("run", Evidence(recent=recent, recorded=recorded)).findings
    assert [finding.name for finding in findings] == named


def test_what_a_refused_call_was_told_is_no_result_of_its_tool() -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": "find", "arguments": json.dumps({"name": name})}}
        for name in "ab"
    ]
    request = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "which?"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": "gold: moo"},
            {"role": "tool", "tool_call_id": "b", "content": "Error: no name"},
        ],
    }
    said = {"role": "assistant", "content": "moo"}
    response = {"id": "c", "choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}
    call = CapturedCall("c", "m", request, response, (1,), (2,), (-0.1,), "stop", 0, 1.0, 1.0, 0.0, 1.0, "r", 1)
    attributes = {semconv.TOOL_STATUS: "invalid_args", semconv.TOOL_CALL_ID: "b"}
    span = Span("tool", "s", 0.0, 1.0, attributes, rollout_id="r", attempt=1)
    rollout = Rollout("r", "task", "run", {"task": {"answer": "moo"}})
    for spans, results in (((), [" gold moo ", " error no name "]), ((span,), [" gold moo "])):
        recorded = recorded_rollouts([rollout], [call], [], spans, {})["r"]
        assert list(recorded.lookups.values()) == results


def test_tools_that_hold_the_answer_whatever_they_are_asked() -> None:
    def leaking(group: int, number: int) -> dict[str, str]:
        return {f"find({number})": words(f"nothing found; gold: {ANSWERS[group % 4]}")}

    def searched(group: int, number: int) -> dict[str, str]:
        return {f"find({number})": words(ANSWERS[(group + number) % 4])}

    assert rollouts_of(right, lookups=leaking) == ["answers-leaked"]
    assert rollouts_of(right, lookups=searched) == [], "one of four questions brings the answer"


def test_weights_that_no_update_changes() -> None:
    step = {"grad_norm": 0.4, "learning_rate": 1e-3}
    assert list(of_updates(*[{**step, "weights_sha256": "a"}] * 3)) == ["weights-frozen"]
    assert of_updates(*[{**step, "weights_sha256": sha} for sha in "abc"]) == {}
    assert of_updates(*[{"grad_norm": 0.0, "learning_rate": 1e-3, "weights_sha256": "a"}] * 3) == {}, "nothing to learn"


@pytest.mark.parametrize(
    ("gain", "best", "updates", "found"),
    [(0.0, 1.0, 24, True), (0.3, 1.0, 24, False), (0.0, 0.5, 24, False), (0.0, 1.0, 19, False)],
)
def test_a_reward_that_does_not_rise_in_twenty_updates(gain: float, best: float, updates: int, found: bool) -> None:
    lines = [
        {
            "phase": "train",
            "step": step,
            "rewards": {"task": {"mean": 0.45 + 0.02 * (step % 2) + gain * step / updates}},
        }
        for step in range(updates)
    ]
    recent = [
        TrainedRollout(f"ro-{number}", (1, f"{number}"), {"task": best * (number % 2)}, (), None, 1, 0)
        for number in range(8)
    ]
    names = [finding.name for finding in examine_evidence("run", Evidence(lines, recent=recent)).findings]
    assert (names == ["no-progress"]) is found, names


def test_held_out_tasks_that_are_trained_on_are_known_by_their_texts_not_their_ids(run: RunFolder) -> None:
    train = [{"question": f"Who earns {number}?", "id": number, "home": "/data/a"} for number in range(9)]
    assert tasks_trained_on(train, [{"question": "who earns 3", "id": 77}, {"question": "Who earns 10?", "id": 3}]) == 1
    assert tasks_trained_on(train, [{"question": "Who earns 10?", "id": 3, "home": "/data/a"}]) == 0, (
        "all are at home there"
    )
    seeds = [{"place": "the great maze", "seed": number} for number in range(9)]
    assert (
        tasks_trained_on(seeds, [{"place": "the great maze", "seed": 9}, {"place": "the great maze", "seed": 3}]) == 1
    )
    (run.folder / "data" / "test.jsonl").write_text(
        '{"question": "Who earns most?", "id": 7}\n{"question": "How many?"}\n'
    )
    found = only(made(run, groups(MIXED)))
    assert (found.name, found.figures) == ("test-tasks-trained-on", {"tasks": 2, "tasks_trained_on": 1})


def test_the_worst_comes_first_and_of_that_causes_before_what_follows_from_them() -> None:
    endings = {"agents-raise": 2, "rollouts-lost": 6}
    lines = [{"endings": endings, "rollouts": 8, "logprob_drift": 0.4, "staleness": 3.0}] * 4
    assert list(of_updates(*lines)) == ["rollouts-lost", "agents-raise", "weights-stale", "logprobs-differ"]
