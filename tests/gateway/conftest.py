from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Rollout

SECRET = b"0123456789abcdef0123456789abcdef"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "store.sqlite")
    store.add_rollouts([Rollout(name, task_id="t", run_id="r", input={}) for name in ("r1", "r2")])
    for name in ("r1", "r2"):
        store.start_attempt(name, 1)
    yield store
    store.close()


def until(condition: Callable[[], bool]) -> None:
    """Returns once ``condition`` holds."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def taught() -> Any:
    """The model of `tests.gateway.taught`; nobody changes its weights."""
    from tests.gateway.taught import taught_model

    return taught_model()


class Serving:
    """A scripted model with the endpoint in front of it, over real HTTP."""

    def __init__(self, model: ScriptedModelServer, endpoint: EndpointServer) -> None:
        self.model = model
        self.endpoint = endpoint
        self.url = endpoint.url
        self.base_url = endpoint.base_url
        self.counters = endpoint.app.state.counters


@pytest.fixture
def serve(store: SQLiteStore) -> Iterator[Callable[..., Serving]]:
    """Starts a scripted model and an endpoint that asks it."""
    with ExitStack() as stack:

        def start(script: Any, *, token_ids: bool = True, refuse_fields: Any = (), **options: Any) -> Serving:
            model = stack.enter_context(ScriptedModelServer(script, token_ids=token_ids, refuse_fields=refuse_fields))
            engine = UpstreamEngine(
                model.base_url,
                models=options.pop("models", None),
                timeout_s=options.pop("timeout_s", 20),
                speaks=options.pop("speaks", ("chat", "completions", "embeddings")),
            )
            options.setdefault("keys", KeyRing(SECRET, required=False))
            app = create_app([engine], options.pop("store", store), **options)
            return Serving(model, stack.enter_context(EndpointServer(app)))

        yield start


class Stage:
    """Servers that one file of tests shares, since starting them is most of what a small test would do.

    Calling it sets the script, the store and the gate for one test and says what to ask; what an earlier test left is
    gone. There is one endpoint for each ``speaks``, with a gate and without.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._serving: dict[Any, Serving] = {}
        self._script: Any = None
        self._gate: Any = None
        self._store: Any = None
        self._model = stack.enter_context(ScriptedModelServer(lambda body: self._script(body), token_ids=True))

    def __call__(self, script: Any, *, store: Any = None, speaks: Any = ("chat",), gate: Any = None) -> Serving:
        replies = iter(() if callable(script) else script)
        self._script = script if callable(script) else lambda body: next(replies)
        self._store, self._gate = store, gate
        key = (*speaks, gate is None)
        if key not in self._serving:
            engine = UpstreamEngine(self._model.base_url, speaks=speaks, timeout_s=20)
            keys = KeyRing(SECRET, required=False)
            app = create_app([engine], self, keys=keys, gate=None if gate is None else self)  # type: ignore[arg-type]
            self._serving[key] = Serving(self._model, self._stack.enter_context(EndpointServer(app)))
        serving = self._serving[key]
        for name in serving.counters.as_dict():
            setattr(serving.counters, name, 0)
        serving.endpoint.app.state.endpoint.ready.down_until = 0.0  # an outage ends with its test
        self._model.requests.clear()
        return serving

    dropped_spans = 0

    async def add_call_async(self, call: Any) -> None:
        """The store of the present test."""
        if self._store is not None:
            await asyncio.to_thread(self._store.add_call, call)

    async def admit(self, asked: Any) -> Any:
        """The gate of the present test."""
        return await self._gate.admit(asked)

    async def failed(self, asked: Any, error: BaseException) -> None:
        """As `admit`, for a gate that has it."""
        if hasattr(self._gate, "failed"):
            await self._gate.failed(asked, error)

    def reads_replies(self) -> bool:
        return True

    async def release(self, asked: Any, replies: Any) -> Any:
        """As `admit`."""
        return await self._gate.release(asked, replies)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Servers for a whole file."""
    with ExitStack() as stack:
        yield Stage(stack)


@pytest.fixture(scope="module")
def model():
    from tests.gateway.taught import tiny

    return tiny(3)


@pytest.fixture(scope="module")
def embedded_url(model):
    with EndpointServer([EmbeddedEngine(model, max_new_tokens=8)], None, keys=KeyRing(required=False)) as endpoint:
        yield endpoint.url


def error_in(path: str, reply: httpx.Response) -> str:
    """The message, out of the shape that the API gives its errors."""
    body = reply.json()
    if path.startswith("/v1/messages"):
        assert body["type"] == "error"
        kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error",
                 405: "invalid_request_error", 413: "request_too_large"}  # fmt: skip
        assert body["error"]["type"] == kinds[reply.status_code]
    else:
        assert set(body["error"]) == {"message", "type", "code", "param"}
    return body["error"]["message"]
