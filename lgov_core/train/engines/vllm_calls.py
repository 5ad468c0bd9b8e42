"""A vLLM server as its users see it (`Vllm`), and requests to its routes for health, adapters and weights."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from typing import Any, Final, Protocol

from lgov_core.train.engines.call_gate import CallGate

#: How often a request is tried that a server does not answer, and seconds before the second try, doubled for each further
#: one: together longer than it takes to notice that the server is lost.
_TRIES: Final = 6
_PAUSE_S: Final = 0.5
#: A proxy of the environment has nothing to do with a server of this machine.
_open: Final = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class Vllm(Protocol):
    """A server that `VllmPolicy` publishes to, at ``url``. Callable from any thread.

    ``base`` is its name for the model without adapters, ``restarts`` how often it had to be started again. Calls go through
    ``gate``.
    """

    gate: CallGate
    url: str
    base: str
    restarts: int

    @property
    def key(self) -> str | None:
        """The API key that it asks for."""
        ...

    @property
    def generation(self) -> int:
        """Grows when the server has lost what was loaded into it."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it may be asked. Raises `UpstreamError` (503) when it never will again."""
        ...

    def wait(self) -> int:
        """Blocks until the server answers; returns the generation. Raises `UpstreamError` when it does not come up."""
        ...

    def on_start(self, load: Callable[[], None]) -> None:
        """``load`` is called each time the server has started again, before anybody else may use it."""
        ...


def is_healthy(url: str) -> bool:
    """Whether the server at ``url`` answers and its engine lives."""
    try:
        with _open(f"{url}/health", timeout=10.0) as answer:
            return answer.status == 200
    except (OSError, ValueError, HTTPException):
        return False


def attempts(server: Vllm) -> Iterator[int]:
    """Waits for the server before each try of a request, and yields its generation. Raises as `Vllm.wait`.

    A vLLM whose engine died answers 500 until it ends itself, or is started again because its health does not answer.
    """
    for number in range(_TRIES):
        if number:
            time.sleep(_PAUSE_S * 2 ** (number - 1))
        yield server.wait()


def ask(server: Vllm, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 300.0) -> tuple[int, str]:
    """Status and text of the answer; a POST where there is a ``body``. Raises `OSError` when there is no answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **authorization(server)}
    request = urllib.request.Request(f"{server.url}{path}", data, headers)
    try:
        with _open(request, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except HTTPException as error:
        raise OSError(f"{server.url}{path} was not answered in HTTP: {error!r}") from error


def authorization(server: Vllm) -> dict[str, str]:
    """The header with the server's API key, if it has one."""
    return {} if server.key is None else {"authorization": f"Bearer {server.key}"}
