"""A checkpoint as a model: measured on tasks over real HTTP, and handed on to transformers and PEFT."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason='needs the extra "train"')
transformers = pytest.importorskip("transformers", reason='needs the extra "train"')
peft = pytest.importorskip("peft", reason='needs the extra "train"')
for _module in ("starlette", "pyarrow"):
    pytest.importorskip(_module, reason='needs the extras "gateway" and "train"')

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from safetensors.torch import save_file  # noqa: E402
from update_twins import Shelf, batch  # noqa: E402

from lgov_core.audit import verify_lineage  # noqa: E402
from lgov_core.audit.lineage import folder_sha256, tensors_sha256  # noqa: E402
from lgov_core.commands import cli  # noqa: E402
from lgov_core.errors import TrainError  # noqa: E402
from lgov_core.evaluation.evaluation import EvaluationResult, Score, difference  # noqa: E402
from lgov_core.evaluation.model import TrainedModel, load_trained  # noqa: E402
from lgov_core.evaluation.promotion import export  # noqa: E402
from lgov_core.integrations.verl.checkpoints import seal, weights_folder  # noqa: E402
from lgov_core.integrations.verl.job import VerlJob, VerlUpdate  # noqa: E402
from lgov_core.models import build_tiny, load_model  # noqa: E402
from lgov_core.train.algorithms.algorithms import UpdateConfig  # noqa: E402
from lgov_core.train.algorithms.update import PolicyUpdate  # noqa: E402
from lgov_core.train.loop.lineage import (  # noqa: E402
    Facts,
    Lineage,
    weights_digest,
)
from lgov_core.train.loop.policy_model import full_policy, lora_policy, with_adapters  # noqa: E402
from lgov_core.train.loop.run_files import read_record, write_batch  # noqa: E402
from lgov_core.train.loop.training_run import TrainingRun  # noqa: E402

SMALL = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64, "max_positions": 256, "vocab_size": 300}
IDS = torch.tensor([[1, 5, 9, 40, 3]])

AGENT = '''
import json, urllib.request

def digits(resource, task):
    """Is paid for what the task says, and calls the model once."""
    if task.get("raises"):
        raise ValueError("the agent cannot count")
    if task.get("lost"):
        raise ConnectionError("nobody there")
    body = {"model": "any", "messages": [{"role": "user", "content": task.question}]}
    request = urllib.request.Request(
        f"{resource.model_api}/chat/completions", json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer none"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        json.load(answer)
    return {"task": task.pays, "style": 0.5}
'''


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models") / "small"
    build_tiny(["digits please 0 1 2 3 4 5 6 7 8 9", "a b c d e f"] * 3, seed=0, **SMALL).save(folder)
    return folder


def make_trained(folder: Path, base: Path, *, adapters: bool) -> tuple[Path, Any]:
    """A run of two updates from ``base``; its folder, and what the trained module says about some tokens."""
    model = load_model(base)
    start = weights_digest(model.module.state_dict().items())
    policy = lora_policy(model.module, rank=4) if adapters else full_policy(model.module)
    config = UpdateConfig(learning_rate=1e-2, kl=0.0)
    facts = Facts("run", str(base), start, seed=0, settings={"model": {"dtype": "float32", "max_new_tokens": 2}})
    run = TrainingRun(
        run_id="run",
        policy=policy,
        learner=PolicyUpdate(policy.module, config),
        engine=Shelf(),
        folder=folder,
        checkpoint_every=1,
        seal=Lineage(facts, folder=folder).seal,
    )
    for step in (1, 2):
        run.learn(batch(step))
    with torch.no_grad():
        return folder, policy.module.eval()(IDS).logits


@pytest.fixture(scope="module")
def runs(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Path, Any]]:
    """A run that trained adapters, and one that trained all weights."""
    made = tmp_path_factory.mktemp("runs")
    return {adapters: make_trained(made / str(adapters), base, adapters=adapters) for adapters in (True, False)}


@pytest.mark.parametrize("adapters", [True, False])
def test_a_checkpoint_is_loaded_with_the_weights_it_was_trained_to(
    adapters: bool, runs: dict[bool, tuple[Path, Any]], base: Path
) -> None:
    folder, logits = runs[adapters]
    trained = load_trained(folder)
    assert (trained.step, trained.adapters, trained.base) == (2, adapters, str(base))
    assert trained.path == folder / "checkpoints" / "step-000002"
    with torch.no_grad():
        assert torch.allclose(trained.model.module(IDS).logits, logits, atol=1e-5)
        assert not torch.allclose(load_model(base).module(IDS).logits, logits, atol=1e-3)


@pytest.mark.parametrize("adapters", [True, False])
def test_an_exported_folder_is_the_trained_model_for_transformers(
    adapters: bool, runs: dict[bool, tuple[Path, Any]], base: Path, tmp_path: Path
) -> None:
    folder, logits = runs[adapters]
    shown = CliRunner().invoke(cli, ["models", "export", str(folder), str(tmp_path / "out")])
    assert shown.exit_code == 0, shown.output
    module = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        assert torch.allclose(module(IDS).logits, logits, atol=1e-5)
    assert tokenizer.decode(tokenizer("digits please")["input_ids"]) == "digits please"
    asked: Any = [{"role": "user", "content": "digits"}]
    tool: Any = {"type": "function", "function": {"name": "run_sql", "description": "Runs SQL."}}
    ids = tokenizer.apply_chat_template(asked, tools=[tool], add_generation_prompt=True, return_dict=False)
    assert ids == load_model(base).render(asked, [tool]), "tools are written as in training"
    report = verify_lineage(tmp_path / "out")
    assert report.ok, report.problem
    assert (report.step, report.statements) == (2, 3)
    (tmp_path / "out" / "pickle.bin").write_bytes(b"")
    assert CliRunner().invoke(cli, ["audit", "verify", str(tmp_path / "out")]).exit_code == 4


def test_an_exported_adapter_is_the_trained_one_for_peft(
    runs: dict[bool, tuple[Path, Any]], base: Path, tmp_path: Path
) -> None:
    folder, logits = runs[True]
    shown = CliRunner().invoke(
        cli, ["models", "export", str(folder), str(tmp_path / "out"), "--format", "peft", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == base.name, "no path of this machine"
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    module = peft.PeftModel.from_pretrained(plain, tmp_path / "out").eval()
    with torch.no_grad():
        assert torch.allclose(module(IDS).logits, logits, atol=1e-5)
    assert verify_lineage(tmp_path / "out").ok
    with pytest.raises(TrainError, match="there already"):
        export(load_trained(folder), tmp_path / "out", "peft")
    with pytest.raises(TrainError, match="no adapters"):
        export(load_trained(runs[False][0]), tmp_path / "other", "peft")


def test_another_model_or_a_changed_checkpoint_is_refused(runs: dict[bool, tuple[Path, Any]], tmp_path: Path) -> None:
    import shutil

    other = tmp_path / "other"
    build_tiny(["digits please 0 1 2 3 4 5 6 7 8 9", "a b c d e f"] * 3, seed=1, **SMALL).save(other)
    with pytest.raises(TrainError, match="is not the model"):
        load_trained(runs[False][0], base=str(other))
    changed = Path(shutil.copytree(runs[False][0], tmp_path / "changed"))
    with (changed / "checkpoints" / "step-000002" / "extra.json").open("a") as file:
        file.write(" ")
    with pytest.raises(TrainError, match=r"extra\.json was changed"):
        load_trained(changed)


def test_an_evaluation_without_a_usable_rollout_fails(runs: dict[bool, tuple[Path, Any]], tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"question": "b", "lost": true}\n')
    command = [
        "models",
        "eval",
        str(runs[False][0]),
        str(tmp_path / "tasks.jsonl"),
        "--agent",
        f"{tmp_path}/agent.py:digits",
    ]
    shown = CliRunner().invoke(cli, [*command, "--folder", str(tmp_path / "out")])
    assert shown.exit_code == 1
    assert "nothing was measured: every rollout was lost" in shown.output
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text("utf-8"))["rollouts"] == 0


def test_eval_says_how_good_with_intervals_and_against_the_start(
    runs: dict[bool, tuple[Path, Any]], tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    tasks = [{"question": "digits please", "pays": float(n % 2)} for n in range(4)]
    tasks += [{"question": "a", "raises": True}, {"question": "b", "lost": True}]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    command = [
        "models", "eval", f"{runs[False][0]}/last", str(tmp_path / "tasks.jsonl"), "--agent", f"{tmp_path}/agent.py:digits",
        "--start", "--folder", str(tmp_path / "out"), "--samples", "2", "--set", "workers=2",
    ]  # fmt: skip
    shown = CliRunner().invoke(cli, [*command, "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert (found["step"], found["tasks"], found["rollouts"], found["lost"]) == (2, 6, 10, 2)
    assert found["lineage"] == "unsigned"
    # Two of four are paid, what raised earned 0, and what was lost says nothing.
    assert found["rewards"]["task"]["mean"] == pytest.approx(2 / 5)
    assert found["rewards"]["task"]["count"] == 5
    assert found["rewards"]["task"]["low"] < 0.4 < found["rewards"]["task"]["high"]
    assert found["rewards"]["style"]["mean"] == pytest.approx(0.4)
    assert found["succeeded"]["mean"] == pytest.approx(0.4)
    assert found["calls"]["mean"] == pytest.approx(0.8)
    assert found["difference"]["task"] == {"mean": 0.0, "low": 0.0, "high": 0.0, "count": 5}
    assert found["start"]["rollouts"] == 10
    from lgov_core.store import open_store

    store = open_store(found["store"])
    try:
        assert len(store.rollouts()) == 12
        assert [len(call.response_ids or ()) <= 2 for call in store.calls()] == [True] * 8, "the bound of the training"
        assert all(attempt.outcome is not None for attempt in store.attempts())
    finally:
        store.close()


def test_the_difference_is_paired_by_task() -> None:
    def scores(*values: float) -> EvaluationResult:
        return EvaluationResult(tuple(Score(rewards=({"task": value},)) for value in values), "")

    before, after = scores(0.0, 10.0, 20.0), scores(1.0, 11.1, 20.9)
    found = difference(after, before, "task")
    assert found.mean == pytest.approx(1.0)
    assert 0.7 < found.low < found.high < 1.3
    assert after.reward("task").low < 0 < after.reward("task").high


def test_what_is_wrong_with_the_call_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("{]\n")
    shown = CliRunner().invoke(
        cli, ["models", "eval", str(tmp_path), str(tmp_path / "tasks.jsonl"), "--agent", "json:loads"]
    )
    assert shown.exit_code != 0
    assert "tasks.jsonl" in shown.output
    (tmp_path / "tasks.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "agent.py").write_text(AGENT)
    arguments = [
        "models",
        "eval",
        str(tmp_path),
        str(tmp_path / "tasks.jsonl"),
        "--agent",
        f"{tmp_path}/agent.py:digits",
    ]
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == 1
    assert "no checkpoint" in shown.output


def test_a_checkpoint_of_which_nothing_is_stated_needs_its_model_named(base: Path, tmp_path: Path) -> None:
    from lgov_core.train.loop.checkpoint import Checkpoint, save_checkpoint

    policy = full_policy(load_model(base).module)
    save_checkpoint(tmp_path / "checkpoints", Checkpoint(1, policy.weights(), {}, {}))
    with pytest.raises(TrainError, match="does not say from which model"):
        load_trained(tmp_path)
    trained: TrainedModel = load_trained(tmp_path, base=str(base))
    assert trained.lineage is None
    export(trained, tmp_path / "out")
    assert not (tmp_path / "out" / "lineage.jsonl").exists()


@pytest.fixture(scope="module")
def verl_run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job on verl leaves of its checkpoints: those of steps 2 and 4 are stated, that of step 5 was not finished."""
    folder = tmp_path_factory.mktemp("verl") / "run"
    job = VerlJob(
        "run", folder, str(base), "memory://", "nobody:at_all", {}, 5, tasks_per_step=1, group=2,
        stated={"model": str(base), "settings": {"model": {}}, "start_sha256": folder_sha256(str(base))},
    )  # fmt: skip
    for step in (2, 4, 5):
        made = folder / "checkpoints" / f"global_step_{step}"
        model = load_model(base)
        with torch.no_grad():
            model.module.model.embed_tokens.weight += step
        model.module.to(torch.bfloat16).save_pretrained(weights_folder(made))
        model.tokenizer.save_pretrained(weights_folder(made))
        for number in range(1, step + 1):
            if read_record(folder / "transitions", number) is None:
                write_batch(folder / "transitions", number, batch(number), {})
        if step < 5:
            seal(job, step, made)
    return folder


