"""Settings of a training run: ``config.yaml``, environment variables, flags. Loads nothing heavy.

Later sources win over earlier ones::

    default  <  config.yaml  <  LIGHTNING_MODEL_PATH, LIGHTNING_RL_ALGORITHM  <  flags

The sections are the dataclasses of `lgov_core.train.sections`: the type of a field says which values are allowed there. An
unknown key, a wrong type and a value out of bounds are errors that name the file and the line, the variable or the flag.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from lgov_core._util.schema import Mistake, checked, read_yaml
from lgov_core.errors import PolicyFileError, SettingsError, suggest_name
from lgov_core.train.sections import (
    DataSection,
    ModelSection,
    PromptSection,
    RuntimeSection,
    SftSection,
    TrainingSection,
    VerlSection,
    VllmSection,
    read_policies,
)

if TYPE_CHECKING:
    from lgov_core.gateway.server import MountedApp

#: Environment variables, and the section and key that each sets.
VARIABLES: Final[Mapping[str, tuple[str, str]]] = types.MappingProxyType(
    {
        "LIGHTNING_MODEL_PATH": ("model", "name"),
        "LIGHTNING_RL_ALGORITHM": ("training", "algorithm"),
    }
)


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
        chosen = self.training.max_staleness
        return int(self.model.engine == "vllm" and not self.vllm.sleep) if chosen is None else chosen

    def with_values(self, section: str, **values: Any) -> TrainSettings:
        """A copy with keys of one section set; None values count as not given. Raises `SettingsError` as a flag would."""
        given = {name: value for name, value in values.items() if value is not None}
        return _with_document(self, {section: given}, ".".join)

    def as_json(self) -> dict[str, Any]:
        """The settings as JSON values, by section."""
        return msgspec.to_builtins(asdict(self), enc_hook=str)


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A request to ``lgov train``.

    ``agent`` is ``module:function`` or ``file.py:function``; ``folder`` is where the run leaves everything. ``traces`` is a
    store of recorded rollouts, for what learns from those. ``resume`` continues with the run in ``folder``. ``say`` writes one
    line for people. ``mounted`` is served beside the endpoint, where that is in this process.
    """

    settings: TrainSettings
    folder: Path
    agent: str | None = None
    traces: str | None = None
    resume: bool = False
    say: Callable[[str], None] = print
    mounted: MountedApp | None = None


