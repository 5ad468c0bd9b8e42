"""The real verl on Ray, on the CPU, from end to end: updates from rollouts of a governed LangChain agent, killed in the middle.

``make test-verl`` runs this in an environment of its own; elsewhere it is skipped.
"""

from __future__ import annotations

import importlib.metadata
import json
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# By distribution: this folder itself would be found as a package of that name.
for needed in ("verl", "langchain-openai"):
    try:
        importlib.metadata.version(needed)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"needs {needed}: make test-verl", allow_module_level=True)

from cpu_jobs import lgov, start, until, write_job  # noqa: E402

from lgov_core.audit.lineage import (  # noqa: E402
    read_attestation,
    read_lineage,
    tensors_sha256,
)
from lgov_core.integrations.verl.checkpoints import (  # noqa: E402
    only_job,
    sealed_checkpoints,
)
from lgov_core.integrations.verl.run import VerlReport, read_report  # noqa: E402
from lgov_core.models import load_model  # noqa: E402
from lgov_core.policies import load_policy_file  # noqa: E402
from lgov_core.store import open_store  # noqa: E402
from lgov_core.train.loop.run_files import read_metrics  # noqa: E402

STEPS, TASKS, GROUP = 5, 8, 8

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("verl")
    training = {
        "algorithm": "dr_grpo",
        "learning_rate": 1e-3,
        "update_epochs": 3,
        "batch_size": TASKS,
        "group_size": GROUP,
        "epochs": STEPS,
        "steps": STEPS,
        "checkpoint_every": 2,
    }
    write_job(made, tasks=2 * TASKS, training=training)
    return made


@dataclass(frozen=True)
class Killed:
    """What there was when the job was killed: lines of ``metrics.jsonl``, batches by name, the newest finished checkpoint."""

    lines: list[dict[str, Any]]
    batches: dict[str, bytes]
    checkpoint: int


@pytest.fixture(scope="module")
def killed(folder: Path) -> Killed:
    """The job is killed once step 4 is collected: in its update, step 3 in no checkpoint yet, unless this comes late."""
    run, log = folder / "run", folder / "killed.log"
    job = start(folder, log)
    assert until((run / "transitions" / "step-000004.json").exists, job), log.read_text()[-5000:]
    job.kill()
    job.wait()
    with only_job(run, patience_s=60.0):  # Ray's processes are gone too
        return Killed(
            read_metrics(run / "metrics.jsonl"),
            {
                path.stem: path.with_suffix(".parquet").read_bytes()
                for path in (run / "transitions").glob("step-*.json")
            },
            max(sealed_checkpoints(run), default=0),
        )


@pytest.fixture(scope="module")
def report(folder: Path, killed: Killed) -> VerlReport:
    """One job for all tests, by the command that users have: killed once, and gone on with."""
    assert killed.checkpoint >= 2
    log = folder / "job.log"
    assert start(folder, log, "--resume").wait(timeout=1500) == 0, log.read_text()[-5000:]
    return read_report(folder / "run")


def test_the_reward_rises(report: VerlReport) -> None:
    found = [step["reward"] for step in report.steps]
    assert len(found) == STEPS
    assert found[0] < 0.55, "the model begins with a log in which one of three drawers is right"
    assert found[-1] > found[0] + 0.15


def test_every_call_is_of_the_weights_that_the_step_began_with(report: VerlReport) -> None:
    """Step 1 is served by the first weights, step 2 by those after one update, and so on: nothing stale, nothing mixed."""
    for number, step in enumerate(report.steps):
        assert set(step["weights_versions"]) == {str(number)}
        assert step["outcomes"].keys() <= {"succeeded", "failed"}
        # Only what earned as much as its whole group: it moves no weights.
        assert set(step["left_out"]) <= {"no_advantage"}


def test_the_servers_have_the_trainers_weights(report: VerlReport) -> None:
    """verl recomputes what the servers recorded: were the weights not the same, the probabilities would differ."""
    for step in report.verl:
        # The trainer computes in bfloat16, the servers in float32.
        assert step["data"]["training/rollout_probs_diff_mean"] < 0.02
        assert step["data"]["training/rollout_actor_probs_pearson_corr"] > 0.99
    assert all(step["data"]["actor/grad_norm"] > 0 for step in report.verl)


def test_what_the_policy_forbids_was_tried_and_never_done(report: VerlReport, folder: Path) -> None:
    opened = Counter((folder / "opened.txt").read_text().split())
    assert "sealed" not in opened
    assert set(opened) <= {"front", "side"}
    denied = [step["counts"].get("denied", 0) for step in report.steps]
    assert denied[0] > 0, "the model was taught to try it"
    assert report.steps[0]["reward_compliance"] < 0
    assert denied[-1] < denied[0]


