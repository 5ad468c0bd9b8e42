"""A vLLM that was started elsewhere."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable
from typing import Final, Self

from lgov_core.errors import SettingsError, UpstreamError
from lgov_core.train.engines.call_gate import CallGate
from lgov_core.train.engines.vllm_calls import ask, is_healthy

_LOG = logging.getLogger(__name__)
#: Seconds between questions after its health.
_LOOK_S: Final = 0.25


class AttachedVllm:
    """A vLLM that runs at ``url`` already. Its base model must be the one that is named; it must read our folders."""

    def __init__(self, url: str, *, key: str | None = None, start_s: float = 600.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise SettingsError(f"{url} is not the URL of a vLLM", hint="such as http://127.0.0.1:8000")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.gate, self.key, self.base = CallGate(), key, ""
        self.restarts = self.generation = 0
        self._start_s = start_s

    def __enter__(self) -> Self:
        self.wait()
        status, text = ask(self, "/v1/models")
        bases: list[str] = []
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):  # it is no vLLM
            bases = [one["id"] for one in json.loads(text)["data"] if not one.get("parent")]
        if status != 200 or not bases:
            raise UpstreamError(f"the vLLM at {self.url} names no model ({status}: {text[:200]})")
        self.base = str(bases[0])
        return self

    def __exit__(self, *exc: object) -> None:
        """Does nothing: the server is not ours."""

    @property
    def ready(self) -> bool:
        """True: a server that is down fails the call."""
        return True

    def on_start(self, load: Callable[[], None]) -> None:
        """Does nothing: restarts of an attached server are not announced. `VllmPolicy` notices that its weights are missing."""

    def wait(self) -> int:
        """Blocks until the server answers."""
        deadline = time.monotonic() + self._start_s
        if not is_healthy(self.url):
            _LOG.warning("the vLLM at %s does not answer: waiting for it, at most %g s", self.url, self._start_s)
        while not is_healthy(self.url):
            if time.monotonic() > deadline:
                raise UpstreamError(f"the vLLM at {self.url} does not answer", status=503, hint="is it running?")
            time.sleep(_LOOK_S)
        return self.generation