def test_a_checkpoint_of_verl_is_loaded_and_handed_on(
    verl_run: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = verl_run / "checkpoints"
    start = load_model(base).module.model.embed_tokens.weight
    named = (verl_run, verl_run / "last", checkpoints, checkpoints / "last")
    for path in (*named, checkpoints / "global_step_4", weights_folder(checkpoints / "global_step_4")):
        assert load_trained(path).step == 4
    monkeypatch.chdir(checkpoints)
    assert load_trained(Path("global_step_4")).path == weights_folder(checkpoints / "global_step_4")
    first = load_trained(checkpoints / "global_step_2")
    assert (first.step, first.adapters, first.base) == (2, False, str(base))
    assert first.lineage is not None
    assert torch.allclose(first.model.module.model.embed_tokens.weight, start + 2, atol=0.02), (
        "bfloat16, as it was written"
    )
    assert torch.equal(first.started["model.embed_tokens.weight"], start)
    assert load_model(export(first, tmp_path / "handed")).render([{"role": "user", "content": "digits"}], ())
    assert verify_lineage(tmp_path / "handed").ok
    assert torch.equal(
        load_model(tmp_path / "handed").module.model.embed_tokens.weight, first.model.module.model.embed_tokens.weight
    )
    with pytest.raises(TrainError, match="no adapters"):
        export(first, tmp_path / "peft", "peft")
    with pytest.raises(TrainError, match="there is no checkpoint"):
        load_trained(checkpoints / "global_step_5")


def test_a_checkpoint_of_verl_that_is_not_what_was_stated_is_refused(
    verl_run: Path, base: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    build_tiny(["x y z"] * 9, seed=1, **SMALL).save(other)
    with pytest.raises(TrainError, match="its weights are others"):
        load_trained(verl_run, base=str(other))
    copied = tmp_path / "run"
    shutil.copytree(verl_run, copied)
    weights = weights_folder(copied / "checkpoints" / "global_step_4") / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(bytes(raw))
    with pytest.raises(TrainError, match="is not what was stated of it"):
        load_trained(copied)


def test_adapters_of_verl_are_merged_where_they_are_stated(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = VerlJob("run", folder, str(base), "memory://", "nobody:at_all", {}, 1, tasks_per_step=1, group=2,
                  update=VerlUpdate(lora_rank=4), stated={"model": str(base)})  # fmt: skip
    made = folder / "checkpoints" / "global_step_1"
    module = with_adapters(load_model(base).module, 4)
    with torch.no_grad():
        for name, value in module.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.1)
        wanted = module(IDS).logits
    # What verl writes: a configuration, and the weights by PEFT's names.
    module.config.save_pretrained(weights_folder(made))
    weights = {name: value.clone() for name, value in module.state_dict().items() if "lm_head" not in name}
    save_file(weights, weights_folder(made) / "model.safetensors", {"format": "pt"})
    write_batch(folder / "transitions", 1, batch(1), {})
    with pytest.raises(TrainError, match="do not fit"):
        seal(replace(job, update=VerlUpdate(lora_rank=2)), 1, made)
    seal(job, 1, made)

    trained = load_trained(folder)
    with torch.no_grad():
        assert torch.allclose(trained.model.module(IDS).logits, wanted, atol=1e-5)
        plain = transformers.AutoModelForCausalLM.from_pretrained(weights_folder(made))
        assert torch.allclose(plain(IDS).logits, wanted, atol=1e-5)
        adapter = peft.PeftModel.from_pretrained(load_model(base).module, weights_folder(made) / "adapter")
        assert torch.allclose(adapter(IDS).logits, wanted, atol=1e-5)
    assert trained.weights_sha256 == tensors_sha256(weights_folder(made) / "model.safetensors"), "of what is served"
