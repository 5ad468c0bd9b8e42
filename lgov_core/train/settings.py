"""Settings of a training run: ``config.yaml``, environment variables, flags. Loads nothing heavy.

Later sources win over earlier ones::

    default  <  config.yaml  <  LIGHTNING_MODEL_PATH, LIGHTNING_RL_ALGORITHM, AGENT_LIGHTNING_SERVER_URL  <  flags

A section is a frozen dataclass and a key is one of its fields: its type says what may be written there, and `Bound` what
values. An unknown key, a wrong type and a value out of bounds are errors that name the file and the line.
"""

from __future__ import annotations

import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from lgov_core._util.suggestions import suggest_name
from lgov_core.errors import LgovError, PolicyFileError, SettingsError
from lgov_core.policies.document import Place, read_yaml
from lgov_core.train.bounds import Bound, bounded, choices_of, kind_of
from lgov_core.train.policy_section import PolicySection, read_policies

#: Environment variables, and the section and key that each sets.
VARIABLES: Final[Mapping[str, tuple[str, str]]] = types.MappingProxyType(
    {
        "LIGHTNING_MODEL_PATH": ("model", "name"),
        "LIGHTNING_RL_ALGORITHM": ("training", "algorithm"),
        "AGENT_LIGHTNING_SERVER_URL": ("runtime", "server_url"),
    }
)


@dataclass(frozen=True, slots=True)
class ModelSection:
    """``model:`` — what is trained.

    ``name`` is tiny, smollm2, a transformers folder or a hub name. ``dtype`` is what the engine and the update compute in;
    auto is bfloat16 where the processor has it and the model at least ten million parameters, else float32. ``lora_rank`` 0
    trains all weights; None decides by size: adapters of rank 16 from ten million parameters on. ``max_new_tokens`` bounds a
    reply, ``max_batch`` how many calls are decoded together; a prompt may be as long as the model's context. ``served_as``
    is a further name for the model at the endpoint. ``engine`` samples: embedded, in the trainer's own process, or vllm
    (section ``vllm``); ``engine_url`` is the base URL of a vLLM that runs already and reads this
    machine's files.
    """

    name: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    lora_rank: int | None = bounded(None, least=0)
    max_new_tokens: int = bounded(256, least=1)
    max_batch: int = bounded(64, least=1)
    tool_format: str | None = None
    served_as: str | None = None
    engine: Literal["embedded", "vllm"] = "embedded"
    engine_url: str | None = None


