"""What a job on verl leaves, and what one that is started again does with it. No verl is needed.

`tests/integrations/verl/test_on_ray.py` kills a real job and goes on with it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch", reason='needs the extra "train"')
pytest.importorskip("pyarrow", reason='needs the extra "train"')
pytest.importorskip("cryptography", reason='needs the extra "sign"')

from click.testing import CliRunner  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from lgov_core.audit import make_key, verify_lineage  # noqa: E402
from lgov_core.audit.lineage import (  # noqa: E402
    LINEAGE_FILE,
    folder_sha256,
    read_attestation,
    read_lineage,
    tensors_sha256,
)
from lgov_core.commands import cli  # noqa: E402
from lgov_core.errors import TrainError  # noqa: E402
from lgov_core.integrations.verl.checkpoints import (  # noqa: E402
    Steps,
    left_by,
    only_job,
    seal,
    sealed_checkpoints,
    weights_folder,
)
from lgov_core.integrations.verl.job import (  # noqa: E402
    VerlJob,
    VerlUpdate,
    settings,
)
from lgov_core.integrations.verl.run import read_report, write_tasks  # noqa: E402
from lgov_core.train.loop.loop import RolloutTask  # noqa: E402
from lgov_core.train.loop.run_files import (  # noqa: E402
    read_batch,
    read_metrics,
    write_batch,
)
from lgov_core.train.sections import VerlSection  # noqa: E402
from lgov_core.transitions import CreditRules  # noqa: E402
from lgov_core.transitions.transition_set import Transition  # noqa: E402
from lgov_core.types import Outcome  # noqa: E402

TASKS = [RolloutTask(f"task-{number}", {"task": {"say": number}, "mode": "train"}) for number in range(4)]


def transition(step: int) -> Transition:
    return Transition(
        run_id="run",
        weights_version=step - 1,
        model="m",
        task_id="task-1",
        rollout_id=f"r{step}",
        attempt=1,
        turn=0,
        response_id=f"r{step}-0",
        agent=None,
        prompt_ids=(1, 2),
        response_ids=(3, step),
        response_mask=(1, 1),
        logprobs=(-1.0, -2.0),
        temperature=1.0,
        finish_reason="stop",
        outcome=Outcome.SUCCEEDED,
        rewards={"task": 1.0},
    )


def job_in(folder: Path, **changes: Any) -> VerlJob:
    given: dict[str, Any] = {
        "run_id": "run",
        "folder": folder,
        "model": str(folder.parent / "model"),
        "store": "memory://",
        "host": "nobody:at_all",
        "options": {"algorithm": "grpo"},
        "steps": 6,
        "tasks_per_step": 2,
        "group": 2,
        "stated": {"model": "tiny", "settings": {"x": 1}, "policy": {"sha256": "a" * 64, "mode": "enforce"}},
    }
    return VerlJob(**{**given, **changes})


def checkpoint(job: VerlJob, step: int, *, sealed: bool = True) -> Path:
    """What verl writes of one, as far as it is looked at; in two files of weights."""
    made = job.folder / "checkpoints" / f"global_step_{step}"
    folder = weights_folder(made)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    save_file({"b": torch.full((3,), float(step))}, folder / "model-00001-of-00002.safetensors")
    save_file({"a": torch.arange(4.0) + step}, folder / "model-00002-of-00002.safetensors")
    (made / "data.pt").write_bytes(b"the loader")
    if sealed:
        seal(job, step, made)
    return made


@pytest.fixture
def job(tmp_path: Path) -> VerlJob:
    """A job of which 4 steps are acknowledged, the batch of a fifth is there, and checkpoints of steps 2 and 3 are.

    It was killed while verl wrote the checkpoint of step 4.
    """
    model = tmp_path / "model"
    model.mkdir()
    save_file({"a": torch.zeros(4), "b": torch.zeros(3)}, model / "model.safetensors")
    (model / "lgov_model.json").write_text('{"name": "tiny"}')
    key = tmp_path / "audit.key"
    make_key(key)
    made = job_in(tmp_path / "run")
    made = replace(made, stated={**made.stated, "key": str(key), "start_sha256": folder_sha256(made.model)})
    made.folder.mkdir()
    write_tasks(made, TASKS)
    (made.folder / "verl.yaml").write_text(yaml.safe_dump({"trainer": {}, "lgov": made.as_dict()}))
    steps = Steps(made.folder)
    for step in range(1, 6):
        write_batch(steps.batches, step, [transition(step)], {"reward": step / 10})
        if step in (2, 3):
            checkpoint(made, step)
        if step < 5:
            steps.acknowledge(step)
    checkpoint(made, 4, sealed=False)
    (made.folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("")
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_goes_on_from_the_last_finished_checkpoint_with_the_batches_behind_it(job: VerlJob) -> None:
    before = contents(job.folder)
    left = left_by(job, TASKS)
    assert left.checkpoint is not None
    assert (left.checkpoint.name, left.step, left.replayed, left.begun) == ("global_step_3", 3, 2, True)
    assert contents(job.folder) == before
    found = settings(job, tasks=len(TASKS), checkpoint=left.checkpoint)
    assert (found["trainer.resume_mode"], found["trainer.resume_from_path"]) == ("resume_path", str(left.checkpoint))
    fresh = settings(job, tasks=len(TASKS))
    assert (fresh["trainer.resume_mode"], fresh["trainer.resume_from_path"]) == ("disable", None)


def test_a_folder_without_anything_is_begun_with(tmp_path: Path) -> None:
    left = left_by(job_in(tmp_path / "new"), TASKS)
    assert (left.checkpoint, left.step, left.replayed, left.begun) == (None, 0, 0, False)
    assert not (tmp_path / "new").exists()


def test_an_update_is_acknowledged_once_and_its_batch_comes_back_as_it_was(job: VerlJob) -> None:
    steps = Steps(job.folder)
    for step in (3, 4, 5, 5):
        steps.acknowledge(step)
    lines = read_metrics(job.folder / "metrics.jsonl")
    assert [(line["phase"], line["step"], line["reward"]) for line in lines] == [
        ("train", step, step / 10) for step in range(1, 6)
    ]
    found = read_batch(steps.batches, 5)
    assert found is not None
    assert found[1] == [transition(5)]
    assert found[0].figures == {"reward": 0.5}
    assert read_batch(steps.batches, 6) is None
    with pytest.raises(TrainError, match="update 6 was made, and its batch is not on record"):
        steps.acknowledge(6)


def test_it_says_what_it_went_on_with(job: VerlJob) -> None:
    Steps(job.folder).resumed("run", 3)
    line = read_metrics(job.folder / "metrics.jsonl")[-1]
    known = {"phase": "resume", "step": 5, "run_id": "run", "checkpoint": 3, "replayed": 2, "acknowledged": 1}
    assert line == known
    assert [step["step"] for step in read_report(job.folder).steps] == [1, 2, 3, 4], "it is no update"


def drop_batch(job: VerlJob) -> None:
    for path in (job.folder / "transitions").glob("step-000004.*"):
        path.unlink()


def drop_job(job: VerlJob) -> None:
    (job.folder / "verl.yaml").unlink()


def drop_tasks(job: VerlJob) -> None:
    (job.folder / "tasks.parquet").write_bytes(b"")


@pytest.mark.parametrize(
    ("changes", "spoil", "says"),
    [
        ({"seed": 1}, None, r"begun with seed 0, and is to continue with 1"),
        ({"tasks_per_step": 4}, None, "begun with tasks_per_step 2, and is to continue with 4"),
        ({"group": 3}, None, "begun with group 2"),
        ({"options": {"algorithm": "gspo"}}, None, "begun with algorithm 'grpo', and is to continue with 'gspo'"),
        ({"model": "other"}, None, "begun with model"),
        ({"update": VerlUpdate(loss="gspo")}, None, "begun with update.loss 'clip', and is to continue with 'gspo'"),
        ({"verl": VerlSection(temperature=0.5)}, None, "begun with temperature 1.0, and is to continue with 0.5"),
        ({"verl": VerlSection(mini_batches=2)}, None, "begun with mini_batches 1, and is to continue with 2"),
        ({"credit": CreditRules(scheme="identical")}, None, "begun with credit.scheme 'return_to_go'"),
        ({"verl": VerlSection(gpus=2)}, None, "were written by 1 GPUs, and 2 are to resume"),
        ({"stated": {"policy": {"sha256": "b" * 64}}}, None, "were collected under another policy"),
        ({"steps": 2}, None, "3 steps are done, and 2 are asked for"),
        ({}, drop_batch, "says that update 4 was made, and holds neither a finished checkpoint nor the batch"),
        ({}, drop_job, "does not say with which settings the run began"),
        ({}, drop_tasks, "tasks.parquet cannot be read"),
    ],
)
def test_what_it_cannot_go_on_with_is_refused_and_nothing_is_written(
    job: VerlJob, changes: dict[str, Any], spoil: Callable[[VerlJob], None] | None, says: str
) -> None:
    if spoil is not None:
        spoil(job)
    before = contents(job.folder)
    with pytest.raises(TrainError, match=says):
        left_by(replace(job, **changes), TASKS)
    assert contents(job.folder) == before


def test_other_tasks_are_refused(job: VerlJob) -> None:
    for tasks in (TASKS[:-1], TASKS[::-1], [*TASKS[:-1], RolloutTask("task-3", {"task": {"say": 9}, "mode": "train"})]):
        with pytest.raises(TrainError, match="was begun with other tasks"):
            left_by(job, tasks)


def test_more_steps_and_other_ways_to_run_them_are_not_another_job(job: VerlJob) -> None:
    other = replace(
        job, steps=60, checkpoint_every=1, options={"algorithm": "grpo", "port": 1}, verl=VerlSection(offload=True)
    )
    assert left_by(other, TASKS).step == 3


def test_two_jobs_in_one_folder_do_not_write_over_each_other(job: VerlJob) -> None:
    code = (
        "import sys, pathlib; from lgov_core.integrations.verl.checkpoints import only_job\n"
        "with only_job(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(job.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(TrainError, match=f"process {other.pid} still trains in"), only_job(job.folder):
            pass
    finally:
        other.kill()
        other.communicate()
    with only_job(job.folder, patience_s=60.0):
        pass


# ---------------------------------------------------------------------- what is stated of a checkpoint


def test_a_checkpoint_says_what_it_was_made_of(job: VerlJob, tmp_path: Path) -> None:
    folder = weights_folder(sealed_checkpoints(job.folder)[3])
    report = verify_lineage(folder, key=tmp_path / "audit.key.pub", require_signed=True)
    assert report.ok, report.problem
    assert (report.step, report.run_id, report.statements, report.signed) == (3, "run", 2, 2)
    assert (report.batches, report.batches_checked, report.policy) == (3, 3, "a" * 64)
    statement = read_attestation(read_lineage(folder)[-1]).statement
    assert {one["name"] for one in statement["subject"]} == {
        "config.json", "lgov_model.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    }  # fmt: skip
    said = statement["predicate"]
    assert (said["seed"], said["settings"], said["parent"]["step"]) == (0, {"x": 1}, 2)
    assert [update["step"] for update in said["data"]] == [3]
    assert said["start"] == {
        "model": "tiny",
        "weights_sha256": tensors_sha256(Path(job.model) / "model.safetensors"),
        "step": 0,
    }
    assert said["weights"]["file"] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert (folder / "lgov_model.json").read_text() == '{"name": "tiny"}', "verl does not copy it"


def test_weights_in_several_files_are_the_same_weights_as_in_one(job: VerlJob, tmp_path: Path) -> None:
    folder = weights_folder(sealed_checkpoints(job.folder)[3])
    files = sorted(folder.glob("*.safetensors"))
    save_file({name: tensor for path in files for name, tensor in load_file(path).items()}, tmp_path / "one")
    assert tensors_sha256(*files) == tensors_sha256(*reversed(files)) == tensors_sha256(tmp_path / "one")


def test_all_checkpoints_of_a_run_are_verified_by_the_command(job: VerlJob) -> None:
    shutil.rmtree(job.folder / "checkpoints" / "global_step_4")
    done = CliRunner().invoke(cli, ["audit", "verify", str(job.folder), "--json"])
    assert done.exit_code == 0, done.output
    assert [(one["step"], one["ok"]) for one in json.loads(done.output)["checkpoints"]] == [(2, True), (3, True)]


def change_weights(job: VerlJob) -> None:
    path = weights_folder(sealed_checkpoints(job.folder)[3]) / "model-00002-of-00002.safetensors"
    save_file({"a": torch.arange(4.0)}, path)


def change_batch(job: VerlJob) -> None:
    path = job.folder / "transitions" / "step-000002.parquet"
    path.write_bytes(path.read_bytes() + b" ")


def drop_statement(job: VerlJob) -> None:
    (weights_folder(sealed_checkpoints(job.folder)[3]) / LINEAGE_FILE).unlink()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (change_weights, "was changed"),
        (change_batch, "is not the data that update 2 was made of"),
        (drop_statement, "cannot be read"),
    ],
)
def test_what_was_changed_afterwards_shows(job: VerlJob, spoil: Callable[[VerlJob], None], says: str) -> None:
    shutil.rmtree(job.folder / "checkpoints" / "global_step_4")
    spoil(job)
    done = CliRunner().invoke(cli, ["audit", "verify", str(job.folder)])
    assert done.exit_code != 0
    assert says in done.output


def test_a_checkpoint_of_which_nothing_can_be_stated_does_not_count(job: VerlJob) -> None:
    made = checkpoint(job, 6, sealed=False)
    with pytest.raises(TrainError, match="the batch of update 6 is not on record"):
        seal(job, 6, made)
    assert list(sealed_checkpoints(job.folder)) == [2, 3]
    for path in weights_folder(made).glob("*.safetensors"):
        path.unlink()
    with pytest.raises(TrainError, match="verl wrote no weights"):
        seal(job, 6, made)