def test_everything_is_on_record_and_the_last_weights_can_be_loaded(report: VerlReport, folder: Path) -> None:
    store = open_store(str(folder / "run" / "store.sqlite"))
    try:
        calls = list(store.calls())
        # What was being collected when the job was killed, if that was late, is collected anew.
        assert len(store.rollouts()) in (STEPS * TASKS * GROUP, (STEPS + 1) * TASKS * GROUP)
        assert all(call.prompt_ids and call.response_ids and call.logprobs for call in calls)
        assert {call.weights_version for call in calls} == set(range(STEPS))
    finally:
        store.close()
    assert report.model is not None
    first, last = load_model(folder / "model"), load_model(report.model)
    assert last.name == "tiny"
    changed = [
        name for name, tensor in last.module.state_dict().items() if not tensor.equal(first.module.state_dict()[name])
    ]
    assert changed


def test_a_job_that_was_killed_goes_on_and_makes_no_update_twice(
    report: VerlReport, folder: Path, killed: Killed
) -> None:
    run = folder / "run"
    lines = read_metrics(run / "metrics.jsonl")
    assert lines[: len(killed.lines)] == killed.lines, "what was acknowledged stays as it was"
    assert [line["step"] for line in lines if line["phase"] == "train"] == list(range(1, STEPS + 1))
    (resumed,) = (line for line in lines if line["phase"] == "resume")
    acknowledged = {line["step"] for line in killed.lines}
    again = range(killed.checkpoint + 1, len(killed.batches) + 1)
    assert (resumed["checkpoint"], resumed["replayed"]) == (killed.checkpoint, len(again))
    assert resumed["acknowledged"] == len(acknowledged & set(again))
    # Made again from the batches on record: no agent ran for them a second time.
    assert len(killed.batches) >= 4
    now = {name: (run / "transitions" / f"{name}.parquet").read_bytes() for name in killed.batches}
    assert now == killed.batches
    # And what is made again is the update that it was.
    earlier = [json.loads(line) for line in (run / "verl-1.jsonl").read_text().splitlines() if line.endswith("}")]
    then = {line["step"]: line["data"] for line in earlier}
    for step in acknowledged & set(again):
        made_again = next(line["data"] for line in report.verl if line["step"] == step)
        for name in ("actor/pg_loss", "actor/grad_norm"):
            assert made_again[name] == pytest.approx(then[step][name], rel=1e-3, abs=1e-6), name


def test_every_checkpoint_says_what_it_was_made_of(report: VerlReport, folder: Path) -> None:
    found = json.loads(lgov(folder, "audit", "verify", "run", "--require-signed", "--json"))["checkpoints"]
    assert {one["step"]: one["batches_checked"] for one in found} == {2: 2, 4: 4, 5: 5}
    assert report.model is not None
    last = read_attestation(read_lineage(report.model)[-1]).statement["predicate"]
    assert last["start"]["weights_sha256"] == tensors_sha256(folder / "model" / "model.safetensors")
    assert last["policy"]["sha256"] == load_policy_file(folder / "policy.yaml").digest
    assert (last["seed"], last["settings"]["training"]["algorithm"]) == (0, "dr_grpo")
    assert last["code"]["verl"] == importlib.metadata.version("verl")


def test_the_figures_are_those_of_every_run(report: VerlReport) -> None:
    for step in report.steps:
        # What was executed is what was asked for, less what was denied.
        assert step["counts"]["tool_calls"] > step["counts"]["denied"]
        assert step["counts"]["violations"] <= step["counts"]["denied"]
        assert step["rewards"].keys() >= {"task", "return"}
        assert step["rewards"]["task"]["mean"] == pytest.approx(step["reward"], abs=0.05)
        assert 0 <= step["violation_rate"]["mean"] <= 1


def test_the_trained_model_is_handed_on(report: VerlReport, folder: Path) -> None:
    lgov(folder, "models", "export", "run", "handed")
    lgov(folder, "audit", "verify", "handed", "--require-signed")
    assert report.model is not None
    wanted, handed = load_model(report.model).module.state_dict(), load_model(folder / "handed").module.state_dict()
    assert all(tensor.equal(handed[name]) for name, tensor in wanted.items())


def test_ctrl_c_ends_the_job_and_says_how_it_goes_on(report: VerlReport, folder: Path) -> None:
    run, log = folder / "stopped", folder / "stopped.log"
    job = start(folder, log, run="stopped")
    assert until((run / "transitions" / "step-000001.json").exists, job), log.read_text()[-5000:]
    job.send_signal(signal.SIGINT)
    assert job.wait(timeout=300) == 130, log.read_text()[-5000:]
    with only_job(run, patience_s=60.0):  # Ray's processes are gone too
        updates = len(read_metrics(run / "metrics.jsonl")) if (run / "metrics.jsonl").exists() else 0
    said = log.read_text()
    assert f"interrupted; {updates} updates are kept, continue with --resume --folder {run}" in said
    assert "Traceback" not in said
