"""The other half of `verl_on_cpu`: verl's FSDP engine for the CPU, and servers that sample with transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import ray
import torch
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "transformers"
EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cpu"])(FSDPEngineWithLMHead)


def _actor_name(replica: int) -> str:
    return f"lgov_test_server_{replica}"


class WeightsSender(BaseRollout):
    """In the trainer's process: sends new weights to the server, as the adapters of vLLM and SGLang do."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = 0) -> None:
        super().__init__(config, model_config, device_mesh)
        self.server = _actor_name(0)

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: Iterator[Any],
        global_steps: int | None = None,
        peft_config: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        state = {name: tensor.detach().to(torch.float32).clone() for name, tensor in weights}
        await ray.get_actor(self.server).load.remote(state, global_steps, peft_config)


@ray.remote(num_cpus=0)
class Server:
    """Samples tokens. Calls that come together are answered one after the other: the model is tiny."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.step = -1  # as made: nothing was sent yet
        self.random = torch.Generator().manual_seed(0)

    async def load(self, state: dict[str, Any], step: int | None, adapters: dict[str, Any] | None) -> None:
        if adapters is None:
            self._load_all(state)
        else:
            self._load_adapters(state, adapters)
        self.step = step or 0

    def _load_adapters(self, state: dict[str, Any], config: dict[str, Any]) -> None:
        """As vLLM's ``add_lora``: the model stays as it was loaded, and the adapters before are replaced."""
        from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

        if not hasattr(self.model, "peft_config"):
            self.model = get_peft_model(self.model, LoraConfig(**config)).eval()
        if state.keys() != get_peft_model_state_dict(self.model).keys():
            raise RuntimeError(f"other adapters came than {config} has: {sorted(state)[:3]}")
        set_peft_model_state_dict(self.model, state)

    def _load_all(self, state: dict[str, Any]) -> None:
        missing = self.model.load_state_dict(state, strict=False).missing_keys
        tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
        if set(missing) - tied:
            raise RuntimeError(f"no weights came for {sorted(set(missing) - tied)}")

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        ids, out, logprobs = torch.tensor([prompt_ids]), [], []
        temperature = sampling_params["temperature"] or 1e-6
        cache = None
        with torch.no_grad():
            for _step in range(sampling_params["max_tokens"]):
                answer = self.model(ids if cache is None else ids[:, -1:], past_key_values=cache, use_cache=True)
                cache = answer.past_key_values
                row = (answer.logits[0, -1] / temperature).log_softmax(-1)
                token = int(torch.multinomial(row.exp(), 1, generator=self.random))
                out.append(token)
                logprobs.append(float(row[token]))
                if token == self.model.config.eos_token_id:
                    break
                ids = torch.cat([ids, torch.tensor([[token]])], dim=1)
        await asyncio.sleep(0)
        return TokenOutput(
            token_ids=out, log_probs=logprobs, stop_reason="completed", extra_fields={"global_steps": self.step}
        )

    async def sleep(self) -> None: ...

    async def wake_up(self) -> None: ...

    async def abort_all_requests(self, **_: Any) -> None: ...

    async def resume_generation(self) -> None: ...

    async def clear_kv_cache(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...


class Replica(RolloutReplica):
    async def launch_servers(self) -> None:
        path = self.model_config.path if hasattr(self.model_config, "path") else self.model_config["path"]
        self._server_handle = Server.options(name=_actor_name(self.replica_rank)).remote(path)
        self.servers = [self._server_handle]
        self._server_address = "127.0.0.1:0"


_ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.WeightsSender"
RolloutReplicaRegistry.register(NAME, lambda: Replica)