def load_train_settings(
    path: Path | str | None = None,
    *,
    flags: Mapping[tuple[str, str], Any] | None = None,
    assignments: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> TrainSettings:
    """The settings of a run: those of the file at ``path`` (None: no file), the environment, and ``flags``.

    ``flags`` maps (section, key) to a value; None counts as not given. ``assignments`` maps ``section.key`` to a value as it is
    written in the file (``--set``). ``environ`` is the process's own by default. Raises `SettingsError` with file and line,
    variable or flag.
    """
    sources: list[tuple[Mapping[Any, Any], _Where, Path | None]] = []
    if path is not None:
        sources.append((*_read_file(Path(path)), Path(path).parent))
    variables = os.environ if environ is None else environ
    for name, (section, key) in VARIABLES.items():
        if variables.get(name):
            sources.append(({section: {key: variables[name]}}, lambda _, name=name: name, None))
    document = _by_section({setting: value for setting, value in (flags or {}).items() if value is not None})
    sources.append((document, lambda path: _flag(*path[:2]), None))
    values: dict[tuple[str, str], Any] = {}
    for name, text in (assignments or {}).items():
        section, dot, key = name.partition(".")
        try:
            values[section, key], _ = read_yaml(text, f"--set {name}")
        except PolicyFileError as error:
            raise SettingsError(error.message, hint=error.hint) from error
        if not dot:
            raise _unknown(f"setting {name}", f"--set {name}", section, _SECTIONS)
    sources.append((_by_section(values), lambda path: f"--set {'.'.join(path[:2])}", None))
    settings = TrainSettings()
    for document, where, base in sources:
        settings = _with_document(settings, document, where, base)

    def place(path: tuple[str, ...]) -> str:
        set_by = (where(path) for document, where, _ in reversed(sources) if path[1] in (document.get(path[0]) or ()))
        return next(set_by, ".".join(path))

    training = settings.training
    own = (training.algorithm_options, training.plugins, training.sampler, training.callbacks)
    if any(own) or training.stop_after_evaluations:
        from lgov_core.train.algorithms.algorithms import read_parts

        read_parts(training, place)
    return settings


def _by_section(values: Mapping[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = {}
    for (section, key), value in values.items():
        document.setdefault(section, {})[key] = value
    return document


#: Returns where a section, or a key of it, was set.
_Where = Callable[[tuple[str, ...]], str]


def _read_file(path: Path) -> tuple[Mapping[Any, Any], _Where]:
    source = str(path)
    try:
        document, lines = read_yaml(path.read_bytes().decode("utf-8-sig"), source)
    except PolicyFileError as error:
        raise SettingsError(error.message, hint=error.hint) from error
    except FileNotFoundError as error:
        raise SettingsError(f"there is no file {source}", hint="check the path of the settings") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{source} cannot be read as UTF-8 text: {error}") from error
    if document is not None and not isinstance(document, dict):
        raise SettingsError(f"{source}: the settings are not a mapping", hint="write sections such as training:")

    def where(path: tuple[str, ...]) -> str:
        line = next((lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in lines), None)
        return source if line is None else f"{source}:{line}"

    return document or {}, where


_SECTIONS: Final[Mapping[str, Any]] = get_type_hints(TrainSettings)
#: The types of the keys of each section.
_KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    name: get_type_hints(section, include_extras=True) for name, section in _SECTIONS.items()
}


def _struct(name: str, kinds: Mapping[str, Any]) -> type[msgspec.Struct]:
    """A schema in which everything may be left out."""
    named = [(key, Union[kind, UnsetType], UNSET) for key, kind in kinds.items()]  # noqa: UP007 - made at run time
    return msgspec.defstruct(name, named, forbid_unknown_fields=True)


#: Policies have shorter forms, which `read_policies` knows.
_SCHEMA: Final = _struct(
    "SettingsFile",
    {
        section: _struct(section, {**kinds, "policies": Any} if "policies" in kinds else kinds)
        for section, kinds in _KINDS.items()
    },
)


def _with_document(
    settings: TrainSettings, document: Mapping[Any, Any], where: _Where, base: Path | None = None
) -> TrainSettings:
    """``settings`` with the values of sections, each checked; paths are relative to ``base``. Raises `SettingsError`."""
    raw = {
        str(section): {str(key): _plain(value, _KINDS.get(section, {}).get(key)) for key, value in keys.items()}
        if isinstance(keys, Mapping)
        else keys
        for section, keys in document.items()
        if keys is not None
    }
    try:
        read = checked(raw, _SCHEMA, base=base)
    except Mistake as mistake:
        raise _wrong(mistake, raw, where) from None
    for section, keys in raw.items():
        values = {key: getattr(getattr(read, section), key) for key in keys}
        if "policies" in values:
            values["policies"] = read_policies(
                values["policies"], f"{where((section, 'policies'))}: {section}.policies"
            )
        settings = replace(settings, **{section: replace(getattr(settings, section), **values)})
    return settings


def _plain(value: Any, kind: Any) -> Any:
    """A value in the form in which the schema has it: a single name is a list of it, and text may be a number.

    YAML 1.1 reads 5e-7, without a point, as text.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str):
        kinds = [getattr(member, "__origin__", member) for member in (kind, *get_args(kind))]
        if any(get_origin(member) is tuple for member in kinds):
            return [value]
        if float in kinds:
            with contextlib.suppress(ValueError):
                return float(value)
    return value


def _wrong(mistake: Mistake, raw: Mapping[str, Any], where: _Where) -> SettingsError:
    path = tuple(str(step) for step in mistake.path[:2])
    if mistake.unknown is not None:
        path = (*path, mistake.unknown)
        names = _SECTIONS if len(path) == 1 else _KINDS[path[0]]
        return _unknown(f"{'section' if len(path) == 1 else 'setting'} {'.'.join(path)}", where(path), path[-1], names)
    if len(path) == 1:
        name = path[0]
        return SettingsError(f"{where(path)}: {name} is {raw[name]!r}, not a section", hint=f"write keys below {name}:")
    section, key = path
    return SettingsError(f"{where(path)}: {section}.{key} must be {mistake.expected}, not {raw[section][key]!r}")


def _unknown(what: str, origin: str, name: str, allowed: Collection[str]) -> SettingsError:
    return SettingsError(
        f"{origin}: there is no {what}", hint=suggest_name(name, allowed, f"there are {', '.join(allowed)}")
    )


def _flag(section: str, key: str) -> str:
    return f"--{'vllm-' if section == 'vllm' else ''}{key.replace('_', '-')}"
