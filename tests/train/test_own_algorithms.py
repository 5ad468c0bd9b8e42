"""Losses, credit schemes, samplers and callbacks of a plugin, by their names in config.yaml; and when evaluations end a run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')

from lgov_core import Client  # noqa: E402
from lgov_core.audit.lineage import read_attestation  # noqa: E402
from lgov_core.errors import LgovError, SettingsError, TrainError, TransitionError  # noqa: E402
from lgov_core.models import build_tiny  # noqa: E402
from lgov_core.plugins import load_plugin_file  # noqa: E402
from lgov_core.server.local import serving  # noqa: E402
from lgov_core.server.recipe import algorithm_for  # noqa: E402
from lgov_core.server.run_state import SAMPLERS  # noqa: E402
from lgov_core.server.training import ServerOptions  # noqa: E402
from lgov_core.train.algorithms.algorithms import ALGORITHMS, KINDS, algorithm, read_parts  # noqa: E402
from lgov_core.train.algorithms.update import PolicyUpdate  # noqa: E402
from lgov_core.train.layout.rows import make_rows  # noqa: E402
from lgov_core.train.loop.run_files import read_batch, read_metrics, train_lines  # noqa: E402
from lgov_core.train.settings import load_train_settings  # noqa: E402
from lgov_core.transitions import TransitionSet, assign_credit  # noqa: E402
from tests.docs.page_runner import page_text  # noqa: E402
from tests.pair.conftest import SMALL  # noqa: E402
from tests.pair.pair_agents import ask  # noqa: E402
from tests.train.tabular import BANDIT, Table  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGE = page_text(f"{ROOT}/docs/how-to/algorithms.md#Your own algorithm")
PROGRAM = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
CONFIG = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)[0]
TASKS = [{"question": f"task {number}"} for number in range(4)]


def write(folder: Path, config: str, program: str = PROGRAM[0]) -> Path:
    """A config.yaml beside its plugin."""
    folder.mkdir(exist_ok=True)
    (folder / "my_algo.py").write_text(program)
    (folder / "config.yaml").write_text(config)
    return folder / "config.yaml"


def training(*lines: str) -> str:
    return "\n".join(["training:", "  plugins: [my_algo.py]", *(f"  {line}" for line in lines), ""])


# ------------------------------------------------------------------ names and options


def test_a_loss_that_is_written_as_clip_makes_the_same_update_to_the_last_bit(tmp_path: Path) -> None:
    own = "algorithm_options: {loss_form: {use: my_clip, with: {low: 0.1, high: 1e-1}}}"
    built_in = "algorithm_options: {clip_low: 0.1, clip_high: 0.1}"
    data = TransitionSet(
        tuple(BANDIT.rollouts(Table(), {str(n): "t" for n in range(16)}, torch.Generator().manual_seed(1)))
    )
    weights = {}
    for line in (own, built_in, "algorithm_options: {clip_low: 0.3}"):
        settings = load_train_settings(write(tmp_path, training(line, "kl_coef: 0", "learning_rate: 0.2")), environ={})
        chosen, table = algorithm_for(settings), Table()
        metrics = PolicyUpdate(table, chosen.update).update(make_rows(assign_credit(data, chosen.credit).transitions))
        weights[line] = (table.head.weight.detach().clone(), metrics.clip_fraction)
    assert torch.equal(weights[own][0], weights[built_in][0])
    assert weights[own][1] == weights[built_in][1] > 0, "tokens are clipped, or the range would not matter"
    assert not torch.equal(weights[own][0], list(weights.values())[2][0])


def test_a_scheme_gives_the_advantages(tmp_path: Path) -> None:
    line = "algorithm_options: {scheme: {use: median, with: {scale: 0.5}}, air_cap: null}"
    chosen = algorithm_for(load_train_settings(write(tmp_path, training(line)), environ={}))
    data = TransitionSet(
        tuple(BANDIT.rollouts(Table(), {str(n): "t" for n in range(3)}, torch.Generator().manual_seed(0)))
    )
    rewards = [turn.reward for turn in data.transitions]
    middle = sorted(rewards)[1]
    credited = assign_credit(data, chosen.credit).transitions
    assert [turn.advantages[0] for turn in credited] == [0.5 * (reward - middle) for reward in rewards]


WRONG = [
    ("algorithm_options: {clip_hgh: 0.3}", "an algorithm has no setting clip_hgh (did you mean clip_high?)"),
    ("algorithm_options: {clip_high: wide}", "clip_high must be a number at least 0, not 'wide'"),
    ("algorithm_options: {minibatches: 0}", "minibatches must be a whole number at least 1, not 0"),
    ("algorithm_options: {kl: 0.1}", "kl is not among algorithm_options (write training.kl_coef)"),
    ("algorithm_options: {total_steps: 9}", "the run knows how many updates it makes"),
    ("algorithm_options: {final_rate: 0.5}", "final_rate changes nothing where schedule is constant (leave it out)"),
    (
        "algorithm_options: {loss_form: my_clip, clip_low: 0.1}",
        "clip_low changes nothing where loss_form is loss my_clip",
    ),
    ("algorithm_options: {scheme: gae, std_floor: null}", "grpo and the scheme gae do not go together"),
    ("algorithm_options: {std_floor: 0}", "std_floor is 0"),
    ("algorithm_options: {loss_form: my_clp}", "there is no loss my_clp (did you mean my_clip?)"),
    ("algorithm_options: {loss_form: {use: my_clip, with: {hi: 1}}}", "has no option hi (did you mean high?)"),
    ("algorithm_options: {loss_form: {use: my_clip, with: {low: 0}}}", "low must be a number above 0"),
    ("algorithm_options: {loss_form: {use: clip, with: {low: 0.1}}}", "there is no loss clip with options"),
    ("algorithm_options: {loss_form: [clip]}", "write NAME or {use: NAME, with: {option: value}}"),
    ("sampler: curriculm", "there is no sampler curriculm (did you mean curriculum?)"),
    ("sampler: median", "there is no sampler median"),
    ("callbacks: to_file", "callback to_file of plugin"),
    ("callbacks: [wandb]", "there is no callback wandb (there are to_file"),
    ("stop_after_evaluations: 2", "no evaluations are made during the training (set training.evaluate_every)"),
]


@pytest.mark.parametrize(("line", "reason"), WRONG, ids=[line for line, _ in WRONG])
def test_what_is_wrong_is_refused_with_file_and_line(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path, training("epochs: 1", line))
    with pytest.raises(SettingsError) as refused:
        load_train_settings(path, environ={})
    assert str(refused.value).startswith(f"{path}:4: "), str(refused.value)
    assert reason in str(refused.value)


def test_a_setting_on_the_command_line_is_refused_by_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, training())
    with pytest.raises(
        SettingsError, match=r"^--set training\.sampler: there is no sampler hard \(did you mean hardest\?\)"
    ):
        load_train_settings(path, assignments={"training.sampler": "hard"}, environ={})
    assert (
        load_train_settings(path, assignments={"training.sampler": "hardest"}, environ={}).training.sampler == "hardest"
    )
    with pytest.raises(SettingsError, match="sft takes no algorithm_options"):
        load_train_settings(path, assignments={"training.sampler": "hardest", "training.algorithm": "sft"}, environ={})


def test_curriculum_is_the_sampler_of_that_name(tmp_path: Path) -> None:
    for line in ("curriculum: true", "sampler: curriculum"):
        settings = load_train_settings(write(tmp_path, training(line)), environ={})
        assert read_parts(settings.training)[1] == settings.training.sampled_by == "curriculum"
    with pytest.raises(SettingsError, match=r"config\.yaml:4: training\.curriculum is another sampler"):
        load_train_settings(write(tmp_path, training("curriculum: true", "sampler: hardest")), environ={})
    assert {*SAMPLERS} == {*KINDS["sampler"]}


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import no_such_module", "could not be loaded: ModuleNotFoundError"),
        ("x = 1", "is not a plugin"),
        (PROGRAM[0].replace('"my_clip"', '"clip"'), "there is a loss 'clip' already"),
        (
            PROGRAM[0].replace('"scheme"', '"schme"'),
            "is not a schme by name (there are loss, scheme, sampler, callback",
        ),
        (PROGRAM[0].replace('{"median": Median}', "Median"), "lgov_training gives no names: AttributeError"),
    ],
)
def test_a_plugin_that_makes_no_sense_is_refused_by_its_file(tmp_path: Path, program: str, reason: str) -> None:
    path = write(tmp_path, training(), program)
    with pytest.raises(SettingsError) as refused:
        load_train_settings(path, environ={})
    assert str(refused.value).startswith(f"{path}:2: ")
    assert reason in str(refused.value)
    assert "my_algo.py" in str(refused.value)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_other_fields_can_be_set(name: str, tmp_path: Path) -> None:
    options = "{schedule: linear, final_rate: 0.3, warmup_steps: 3, weight_decay: 0.1, entropy: 1e-3, minibatches: 2}"
    settings = load_train_settings(
        write(tmp_path, training(f"algorithm: {name}", f"algorithm_options: {options}")), environ={}
    )
    update = algorithm_for(settings).update
    assert (update.schedule, update.final_rate, update.warmup_steps) == ("linear", 0.3, 3)
    assert (update.weight_decay, update.entropy, update.minibatches) == (0.1, 1e-3, 2)


BROKEN = {
    "loss": ("1 / 0", "loss my_clip of plugin .*my_algo.py raised ZeroDivisionError: division by zero"),
    "shape": ("PolicyLoss(ratio[:1], ratio[:1] > 0)", "loss my_clip of plugin .* gave no PolicyLoss of 3 tokens"),
    "nothing": ("None", "loss my_clip of plugin .* gave no PolicyLoss of 3 tokens"),
}


@pytest.mark.parametrize(("result", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_loss_that_fails_ends_the_update_by_name_and_the_weights_stay(
    tmp_path: Path, result: str, reason: str
) -> None:
    program = re.sub(r"return PolicyLoss\(torch.*", f"return {result}", PROGRAM[0])
    settings = load_train_settings(
        write(tmp_path, training("kl_coef: 0", "algorithm_options: {loss_form: my_clip}"), program), environ={}
    )
    chosen, table = algorithm_for(settings), Table()
    data = TransitionSet(
        tuple(BANDIT.rollouts(table, {str(n): "t" for n in range(3)}, torch.Generator().manual_seed(0)))
    )
    with pytest.raises(TrainError, match=reason):
        PolicyUpdate(table, chosen.update).update(make_rows(assign_credit(data, chosen.credit).transitions))
    assert torch.equal(table.head.weight, Table().head.weight)


def test_a_scheme_that_answers_with_what_does_not_fit_is_named() -> None:
    data = TransitionSet(
        tuple(BANDIT.rollouts(Table(), {str(n): "t" for n in range(3)}, torch.Generator().manual_seed(0)))
    )

    def short(rollouts: Any, rules: Any) -> Any:
        return [[0.0]]

    with pytest.raises(TransitionError, match="short returned 1 values for 3 rollouts"):
        assign_credit(data, algorithm("dr_grpo", scheme=short).credit)


# ------------------------------------------------------------------ trainings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models") / "small"
    build_tiny(["digits please 0 1 2 3 4 5 6 7 8 9", "task a b c"] * 3, seed=0, **SMALL).save(folder)
    return folder


def graded(resource: Any, task: Any) -> float:
    """Pays for some letters; the more, the higher the number of the task."""
    return int(task.question[-1]) + sum(map(ord, ask(resource, task.question))) % 7 / 7


class Trained:
    """A training by a config.yaml, with one worker, and what it left."""

    def __init__(
        self,
        model: Path,
        path: Path,
        *,
        agent: Callable[..., Any] = graded,
        test: list[dict[str, str]] | None = None,
        resume: bool = False,
        name: str = "run",
        **values: Any,
    ) -> None:
        flags: dict[tuple[str, str], Any] = {("model", "name"): str(model), ("model", "max_new_tokens"): 4}
        defaults = {"batch_size": 2, "group_size": 3, "steps": 3, "epochs": 20, "learning_rate": 5e-3, "kl_coef": 0.0}
        flags |= {("training", key): value for key, value in {**defaults, **values}.items()}
        self.folder = path.parent / name
        settings, options = load_train_settings(path, flags=flags, environ={}), ServerOptions(extends=True)
        with serving(settings, self.folder, options=options, resume=resume) as server:
            client = Client(server.url, quiet=True)
            client.upload_data(TASKS, test)
            self.result = client.train(agent, nworkers=1)
            assert server.coordinator.run is not None
            self.note = server.coordinator.run.note

    @property
    def lines(self) -> list[dict[str, Any]]:
        return read_metrics(self.folder / "metrics.jsonl")

    @property
    def updates(self) -> list[Mapping[str, Any]]:
        return train_lines(self.lines)

    def tasks(self) -> list[list[int]]:
        """The numbers of the tasks of each update."""
        batches = [read_batch(self.folder / "transitions", line["step"]) for line in self.updates]
        return [sorted({int(turn.task_id[-6:]) for turn in batch[1]}) for batch in batches if batch is not None]


def test_the_example_of_the_page_trains(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Trained(model, write(tmp_path, CONFIG), steps=4, test=TASKS[:3])
    assert run.tasks() == [[0, 1], [2, 3], [0, 1], [0, 1]], "each once, then those that earn least"
    told = [json.loads(line) for line in Path("figures.jsonl").read_text().splitlines()]
    assert told == [[line["phase"], line["step"], line["reward"]] for line in run.lines], "the callback got each line"
    assert [line["step"] for line in run.updates] == [1, 2, 3, 4]
    assert len({line["weights_sha256"] for line in run.updates}) == 4
    # Warm-up over two updates, then a cosine that ends at a tenth after the four updates that the run makes.
    assert [line["learning_rate"] for line in run.updates] == pytest.approx([5e-3 / 3, 10e-3 / 3, 5e-3, 5e-3 * 0.55])
    (line, *_) = (run.folder / "checkpoints" / "step-000004" / "lineage.jsonl").read_text().splitlines()
    stated = read_attestation(line).statement["predicate"]["settings"]
    assert stated["plugins_sha256"] == {str(tmp_path / "my_algo.py"): sha256(PROGRAM[0].encode()).hexdigest()}
    names = vars(load_plugin_file(tmp_path / "my_algo.py"))
    exec(PROGRAM[1], names)
    assert names["mine"].update.loss.high == 0.3


def test_a_training_with_an_own_clip_is_the_same_as_with_the_built_in_one(model: Path, tmp_path: Path) -> None:
    own = Trained(model, write(tmp_path / "own", training("algorithm_options: {loss_form: my_clip}")))
    built_in = Trained(model, write(tmp_path / "plain", "training: {}\n"))
    assert [line["weights_sha256"] for line in own.updates] == [line["weights_sha256"] for line in built_in.updates]


def test_a_resumed_run_makes_the_same_updates_and_refuses_another_algorithm(model: Path, tmp_path: Path) -> None:
    text = training("sampler: hardest", "algorithm_options: {schedule: linear}", "checkpoint_every: 2")
    whole = Trained(model, write(tmp_path / "whole", text), steps=5)
    part = Trained(model, write(tmp_path / "part", text), steps=3)
    rates = [line["learning_rate"] for line in part.updates]
    longer = Trained(model, write(tmp_path / "part", text), steps=5, resume=True)
    assert longer.tasks() == whole.tasks(), "what a sampler is told does not change"
    resumed = [line for line in longer.lines if line["phase"] == "resume"]
    assert [line["differing"] for line in resumed] == [0], "replayed updates have the rate that they had"
    assert [line["learning_rate"] for line in longer.updates][:3] == rates
    assert longer.updates[3]["learning_rate"] == pytest.approx(whole.updates[3]["learning_rate"])
    for line, key in (("sampler: in_turn", "sampler"), ("algorithm: dapo", "algorithm")):
        changed = text.replace("sampler: hardest", line) if key == "sampler" else text + f"  {line}\n"
        with pytest.raises(TrainError, match=rf"training\.{key} is .*, and the run in .* began with"):
            Trained(model, write(tmp_path / "part", changed), steps=6, resume=True)
    other_code = write(tmp_path / "part", text, f"{PROGRAM[0]}\n# another scheme")
    with pytest.raises(TrainError, match=r"my_algo\.py \(plugins\) is not as it was when the run in .* began"):
        Trained(model, other_code, steps=6, resume=True)


RAISES = PROGRAM[0].replace(
    'with open(self.path, "a") as file:', 'if line["step"] == 2: raise OSError("no network")\n        if True:'
)
RAISES = re.sub(r"file\.write.*", "pass", RAISES)


def test_a_callback_that_raises_is_said_and_counted_and_the_training_goes_on(model: Path, tmp_path: Path) -> None:
    run = Trained(model, write(tmp_path, CONFIG, RAISES))
    assert len(run.updates) == 3
    (failure,) = [line for line in run.lines if line["phase"] == "callback_failed"]
    assert (failure["step"], failure["failures"]) == (2, 1)
    assert re.search(r"callback to_file of plugin .*my_algo\.py raised OSError: no network", failure["error"])
    warned = [line.get("warnings", {}).get("callback-failed") for line in run.result.metrics]
    assert [bool(warning) for warning in warned] == [False, True, False], "clients are warned"


@pytest.mark.parametrize(("choice", "reason"), [("[0, 0]", "chose \\[0, 0\\]"), ("1 / 0", "raised ZeroDivisionError")])
def test_a_sampler_that_fails_ends_the_training_by_name(model: Path, tmp_path: Path, choice: str, reason: str) -> None:
    program = re.sub(r"return sorted\(range.*", f"return {choice}", PROGRAM[0])
    with pytest.raises(TrainError, match=rf"sampler hardest of plugin .*my_algo\.py {reason}"):
        Trained(model, write(tmp_path, training("sampler: hardest"), program))


def falling(resource: Any, task: Any) -> float:
    """Held-out tasks earn less with each rollout."""
    ask(resource, task.question)
    if resource.mode == "train":
        return float(task.question[-1])
    FALLEN.append(1)
    return 1.0 - len(FALLEN) / 100


FALLEN: list[int] = []


def test_evaluations_without_a_gain_end_the_training_and_the_best_checkpoint_stays(model: Path, tmp_path: Path) -> None:
    FALLEN.clear()
    text = training("evaluate_every: 1", "stop_after_evaluations: 2", "rollouts_per_test_task: 3")
    run = Trained(model, write(tmp_path, text), agent=falling, steps=10, test=TASKS[:3])
    tests = [line for line in run.lines if line["phase"] == "test"]
    assert [line["step"] for line in tests] == [0, 1, 2], "the evaluation before the first update counts"
    assert [line["rollouts"] for line in tests] == [9, 9, 9], "three of each task"
    assert len(run.updates) == 2
    gain = f"no gain of the held-out reward in 2 evaluations; the best is {tests[0]['reward']:.3f}, of update 0"
    assert run.note == f"ended after update 2: {gain}"
    best = json.loads((run.folder / "checkpoints" / "best.json").read_text())
    assert best["step"] == 1, "the best of those that there are checkpoints of"
    with pytest.raises(LgovError, match="needs held-out tasks"):
        Trained(model, write(tmp_path, text), name="without")


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("algorithm_options: {loss_form: my_clip}", "loss my_clip of plugin .*my_algo.py"),
        (
            "algorithm_options: {scheme: median, minibatches: 2}",
            "scheme median .* and training.algorithm_options.minibatches",
        ),
        ("sampler: hardest", "sampler hardest of plugin"),
        ("sampler: curriculum", "training.curriculum"),
        ("callbacks: [{use: to_file, with: {path: a}}]", "callback to_file of plugin"),
        ("algorithm_options: {schedule: cosine}", "training.algorithm_options.schedule"),
    ],
)
def test_verl_refuses_what_it_cannot_run_and_says_what_to_do(tmp_path: Path, line: str, names: str) -> None:
    from lgov_core.integrations.verl.training import verl_job

    settings = load_train_settings(write(tmp_path, training(line)), flags={("model", "name"): "tiny"}, environ={})
    with pytest.raises(SettingsError, match=rf"{names}.*: only for the backend torch \(leave --backend verl out"):
        verl_job(settings, run_id="r", folder=tmp_path, tasks=4, port=1)


def test_verl_takes_the_options_that_it_executes(tmp_path: Path) -> None:
    from lgov_core.integrations.verl.training import verl_job

    options = "algorithm_options: {clip_high: 0.4, dual_clip: 5, std_floor: 0.1, entropy: 0.01}"
    settings = load_train_settings(
        write(tmp_path, training(options)), flags={("model", "name"): str(tmp_path)}, environ={}
    )
    job = verl_job(settings, run_id="r", folder=tmp_path, tasks=4, port=1)
    assert (job.update.clip_high, job.update.dual_clip, job.update.entropy) == (0.4, 5.0, 0.01)
    assert job.credit.std_floor == 0.1


# ------------------------------------------------------------------ loggers of others


LINE = {"phase": "train", "step": 3, "reward": 0.5, "rewards": {"task": {"mean": 0.5}}, "kl": None}


def test_figures_go_to_weights_and_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    run = SimpleNamespace(log=lambda figures, step: calls.append((figures, step)))
    fake = SimpleNamespace(init=lambda **options: calls.append(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    callback = example("wandb_callback.py")["callback"]["wandb"](project="agents")
    assert calls == [], "nothing is opened before there is something to log"
    callback(LINE)
    callback(LINE)
    assert calls[0] == {"project": "agents", "name": None}
    assert calls[1:] == [({"train/step": 3.0, "train/reward": 0.5, "train/rewards/task/mean": 0.5}, 3)] * 2


def test_figures_go_to_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    names = ("set_tracking_uri", "set_experiment", "start_run", "log_metrics")
    fake = SimpleNamespace(**{name: lambda *a, name=name, **k: calls.append((name, a, k)) for name in names})
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    callback = example("mlflow_callback.py")["callback"]["mlflow"](experiment="agents")
    callback(LINE)
    assert [name for name, _, _ in calls] == ["set_experiment", "start_run", "log_metrics"]
    assert calls[-1][1:] == (({"train/step": 3.0, "train/reward": 0.5, "train/rewards/task/mean": 0.5},), {"step": 3})


def example(name: str) -> Any:
    return load_plugin_file(ROOT / "docs/examples" / name).lgov_training()
