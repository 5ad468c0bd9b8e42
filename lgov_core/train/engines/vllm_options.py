"""How a vLLM is started: its command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lgov_core.errors import SettingsError

_CHILD: Final = Path(__file__).with_name("vllm_child.py")
#: The ranks that vLLM has room for.
_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """How vLLM is started.

    ``python`` is the interpreter of the environment that has vLLM. ``dtype`` is float32, bfloat16 or float16.
    ``gpu_memory`` is the share of a GPU's memory that it takes, ``context_tokens`` bounds prompt and reply together (None:
    the model's own). ``rank`` is the highest rank of adapters (0: all weights are replaced), ``policies`` how many of them
    learn: of each, one batch may hold calls of two versions, and eight versions may be loaded. ``start_s`` bounds the seconds
    of a start; ``cpu``: there is no GPU. ``sleep``: it can be put to sleep. ``arguments`` go to
    ``vllm serve`` after lgov's own, and so win over them.
    """

    python: Path
    dtype: str = "float32"
    gpu_memory: float = 0.5
    context_tokens: int | None = None
    rank: int = 16
    policies: int = 1
    start_s: float = 600.0
    cpu: bool = False
    sleep: bool = False
    arguments: Sequence[str] = ()

    def command(self, model: str, name: str, port: int) -> list[str]:
        """The command line that serves ``model``, a folder or hub name, under ``name``."""
        return [
            str(self.python), str(_CHILD), model, "--served-model-name", name, "--host", "127.0.0.1", "--port", str(port),
            "--dtype", self.dtype, "--gpu-memory-utilization", str(self.gpu_memory),
            # Not compiled, it starts sooner. A prompt with a seed that is read in chunks ends vLLM 0.32 on a CPU: it sets back
            # the generator's offset, and a CPU's generators have none.
            *(["--enforce-eager", "--no-enable-chunked-prefill"] if self.cpu else []),
            *([] if self.context_tokens is None else ["--max-model-len", str(self.context_tokens)]),
            # Raw log-probabilities ignore the temperature; a model's own settings would change how tokens are drawn.
            "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm",
            *(self._adapters() if self.rank else []),
            # Reads the grammars of `lgov_core.gateway.engine.reply_grammar`.
            "--structured-outputs-config", json.dumps({"backend": "guidance"}),
            "--disable-uvicorn-access-log", *self.arguments,
        ]  # fmt: skip

    def _adapters(self) -> list[str]:
        rank = next((size for size in _RANKS if size >= self.rank), None)
        if rank is None:
            raise SettingsError(f"vLLM has no room for adapters of rank {self.rank}", hint=f"at most {_RANKS[-1]}")
        room = [str(most * self.policies) for most in (2, 8)]
        return ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", room[0], "--max-cpu-loras", room[1]]

    @property
    def needs_control(self) -> bool:
        """Whether vLLM has to serve the routes that replace weights and let it sleep, which no key guards."""
        return self.sleep or not self.rank
