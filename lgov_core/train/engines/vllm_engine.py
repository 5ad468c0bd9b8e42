"""The engines of a training server, embedded and on a vLLM server, and which policy answers a call.

On vLLM lgov writes prompts and reads replies, vLLM samples token ids (`/v1/completions`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from lgov_core.errors import EndpointError, SettingsError, UpstreamError
from lgov_core.gateway.access import caller
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.engine.reply_codec import Generated
from lgov_core.gateway.limits import Reading
from lgov_core.gateway.protocol import ANY_MODEL
from lgov_core.gateway.token_engine import TokenEngine, TokenPrompt
from lgov_core.train.engines.vllm_policy import Version, VllmPolicy, VllmWeights
from lgov_core.train.engines.vllm_server import AttachedVllm, VllmOptions, VllmServer, authorization
from lgov_core.train.sections import PolicySection
from lgov_core.transitions.calls import matches
from lgov_core.wire.exchange import ChatRequest

if TYPE_CHECKING:
    from lgov_core.models import LanguageModel

_MAX_CONNECTIONS: Final = 1024
#: vLLM drops idle connections after five seconds; a call must not race with that.
_KEEPALIVE_S: Final = 3.0
#: Seconds that a reply may take.
_REPLY_S: Final = 300.0
#: Seconds between looks at a server that is started again, or whose weights are being replaced.
_LOOK_S: Final = 0.1


def policy_of(request: ChatRequest, routes: Mapping[str, PolicySection]) -> str:
    """The policy that a call asks for as its model, else the first that has the calling agent.

    A call of another agent is refused (400), since nothing would be trained on it.
    """
    if request.model in routes:
        return request.model
    agent = caller().agent
    for name, policy in routes.items():
        if agent is not None and matches(agent, policy.agents):
            return name
    raise EndpointError(
        f"no policy is for {'a call without an agent' if agent is None else f'agent {agent!r}'}",
        hint=f"name it in training.policies, or ask for model {' or '.join(routes)}",
    )


class PolicyEngine(EmbeddedEngine):
    """The embedded engine with the model under training: it answers whatever model a call names.

    With ``routes`` each call is answered by one of these policies: see `policy_of`.
    """

    served_as: str | None = None
    routes: Mapping[str, PolicySection] = MappingProxyType({})

    @property
    def models(self) -> Sequence[str]:
        """The model's own name, a further one, and every other."""
        own = list(super().models)
        return (*own, *([] if self.served_as in (None, *own) else [str(self.served_as)]), ANY_MODEL)

    def _policy_of(self, request: ChatRequest) -> str:
        return policy_of(request, self.routes) if self.routes else super()._policy_of(request)


