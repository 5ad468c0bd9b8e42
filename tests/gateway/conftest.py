from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lgov_core.gateway.app import create_app
from lgov_core.gateway.keys import KeyRing
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
