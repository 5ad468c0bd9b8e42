"""The weights that verl writes of a model with adapters, merged into those of a plain model.

verl saves the PEFT model under PEFT's names, which transformers reads as a model without weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lgov_core.errors import TrainError

#: The folder beside the merged weights with the adapters alone, as PEFT loads them.
ADAPTER: Final = "adapter"


def merge_adapters(folder: Path, model: str, rank: int) -> None:
    """Replaces the weights of a PEFT model in ``folder`` by those of ``model`` with its adapters merged, in float32.

    The adapters alone are written to ``folder/adapter``. Needs the memory of the whole model. Raises `TrainError` for
    weights without exactly one adapter of that rank on every linear layer of ``model``, `ModelError` for a model that
    cannot be loaded, and `OSError`. Not atomic: a folder that is left half written must not count as a checkpoint.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from lgov_core.models import load_model
    from lgov_core.train.loop.policy_model import PolicyModel, with_adapters

    files = sorted(folder.glob("*.safetensors"))
    module = with_adapters(load_model(model).module, rank)
    try:
        weights = {name: value for file in files for name, value in load_file(file).items() if ".lora_" in name}
        PolicyModel(module, module.state_dict).load(weights)
    except (RuntimeError, SafetensorError) as error:
        raise TrainError(f"the adapters in {folder} do not fit {model}: {error}") from error
    for file in (*files, *folder.glob("*.safetensors.index.json")):
        file.unlink()
    module.save_pretrained(folder / ADAPTER)
    module.merge_and_unload().save_pretrained(folder)