@dataclass(frozen=True, slots=True)
class TrainingSection:
    """``training:`` — how it is trained. None leaves a value to the algorithm (docs/how-to/training.md has its defaults).

    An update is made of ``batch_size`` tasks with ``group_size`` rollouts each; ``epochs`` passes are made over the tasks,
    ``steps`` bounds the updates. ``update_epochs`` passes are made over the rows of one update. ``kl_coef`` is β.
    ``tokens_per_batch`` bounds the tokens of one forward pass, padding included (memory, not learning); ``packing`` auto,
    tree or rows says whether what calls begin with in common is computed once. With ``max_staleness`` above 0 rollouts
    continue while the model updates, with weights at most that many updates old (None: 1 with the engine vllm, else 0).
    ``max_extra_groups`` bounds the groups of further tasks that an update may collect in place of those in which all
    rollouts are alike (0: none; None: twice ``batch_size`` for dapo, else 0). ``evaluate_every`` updates the test tasks are
    run (0: only before the first and after the last), ``checkpoint_every`` updates a checkpoint is written. ``agents`` are
    names or globs of the agents whose calls are trained on (none: all). ``policies`` gives agents adapters of their own on
    the one model, all trained in the same step: ``NAME: {agents: [...]}``, or ``NAME: frozen`` for the model as it is
    (docs/how-to/training.md). With ``curriculum`` tasks whose rollouts all passed, or all failed, the last times are drawn
    less often.
    """

    algorithm: str = "grpo"
    learning_rate: float | None = bounded(None, above=0.0)
    batch_size: int = bounded(32, least=1)
    group_size: int = bounded(8, least=1)
    kl_coef: float | None = bounded(None, least=0.0)
    epochs: int = bounded(1, least=1)
    steps: int | None = bounded(None, least=1)
    update_epochs: int | None = bounded(None, least=1)
    max_grad_norm: float | None = bounded(None, above=0.0)
    tokens_per_batch: int | None = bounded(None, least=1)
    packing: Literal["auto", "tree", "rows"] = "auto"
    max_staleness: int | None = bounded(None, least=0)
    max_extra_groups: int | None = bounded(None, least=0)
    discount: float | None = bounded(None, least=0.0, most=1.0)
    evaluate_every: int = bounded(0, least=0)
    checkpoint_every: int = bounded(5, least=1)
    agents: tuple[str, ...] = ()
    policies: Mapping[str, PolicySection] = field(default_factory=dict[str, PolicySection])
    curriculum: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RuntimeSection:
    """``runtime:`` — where agents run, and what is done around them.

    ``nworkers`` rollouts run at a time, in ``threads`` of the client or in ``processes`` of their own (None: threads for a
    `Client`, processes for ``lgov train``). With
    ``auto_instrumentation`` installed frameworks are instrumented, with ``air_enabled`` tools and models earn intermediate
    rewards. ``policy`` is a policy file under which agents run (None: nothing is judged). ``timeout_s`` bounds an attempt,
    ``max_attempts`` the tries at a rollout that a machine failed. With ``confine`` worker processes run in boxes
    (`docs/how-to/confinement.md`).
    """

    nworkers: int = bounded(4, least=1)
    workers: Literal["threads", "processes"] | None = None
    auto_instrumentation: bool = True
    air_enabled: bool = True
    policy: Path | None = None
    confine: bool = False
    timeout_s: float = bounded(600.0, above=0.0)
    max_attempts: int = bounded(3, least=1)
    server_url: str | None = None

    def refuse_confinement(self) -> None:
        """Raises `SettingsError` where ``confine`` is set and agents would run in this process."""
        if self.confine:
            raise SettingsError(
                "runtime.confine is for worker processes, and here agents run in threads",
                hint="use lgov train, or run the program itself with lgov run --confine",
            )


@dataclass(frozen=True, slots=True)
class DataSection:
    """``data:`` — the task files, for `lgov train` and `Trainer`."""

    train: Path | None = None
    test: Path | None = None


@dataclass(frozen=True, slots=True)
class SftSection:
    """``sft:`` — which recorded rollouts are imitated by ``--algorithm sft``.

    ``outcomes`` are those an attempt may have ended with. ``min_reward`` is the least sum of its rewards in ``dimension``
    (None: any), ``top_share`` the share of each task's best attempts that is taken, ``compliant`` whether an attempt in
    which an act was denied is left out. ``held_out`` is the share of tasks that is not trained on, to measure.
    Rollouts of mode test, val or eval are left out unless ``include_held_out``.
    """

    outcomes: tuple[str, ...] = ("succeeded",)
    min_reward: float | None = None
    dimension: str = "task"
    top_share: float = bounded(1.0, above=0.0, most=1.0)
    compliant: bool = True
    held_out: float = bounded(0.1, least=0.0, most=0.5)
    include_held_out: bool = False


@dataclass(frozen=True, slots=True)
class PromptSection:
    """``prompt:`` — how a prompt is searched for by ``--algorithm prompt``.

    ``template`` is the file to begin with, ``name`` the name under which agents find it (``resource.prompts[name]``).
    ``critic_url`` and ``critic_model`` are an OpenAI-compatible model that criticises and rewrites, ``critic_key_env`` the
    variable with its key. Agents ask the model at ``upstream``, or the one of ``model.name``. In each of ``rounds`` the best
    ``beam`` templates each give ``candidates`` new ones, and every template is scored on ``tasks`` tasks, ``repeats`` times.
    No more than ``budget`` rollouts are run (None: as many as that makes).
    """

    template: Path | None = None
    name: str = "prompt"
    critic_url: str | None = None
    critic_model: str = "gpt-4.1-mini"
    critic_key_env: str = "OPENAI_API_KEY"
    upstream: str | None = None
    rounds: int = bounded(3, least=1)
    beam: int = bounded(2, least=1)
    candidates: int = bounded(3, least=1)
    tasks: int = bounded(16, least=1)
    repeats: int = bounded(1, least=1)
    budget: int | None = bounded(None, least=1)


