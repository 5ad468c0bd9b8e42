"""Loads a model by name: one that was promoted or pulled, a folder, or one from the hub; and the type it computes in."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from lgov_core.errors import ModelError
from lgov_core.models.language_model import DETAILS_FILE, LanguageModel, no_transformers_bars
from lgov_core.models.smollm2 import SMOLLM2, SMOLLM2_FORMAT, smollm2_folder
from lgov_core.models.tiny import TINY, make_tiny
from lgov_core.settings import load_settings

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


CURRENT_FILE: Final = "current.json"
MODEL_FOLDER: Final = "model"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def promoted_root(folder: Path | None = None) -> Path:
    """The folder of promoted models: ``folder``, the setting ``models``, or ``models`` in the working folder."""
    return load_settings({"models": folder}).models or Path("models")


def check_name(name: str) -> None:
    """Raises `ModelError` unless ``name`` can name a promoted model: a single folder's name, and not a built-in model's."""
    if name in (TINY, SMOLLM2):
        raise ModelError(f"{name} is the name of a built-in model", hint="choose another name")
    if not _NAME.fullmatch(name):
        raise ModelError(
            f"{name!r} cannot name a model", hint="letters, digits, dots, dashes and underscores, 64 at most"
        )


def promoted_state(root: Path, name: str) -> dict[str, Any] | None:
    """Reads ``current.json`` of a name: ``version``, and ``history`` (oldest first); None without one.

    Raises `ModelError` for a file that cannot be read.
    """
    path = root / name / CURRENT_FILE
    try:
        state: Any = json.loads(path.read_text("utf-8"))
        return {"version": int(state["version"]), "history": list(state["history"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"{path} cannot be read: {error}", hint="restore it, or choose another name") from error


def promoted_versions(root: Path) -> dict[str, int | None]:
    """The promoted names below ``root`` with their current versions, None where that cannot be read."""
    versions: dict[str, int | None] = {}
    for name in sorted({path.parent.name for path in root.glob(f"*/{CURRENT_FILE}")} - {TINY, SMOLLM2}):
        try:
            versions[name] = (promoted_state(root, name) or {})["version"]
        except (ModelError, LookupError):
            versions[name] = None
    return versions


def promoted_folder(reference: str, root: Path | None = None) -> Path | None:
    """The version folder that ``NAME`` (its current version) or ``NAME@VERSION`` names; None when there is no such name.

    Raises `ModelError` for a version that does not exist, and for ``NAME@VERSION`` of an unknown name.
    """
    name, at, version = reference.partition("@")
    if not _NAME.fullmatch(name) or name in (TINY, SMOLLM2):
        return None
    root = root or promoted_root()
    state = promoted_state(root, name)
    if state is None and at and not Path(reference).exists():
        raise ModelError(
            f"there is no promoted model {name} in {root.absolute()}", hint="name its folder with LGOV_MODELS"
        )
    if state is None:
        return None
    folder = root / name / (version if at else str(state["version"]))
    if (at and not version.isdecimal()) or not (folder / MODEL_FOLDER).is_dir():
        raise ModelError(f"{name} has no version {folder.name}", hint=f"see {root / name}")
    return folder


def pinned(reference: str) -> str:
    """``NAME@VERSION`` for a promoted name, with its current version; any other name of a model unchanged."""
    folder = promoted_folder(reference)
    return reference if folder is None else f"{folder.parent.name}@{folder.name}"


_DTYPES = ("float32", "bfloat16", "float16")


def load_model(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    tool_format: str | None = None,
    device: str = "cpu",
    weights: bool = True,
) -> LanguageModel:
    """The model of that name, in evaluation mode.

    A promoted name is its current version (``NAME@3`` the third); ``smollm2`` is what `pull_smollm2` put into the cache,
    ``tiny`` an untaught model of a million parameters that is made there when it is first asked for; an
    existing folder is read as it is; anything else is a name on the hub. ``dtype`` is float32, bfloat16 or float16.
    ``tool_format`` defaults to the folder's, or ``hermes``. ``weights=False`` reads everything but the weights: the module is
    on torch's device ``meta``: it has a configuration and cannot compute. Raises `ModelError`: not found, not reachable, not a
    causal language model, no chat template, or without the ``train`` extra.
    """
    source, name, local = _source(name_or_path)
    module, tokenizer = _load(source, name, dtype, device if weights else None, local=local)
    details = _details(source) if local else {}
    if promoted_folder(os.fspath(name_or_path)) is not None:
        details = {**details, "name": name}
    if os.fspath(name_or_path) == SMOLLM2:
        details = {**details, "tool_format": SMOLLM2_FORMAT}  # one that an earlier lgov has pulled says another
    return LanguageModel(
        module,
        tokenizer,
        str(details.get("name") or name),
        tool_format or str(details.get("tool_format") or "hermes"),
        _eos_ids(module, tokenizer),
    )


def model_source(name_or_path: str | os.PathLike[str]) -> str:
    """The folder or hub name that `load_model` reads. Raises `ModelError` for a folder that is not there."""
    return _source(name_or_path)[0]


def model_place(name: str) -> str:
    """The model as other programs can load it: an absolute folder, or a name on the hub."""
    if name in ("tiny", "smollm2") or promoted_folder(name) is not None:
        name = model_source(name)
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else name


def _source(name_or_path: str | os.PathLike[str]) -> tuple[str, str, bool]:
    """Where to load from, the model's name, and whether that is a folder."""
    name = os.fspath(name_or_path)
    promoted = promoted_folder(name)
    if promoted is not None:
        return str(promoted / MODEL_FOLDER), promoted.parent.name, True
    if name == TINY:
        return str(make_tiny()), TINY, True
    if name == SMOLLM2:
        folder = smollm2_folder()
        if not Path(folder, "config.json").is_file():
            raise ModelError(f"smollm2 is not in {folder}", hint="lgov models pull smollm2")
        return str(folder), SMOLLM2, True
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} is not a transformers folder: it has no config.json")
        return str(path), path.resolve().name, True
    if not isinstance(name_or_path, str) or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise ModelError(
            f"no model folder {name}", hint="tiny, smollm2, a transformers folder, or a hub name owner/model"
        )
    return name, name, False


