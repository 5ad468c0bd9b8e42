"""Settings of a training run: ``config.yaml``, environment variables, flags. Loads nothing heavy.

Later sources win over earlier ones::

    default  <  config.yaml  <  LIGHTNING_MODEL_PATH, LIGHTNING_RL_ALGORITHM  <  flags

The sections are the dataclasses of `lgov_core.train.sections`: the type of a field says what may be written there, and `Bound`
which values. An unknown key, a wrong type and a value out of bounds are errors that name the file and the line.
"""

from __future__ import annotations

import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from lgov_core._util.words import suggest_name
from lgov_core.errors import LgovError, PolicyFileError, SettingsError
from lgov_core.policies.document import Place, read_yaml
from lgov_core.train.bounds import Bound, choices_of, kind_of
from lgov_core.train.policy_section import read_policies
from lgov_core.train.sections import (
    DataSection,
    ModelSection,
    PromptSection,
    RuntimeSection,
    SftSection,
    TrainingSection,
    VerlSection,
    VllmSection,
)

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
        chosen = {name: value for name, value in values.items() if value is not None}
        flags = {(section, name): value for name, value in chosen.items()}
        return _assigned(self, flags, {setting: f"{setting[0]}.{setting[1]}" for setting in flags}, Path())

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
    assignments: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> TrainSettings:
    """The settings of a run: those of the file at ``path`` (None: no file), the environment, and ``flags``.

    ``flags`` maps (section, key) to a value; None counts as not given. ``assignments`` maps ``section.key`` to a value as it is
    written in the file (``--set``). ``environ`` is the process's own by default. Raises `SettingsError` with file and line,
    variable or flag.
    """
    settings = TrainSettings()
    if path is not None:
        settings = _from_file(settings, Path(path))
    variables = os.environ if environ is None else environ
    values = {setting: variables[name] for name, setting in VARIABLES.items() if variables.get(name)}
    settings = _assigned(settings, values, {setting: name for name, setting in VARIABLES.items()}, Path())
    chosen = {setting: value for setting, value in (flags or {}).items() if value is not None}
    settings = _assigned(settings, chosen, {setting: _flag(setting) for setting in chosen}, Path())
    return _with_assignments(settings, assignments or {})


def _with_assignments(settings: TrainSettings, assignments: Mapping[str, str]) -> TrainSettings:
    sections = [section.name for section in fields(settings)]
    values: dict[tuple[str, str], Any] = {}
    for name, text in assignments.items():
        section, dot, key = name.partition(".")
        if section not in sections or not dot:
            raise _unknown(f"setting {name}", f"--set {name}", section, sections)
        try:
            values[section, key], _ = read_yaml(text, f"--set {name}")
        except PolicyFileError as error:
            raise SettingsError(error.message, hint=error.hint) from error
    return _assigned(settings, values, {(section, key): f"--set {section}.{key}" for section, key in values}, Path())


def _from_file(settings: TrainSettings, path: Path) -> TrainSettings:
    source = str(path)
    try:
        document, lines = read_yaml(path.read_bytes().decode("utf-8-sig"), source)
    except PolicyFileError as error:
        raise SettingsError(error.message, hint=error.hint) from error
    except FileNotFoundError as error:
        raise SettingsError(f"there is no file {source}", hint="check the path of the settings") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{source} cannot be read as UTF-8 text: {error}") from error
    if document is None:
        return settings
    if not isinstance(document, dict):
        raise SettingsError(f"{source}: the settings are not a mapping", hint="write sections such as training:")

    def where(setting: Place) -> str:
        line = next((lines[setting[:end]] for end in range(len(setting), -1, -1) if setting[:end] in lines), None)
        return source if line is None else f"{source}:{line}"

    sections = [section.name for section in fields(settings)]
    values: dict[tuple[str, str], Any] = {}
    for name, section in document.items():
        if name not in sections:
            raise _unknown(f"section {name}", where((name,)), name, sections)
        if section is None:
            continue
        if not isinstance(section, dict):
            raise SettingsError(
                f"{where((name,))}: {name} is {section!r}, not a section", hint=f"write keys below {name}:"
            )
        values |= {(name, key): value for key, value in section.items()}
    return _assigned(settings, values, {setting: where(setting) for setting in values}, path.parent)


def _assigned(
    settings: TrainSettings, values: Mapping[tuple[str, str], Any], origins: Mapping[tuple[str, str], str], base: Path
) -> TrainSettings:
    """``settings`` with ``values``, each checked; paths are relative to ``base``."""
    for (section, key), value in values.items():
        origin = origins[section, key]
        present = getattr(settings, section)
        by_name = {field.name: field for field in fields(present)}
        if key not in by_name:
            raise _unknown(f"setting {section}.{key}", origin, key, list(by_name))
        kind, optional = kind_of(type(present), key)
        bound = by_name[key].metadata.get("bound")
        read = None if value is None and optional else _read(value, kind, bound, f"{origin}: {section}.{key}", base)
        settings = replace(settings, **{section: replace(present, **{key: read})})
    return settings


def _read(value: Any, kind: Any, bound: Bound | None, what: str, base: Path) -> Any:
    if typing.get_origin(kind) is Mapping:
        return read_policies(value, what)
    if typing.get_origin(kind) is tuple:
        items: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
        return tuple(_read(item, str, bound, what, base) for item in items)
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


def _unknown(what: str, origin: str, name: str, allowed: list[str]) -> LgovError:
    return SettingsError(
        f"{origin}: there is no {what}", hint=suggest_name(str(name), allowed, f"there are {', '.join(allowed)}")
    )


def _flag(setting: tuple[str, str]) -> str:
    return f"--{'vllm-' if setting[0] == 'vllm' else ''}{setting[1].replace('_', '-')}"