@dataclass(frozen=True, slots=True)
class VerlSection:
    """``verl:`` — for ``--backend verl`` (docs/how-to/scale.md).

    Fields with the names of those of `lgov_core.train.verl.job.VerlCluster`, `VerlUpdate` and `VerlJob` mean the same.
    ``tokens_per_gpu`` None is ``training.tokens_per_batch``, or verl's own default. ``listen`` is the address and port of the
    endpoint, ``key_secret_file`` (relative to the working folder) holds the secret of its keys.
    """

    nodes: int = bounded(1, least=1)
    gpus: int = bounded(1, least=1)
    server: str = "vllm"
    tensor_parallel: int = bounded(1, least=1)
    gpu_memory: float = bounded(0.5, above=0.0, below=1.0)
    address: str | None = None
    tokens_per_gpu: int | None = bounded(None, least=1)
    offload: bool = False
    mini_batches: int = bounded(1, least=1)
    max_ratio_weight: float | None = bounded(2.0, above=0.0)
    recompute: bool = True
    context_tokens: int = bounded(8192, least=1)
    temperature: float = bounded(1.0, above=0.0)
    overrides: tuple[str, ...] = ()
    listen: str | None = None
    key_secret_file: str | None = None


@dataclass(frozen=True, slots=True)
class VllmSection:
    """``vllm:`` — for ``model.engine: vllm`` (docs/how-to/vllm.md).

    ``python`` is the interpreter of the environment that has vLLM. ``dtype`` is that of its copy of the model (None:
    ``model.dtype``), ``gpu_memory`` the share of a GPU's memory that it takes. ``context_tokens`` bounds prompt and reply
    together (None: the model's own), ``start_s`` the seconds of a start. With ``sleep`` vLLM leaves its GPU memory to each
    update, and ``max_staleness`` is 0 unless it is set. ``arguments`` go to ``vllm serve``.
    """

    python: Path = Path(".venv-vllm/bin/python")
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    gpu_memory: float = bounded(0.5, above=0.0, below=1.0)
    context_tokens: int | None = bounded(None, least=1)
    start_s: float = bounded(600.0, above=0.0)
    sleep: bool = False
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """All settings of a run. Load with `load_train_settings`."""

    model: ModelSection = field(default_factory=ModelSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    runtime: RuntimeSection = field(default_factory=RuntimeSection)
    data: DataSection = field(default_factory=DataSection)
    sft: SftSection = field(default_factory=SftSection)
    prompt: PromptSection = field(default_factory=PromptSection)
    verl: VerlSection = field(default_factory=VerlSection)
    vllm: VllmSection = field(default_factory=VllmSection)

    @property
    def max_staleness(self) -> int:
        """``training.max_staleness``, or the default of the engine."""
        given = self.training.max_staleness
        return int(self.model.engine == "vllm" and not self.vllm.sleep) if given is None else given

    def with_values(self, section: str, **values: Any) -> TrainSettings:
        """A copy with keys of one section set; None values count as not given. Raises `SettingsError` as a flag would."""
        given = {name: value for name, value in values.items() if value is not None}
        flags = {(section, name): value for name, value in given.items()}
        return _assigned(self, flags, {place: f"{place[0]}.{place[1]}" for place in flags}, Path())

    def as_json(self) -> dict[str, Any]:
        """The settings as JSON values, by section."""
        return {
            section: {name: str(value) if isinstance(value, Path) else value for name, value in keys.items()}
            for section, keys in asdict(self).items()
        }


def load_train_settings(
    path: Path | str | None = None,
    *,
    flags: Mapping[tuple[str, str], Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> TrainSettings:
    """The settings of a run: those of the file at ``path`` (None: no file), the environment, and ``flags``.

    ``flags`` maps (section, key) to a value; None counts as not given. ``environ`` is the process's own by default. Raises
    `SettingsError` with file and line, variable or flag.
    """
    settings = TrainSettings()
    if path is not None:
        settings = _from_file(settings, Path(path))
    given = os.environ if environ is None else environ
    found = {place: given[name] for name, place in VARIABLES.items() if given.get(name)}
    settings = _assigned(settings, found, {place: name for name, place in VARIABLES.items()}, Path())
    chosen = {place: value for place, value in (flags or {}).items() if value is not None}
    return _assigned(settings, chosen, {place: _flag(place) for place in chosen}, Path())


def _from_file(settings: TrainSettings, path: Path) -> TrainSettings:
    source = str(path)
    try:
        document, lines = read_yaml(path.read_bytes().decode("utf-8-sig"), source)
    except PolicyFileError as error:
        raise SettingsError(error.message, hint=error.hint) from error
    except FileNotFoundError as error:
        raise SettingsError(f"there is no file {source}", hint="check the path given to --config") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{source} cannot be read as UTF-8 text: {error}") from error
    if document is None:
        return settings
    if not isinstance(document, dict):
        raise SettingsError(f"{source}: the settings are not a mapping", hint="write sections such as training:")

    def where(place: Place) -> str:
        line = next((lines[place[:end]] for end in range(len(place), -1, -1) if place[:end] in lines), None)
        return source if line is None else f"{source}:{line}"

    known = [section.name for section in fields(settings)]
    values: dict[tuple[str, str], Any] = {}
    for name, section in document.items():
        if name not in known:
            raise _unknown(f"section {name}", where((name,)), name, known)
        if section is None:
            continue
        if not isinstance(section, dict):
            raise SettingsError(
                f"{where((name,))}: {name} is {section!r}, not a section", hint=f"write keys below {name}:"
            )
        values |= {(name, key): value for key, value in section.items()}
    return _assigned(settings, values, {place: where(place) for place in values}, path.parent)


def _assigned(
    settings: TrainSettings, values: Mapping[tuple[str, str], Any], origins: Mapping[tuple[str, str], str], base: Path
) -> TrainSettings:
    """``settings`` with ``values``, each checked; paths are relative to ``base``."""
    for (section, key), value in values.items():
        origin = origins[section, key]
        present = getattr(settings, section)
        known = {one.name: one for one in fields(present)}
        if key not in known:
            raise _unknown(f"setting {section}.{key}", origin, key, list(known))
        kind, optional = kind_of(type(present), key)
        bound = known[key].metadata.get("bound")
        read = None if value is None and optional else _read(value, kind, bound, f"{origin}: {section}.{key}", base)
        settings = replace(settings, **{section: replace(present, **{key: read})})
    return settings


def _read(value: Any, kind: Any, bound: Bound | None, what: str, base: Path) -> Any:
    if typing.get_origin(kind) is Mapping:
        return read_policies(value, what)
    if typing.get_origin(kind) is tuple:
        given: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
        return tuple(_read(one, str, bound, what, base) for one in given)
    if choices := choices_of(kind):
        if value not in choices:
            raise SettingsError(f"{what} is {value!r}", hint=f"write one of {', '.join(choices)}")
        return value
    accepted, words = _KINDS[kind]
    try:
        if not isinstance(value, accepted) or isinstance(value, bool) != (kind is bool) or not str(value).strip():
            raise ValueError
        read = kind(value)
        if (kind is float and not math.isfinite(read)) or (bound is not None and not bound.fits(read)):
            raise ValueError
    except (ValueError, OverflowError) as error:
        text = "" if bound is None else f" {bound}"
        raise SettingsError(f"{what} is {value!r}", hint=f"write {words}{text}") from error
    return base / read.expanduser() if isinstance(read, Path) else read


#: By the type of a setting: the types of the values that are read, and the words for them.
_KINDS: Final[Mapping[Any, tuple[Any, str]]] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    float: (int | float | str, "a number"),  # YAML 1.1 reads 5e-7, without a point, as text
    bool: (bool, "true or false"),
    Path: ((str, os.PathLike), "the path of a file"),
}


def _unknown(what: str, origin: str, name: str, known: list[str]) -> LgovError:
    return SettingsError(
        f"{origin}: there is no {what}", hint=suggest_name(str(name), known, f"there are {', '.join(known)}")
    )


def _flag(place: tuple[str, str]) -> str:
    return f"--{'vllm-' if place[0] == 'vllm' else ''}{place[1].replace('_', '-')}"