class VllmEngine(TokenEngine):
    """Answers chat completions through a vLLM, each call with one exact version of the weights.

    Replies in JSON, demanded tool calls, ``top_p`` below 1 and temperatures above 0 and below 0.01 are possible, but vLLM's
    log-probabilities are then those of another choice; such calls are recorded without log-probabilities, and so are never
    trained on. ``lost`` counts the calls that the server did not answer: they are an `UpstreamError` (502), and clients ask
    again. While the server is being started again calls wait. ``policies`` are further models by
    name, on the same server: each call is answered by one of them, or by ``policy`` (``route``: see `TokenEngine`).
    """

    name = "vllm"
    grammars = True

    def __init__(
        self,
        model: LanguageModel,
        policy: VllmPolicy,
        *,
        also: Sequence[str] = (),
        policies: Mapping[str, VllmPolicy] = MappingProxyType({}),
        route: Callable[[ChatRequest], str] | None = None,
        context_tokens: int | None = None,
        max_new_tokens: int = 1024,
    ) -> None:
        super().__init__(
            model, self._sample, also=also, policies=tuple(policies), route=route,
            context_tokens=context_tokens, max_new_tokens=max_new_tokens,
        )  # fmt: skip
        self.policies = {"": policy, **policies}
        self.lost = 0
        self._end_ids = sorted(model.eos_ids)
        self._timeout = aiohttp.ClientTimeout(total=_REPLY_S, sock_connect=10.0)
        self._session: aiohttp.ClientSession | None = None
        self._chores: set[asyncio.Future[Any]] = set()

    @property
    def policy(self) -> VllmPolicy:
        """The policy that answers calls that are of no other."""
        return self.policies[""]

    async def start(self) -> None:
        """Opens the connections."""
        connector = aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEPALIVE_S)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def close(self) -> None:
        """Closes the connections; what is still waiting fails."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        await asyncio.gather(*self._chores, return_exceptions=True)

    def figures(self) -> dict[str, int]:
        """Counts since the start: ``restarts`` of the server, and calls ``lost`` with it."""
        return {"vllm_restarts": self.policy.server.restarts, "vllm_calls_lost": self.lost}

    def readings(self) -> Iterable[Reading]:
        """For the endpoint's metrics."""
        restarts, lost = self.figures().values()
        yield "counter", "lgov_vllm_restarts", "Restarts of vLLM.", None, {"": restarts}
        yield "counter", "lgov_vllm_calls_lost", "Calls that vLLM did not answer.", None, {"": lost}

    async def _sample(self, prompt: TokenPrompt) -> Generated:
        policy = self.policies[prompt.policy]
        server = policy.server
        while not (server.ready and server.gate.enter()):
            await asyncio.sleep(_LOOK_S)
        try:
            policy.check()
            with policy.call() as version:
                answer = await self._ask_vllm(prompt, policy, version)
        finally:
            server.gate.leave()
        if policy.unused():
            chore = asyncio.get_running_loop().run_in_executor(None, policy.drop_unused)
            self._chores.add(chore)
            chore.add_done_callback(self._chores.discard)
        choice = answer["choices"][0]
        if answer.get("model") != version.name or choice["finish_reason"] not in ("stop", "length"):
            raise UpstreamError(f"vLLM answered for {answer.get('model')!r} and ended with {choice['finish_reason']!r}")
        # Temperatures below 0.01 are raised to that by vLLM.
        narrowed = prompt.grammar is not None or prompt.top_p < 1.0 or 0.0 < prompt.temperature < 0.01
        logprobs = None if narrowed else tuple(choice["logprobs"]["token_logprobs"])
        return Generated(tuple(choice["token_ids"]), logprobs, version.number)

    async def _ask_vllm(self, prompt: TokenPrompt, policy: VllmPolicy, version: Version) -> dict[str, Any]:
        if self._session is None:
            raise EndpointError("the engine is not running", status=503)
        seed = None if prompt.seed is None else prompt.seed % 2**63  # vLLM takes no others, and -1 for none
        body: dict[str, Any] = {
            "model": version.name, "prompt": list(prompt.prompt_ids), "max_tokens": prompt.max_tokens,
            "temperature": prompt.temperature, "top_p": prompt.top_p, "top_k": -1, "min_p": 0.0,
            "repetition_penalty": 1.0, "seed": seed, "stop": list(prompt.stop), "logprobs": 0,
            "return_token_ids": True, "stop_token_ids": self._end_ids,
            **({} if prompt.grammar is None else {"structured_outputs": {"grammar": prompt.grammar}}),
        }  # fmt: skip
        server = policy.server
        url, headers = f"{server.url}/v1/completions", authorization(server)
        try:
            async with self._session.post(url, json=body, headers=headers, timeout=self._timeout) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.lost += 1
            raise UpstreamError(f"vLLM did not answer: {type(error).__name__}", hint="ask again") from error
        if response.status == 404 and version is policy.current:
            # An attached server was restarted without our weights; no call was answered with others.
            self.lost += 1
            await asyncio.to_thread(policy.reload)
            raise UpstreamError("vLLM had lost the weights, which are loaded again", hint="ask again")
        if response.status == 400:
            raise EndpointError(f"vLLM refuses the call: {text[:300]}")
        if response.status != 200:
            self.lost += 1
            raise UpstreamError(f"vLLM answered {response.status}", detail=text[:300], refused=True)
        return json.loads(text)


@contextlib.contextmanager
def open_vllm(
    model: LanguageModel,
    source: str,
    folder: Path,
    options: VllmOptions,
    *,
    also: Sequence[str] = (),
    policies: Mapping[str, PolicySection] = MappingProxyType({}),
    max_new_tokens: int = 1024,
) -> Generator[VllmEngine]:
    """The engine on a vLLM that serves ``source`` (a folder or hub name), started by ``options`` or at their ``url``.

    ``model`` is the same model, whose weights are not used. ``folder`` gets ``vllm.log``, and ``adapters/`` or
    ``all_weights/``. The API key of a server that runs already is the variable VLLM_API_KEY. With rank 0 all weights are
    published (`VllmWeights`), else adapters. With ``policies`` each call is answered by one of them: see `policy_of`. Raises
    `UpstreamError` and `SettingsError`.
    """
    if options.rank == 0 and options.url is not None:
        raise SettingsError(
            "all weights (model.lora_rank 0) are published to a vLLM that lgov starts",
            hint="leave --engine-url out, or train adapters: after a restart yours would answer with other weights",
        )
    with (
        VllmServer(source, model.name, options, folder / "vllm.log")
        if options.url is None
        else AttachedVllm(
            options.url, key=os.environ.get("VLLM_API_KEY"), start_s=options.start_s, sleeps=options.sleep
        )
    ) as server:
        yield VllmEngine(
            model,
            VllmPolicy(server, folder / "adapters")
            if options.rank
            else VllmWeights(server, folder / "all_weights", source),
            also=also,
            policies={name: VllmPolicy(server, folder / "adapters" / name, name=name) for name in policies},
            route=functools.partial(policy_of, routes=policies) if policies else None,
            context_tokens=options.context_tokens,
            max_new_tokens=max_new_tokens,
        )