def _load(
    source: str, name: str, dtype: str, device: str | None, *, local: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    try:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
    except ImportError as error:
        raise ModelError(f"models need {error.name}", hint="pip install 'lgov[train]'") from error
    if dtype not in _DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(_DTYPES)}")
    torch_dtype: torch.dtype = getattr(torch, dtype)
    try:
        with no_transformers_bars():
            tokenizer: Any = AutoTokenizer.from_pretrained(source, local_files_only=local)
            module: Any = (
                _without_weights(source, torch_dtype, local=local)
                if device is None
                else AutoModelForCausalLM.from_pretrained(
                    source, dtype=torch_dtype, attn_implementation="sdpa", local_files_only=local
                )
            )
    except OSError as error:
        hint = (
            "the folder is incomplete or damaged"
            if local
            else "the hub could not be reached or has no such model; download it and name its folder, or use smollm2"
        )
        raise ModelError(f"cannot load model {name!r}: {_first_line(error)}", hint=hint) from error
    except (ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load model {name!r}: {_first_line(error)}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(f"model {name!r} has no fast tokenizer", hint="its folder needs a tokenizer.json")
    try:
        return (module if device is None else module.to(device)).eval(), tokenizer
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"cannot put model {name!r} on device {device!r}: {_first_line(error)}") from error


def _without_weights(source: str, dtype: torch.dtype, *, local: bool) -> PreTrainedModel:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config: Any = AutoConfig.from_pretrained(source, local_files_only=local)
    with torch.device("meta"):
        module: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with contextlib.suppress(OSError):  # many models have no such file
        module.generation_config = GenerationConfig.from_pretrained(source, local_files_only=local)
    return module


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _details(folder: str) -> dict[str, Any]:
    path = Path(folder, DETAILS_FILE)
    if not path.is_file():
        return {}
    try:
        details = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(details, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return details


def _eos_ids(module: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """The tokens that end a reply: the tokenizer's end token, and those that the generation settings name besides."""
    settings: Any = getattr(module, "generation_config", None)
    named: Any = getattr(settings, "eos_token_id", None)
    several = named if isinstance(named, list | tuple) else [named]
    ids = {int(i) for i in (*several, cast("Any", tokenizer.eos_token_id)) if i is not None}
    return frozenset(ids)


#: A model with fewer parameters is small: converting numbers, or dividing work among threads, costs it more than it gains.
SMALL: Final = 10_000_000


def dtype_for(name_or_path: str | os.PathLike[str], dtype: str, device: str) -> str:
    """``dtype``; for ``auto`` bfloat16 where the device computes with it and the model is not small, else float32.

    Raises `ModelError` when the model is not there.
    """
    if dtype != "auto":
        return dtype
    if not computes_bfloat16(device):
        return "float32"
    return "float32" if load_model(name_or_path, weights=False).module.num_parameters() < SMALL else "bfloat16"


def computes_bfloat16(device: str) -> bool:
    """Returns whether a device of that type computes with bfloat16 itself; elsewhere bfloat16 is slower than float32.

    Raises `ModelError` without the extra ``train``.
    """
    try:
        import torch
    except ImportError as error:
        raise ModelError(f"models need {error.name}", hint="pip install 'lgov[train]'") from error

    if device == "cuda":
        return torch.cuda.is_bf16_supported()
    if device == "cpu":
        capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16"))
    return device == "mps"


def wait_without_spinning() -> None:
    """Has OpenMP's threads sleep while they wait, unless the environment says otherwise. For before torch is imported.

    Beside other programs a thread that spins keeps the one that it waits for from the processor: decoding is then several
    times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
