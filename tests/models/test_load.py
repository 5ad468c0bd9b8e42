"""Loading: every way in which it can fail says what happened and what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from lgov_core.errors import ModelError
from lgov_core.models import build_tiny, load_model

CORPUS = ["a small text 12"] * 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_tiny(CORPUS, seed=0, hidden=32, layers=1, heads=2, intermediate=64).save(tmp_path / "model")
    return tmp_path / "model"


def test_dtype_and_tool_format_can_be_chosen(folder: Path) -> None:
    model = load_model(str(folder), dtype="bfloat16", tool_format="hermes")
    assert next(iter(model.module.parameters())).dtype == torch.bfloat16
    assert model.format.name == "hermes"
    assert not model.module.training


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="no model folder"):
        load_model(str(tmp_path / "nowhere"))


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(tmp_path)


def test_a_damaged_folder(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ModelError, match="cannot load model 'model'"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="incomplete or damaged"):
        load_model(folder)


def test_no_chat_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert AutoTokenizer.from_pretrained(folder).chat_template is None
    with pytest.raises(ModelError, match="no chat template"):
        load_model(folder)


def test_unknown_settings(folder: Path) -> None:
    with pytest.raises(ModelError, match="unknown dtype 'int3'"):
        load_model(folder, dtype="int3")
    with pytest.raises(ModelError, match="on device 'quantum'"):
        load_model(folder, device="quantum")


def test_smollm2_before_it_was_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGOV_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="lgov models pull smollm2"):
        load_model("smollm2")


def test_the_hub_is_not_reachable(tmp_path: Path) -> None:
    code = "import sys\nfrom lgov_core.models import load_model\nload_model(sys.argv[1])"
    settings = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code, "nobody/no-such-model"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ModelError: cannot load model 'nobody/no-such-model'" in run.stderr
    assert "the hub could not be reached" in run.stderr


def test_importing_the_package_loads_nothing_heavy() -> None:
    modules = "lgov_core.models, lgov_core.evaluation.evaluation"
    code = f"import sys, {modules}; print(sorted({{'torch', 'transformers', 'tokenizers'}} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_without_the_train_extra() -> None:
    # An interpreter in which torch and transformers cannot be found, as in a base install.
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'tokenizers'): sys.modules[name] = None\n"
        "from lgov_core.models import build_tiny, load_model\n"
        "from lgov_core.models.load import dtype_for\n"
        "from lgov_core.errors import ModelError\n"
        "tiny, hub = lambda: build_tiny(['a'], seed=0), lambda: load_model('owner/model')\n"
        "for act in tiny, hub, lambda: dtype_for('tiny', 'auto', 'cpu'):\n"
        "    try: act()\n"
        "    except ModelError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.count("pip install 'lgov[train]'") == 3


def test_the_model_named_tiny_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGOV_CACHE", str(tmp_path))
    model = load_model("tiny")
    made = (tmp_path / "models" / "tiny" / "config.json").stat()
    assert (model.name, model.context_length, model.format.name) == ("tiny", 2048, "compact")
    assert model.decode(model.text.encode("naïve 17")) == "naïve 17"
    assert load_model("tiny", weights=False).name == "tiny"
    assert (tmp_path / "models" / "tiny" / "config.json").stat() == made
