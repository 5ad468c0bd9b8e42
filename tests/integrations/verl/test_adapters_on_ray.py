"""Adapters on the real verl: three updates with grpo, sampled by the real vLLM, and three with gdpo, continued in between."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# By distribution: this folder itself would be found as a package of that name.
for needed in ("verl", "langchain-openai"):
    try:
        importlib.metadata.version(needed)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"needs {needed}: make test-verl", allow_module_level=True)

from cpu_jobs import lgov, start, write_config, write_job  # noqa: E402

from lgov_core.audit.lineage import (  # noqa: E402
    read_attestation,
    read_lineage,
    tensors_sha256,
)
from lgov_core.integrations.verl.run import VerlReport, read_report  # noqa: E402
from lgov_core.models import load_model  # noqa: E402

STEPS, TASKS, GROUP, RANK = 3, 4, 4, 4

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Job:
    """A finished job: its folder, its report, and how often it was started."""

    folder: Path
    report: VerlReport
    starts: int


@pytest.fixture(
    scope="module",
    params=[("grpo", "vllm", [STEPS]), ("gdpo", "transformers", [STEPS - 1, STEPS])],
    ids=["grpo", "gdpo"],
)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job with adapters: of one start, or of a second that continues from the checkpoint of the first."""
    algorithm, server, starts = request.param
    if server == "vllm" and not find_spec("vllm"):
        pytest.skip("needs vllm: make test-verl")
    folder = tmp_path_factory.mktemp(algorithm)
    training: dict[str, Any] = {
        "algorithm": algorithm,
        "learning_rate": 1e-2,
        "batch_size": TASKS,
        "group_size": GROUP,
        "epochs": STEPS,
        "update_epochs": 1,
        "checkpoint_every": STEPS,
    }
    write_job(folder, tasks=TASKS, training=training, server=server, lora_rank=RANK)
    log = folder / "job.log"
    for steps in starts:
        write_config(folder, training={**training, "steps": steps}, server=server, lora_rank=RANK)
        assert start(folder, log, "--resume").wait(timeout=1500) == 0, log.read_text()[-5000:]
    return Job(folder, read_report(folder / "run"), len(starts))


def test_every_step_is_sampled_by_the_adapters_before_it(job: Job) -> None:
    assert [set(step["weights_versions"]) for step in job.report.steps] == [{str(number)} for number in range(STEPS)]
    for step in job.report.verl:
        # The trainer computes in bfloat16; the servers that are not vLLM in float32.
        assert step["data"]["training/rollout_probs_diff_mean"] < 0.02
        assert step["data"]["training/rollout_actor_probs_pearson_corr"] > 0.99
        assert step["data"]["actor/grad_norm"] > 0


def test_the_kl_is_to_the_model_without_adapters(job: Job) -> None:
    first, *later = (step["data"]["actor/kl_loss"] for step in job.report.verl)
    assert first == 0, "in their only pass the adapters change nothing yet"
    assert max(later) > 0, "a small change of them is none in bfloat16, so not each"


def test_the_figures_have_every_reward(job: Job) -> None:
    for step in job.report.steps:
        assert step["rewards"].keys() >= {"task", "return"}
        assert 0 <= step["rewards"]["task"]["mean"] <= 1
    assert "compliance" in job.report.steps[0]["rewards"], "the model was taught to try what is forbidden"


def test_the_checkpoint_is_the_merged_model(job: Job) -> None:
    assert job.report.model is not None
    first, last = (load_model(place).module.state_dict() for place in (job.folder / "model", job.report.model))
    assert first.keys() == last.keys()
    changed = {name for name, value in last.items() if not value.equal(first[name])}
    assert changed == {name for name in first if name.endswith("_proj.weight")}, "every linear layer, and nothing else"
    said = read_attestation(read_lineage(job.report.model)[-1]).statement["predicate"]
    assert said["weights"]["sha256"] == tensors_sha256(job.report.model / "model.safetensors")
    assert said["start"]["weights_sha256"] == tensors_sha256(job.folder / "model" / "model.safetensors")


def test_the_checkpoint_is_verified_and_handed_on(job: Job) -> None:
    found = json.loads(lgov(job.folder, "audit", "verify", "run", "--require-signed", "--json"))["checkpoints"]
    assert [one["step"] for one in found] == [STEPS - 1, STEPS][-job.starts :]
    lgov(job.folder, "models", "export", "run", "handed")
    assert job.report.model is not None
    wanted, handed = (load_model(place).module.state_dict() for place in (job.report.model, job.folder / "handed"))
    assert all(value.equal(handed[name]) for name, value in wanted.items())


def test_the_adapters_alone_lie_beside_it_for_peft(job: Job) -> None:
    from peft import PeftModel

    assert job.report.model is not None
    base = load_model(job.folder / "model").module
    adapted: Any = PeftModel.from_pretrained(base, job.report.model / "adapter")
    merged = load_model(job.report.model).module.state_dict()
    found = adapted.merge_and_unload().state_dict()
    assert all(value.allclose(merged[name]) for name, value in found.items())
