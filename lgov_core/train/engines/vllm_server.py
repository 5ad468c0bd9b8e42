"""A vLLM server: started as a child process that is watched and started again, or attached to where it runs elsewhere."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Self

from lgov_core.errors import SettingsError, UpstreamError


class CallGate:
    """Lets calls in, or none while it is closed, which it may be several times. From any thread."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._running = self._closed = 0

    def enter(self) -> bool:
        """Returns whether a call may begin; if so, it has to `leave`."""
        with self._state:
            if self._closed:
                return False
            self._running += 1
            return True

    def leave(self) -> None:
        """A call that entered has ended."""
        with self._state:
            self._running -= 1
            self._state.notify_all()

    def close(self) -> int:
        """Holds new calls and waits for those that run; returns how often it is closed with this."""
        with self._state:
            self._closed += 1
            times = self._closed
            try:
                self._state.wait_for(lambda: not self._running)
            except BaseException:
                self._closed -= 1
                raise
            return times

    def open(self) -> None:
        """Undoes one `close`."""
        with self._state:
            self._closed -= 1

    @property
    def times_closed(self) -> int:
        """How often it is closed."""
        return self._closed


_LOG: Final = logging.getLogger(__name__)
_CHILD: Final = Path(__file__).with_name("vllm_child.py")
#: The ranks that vLLM has room for.
_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """How vLLM is started.

    ``url`` is that of one that runs already: it is only asked. ``python`` is the interpreter of the environment that has vLLM.
    ``dtype`` is float32, bfloat16 or float16. ``gpu_memory`` is the share of a GPU's memory that it takes, ``context_tokens``
    bounds prompt and reply together (None: the model's own). ``rank`` is the highest rank of adapters (0: all weights are
    replaced), ``policies`` how many of them learn: of each, one batch may hold calls of two versions, and eight versions may be
    loaded. ``start_s`` bounds the seconds of a start; ``cpu``: there is no GPU. ``sleep``: it sleeps while it is paused.
    ``arguments`` go to ``vllm serve`` after lgov's own, and so win over them.
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
    url: str | None = None

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
            # Reads the grammars of `lgov_core.gateway.engine.reply_codec`.
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
        """True where vLLM has to serve the routes that replace weights and let it sleep, which no key guards."""
        return self.sleep or not self.rank


#: How often a request is tried that a server does not answer, and seconds before the second try, doubled for each further
#: one: together longer than it takes to notice that the server is lost.
_TRIES: Final = 6
_PAUSE_S: Final = 0.5
#: A proxy of the environment has nothing to do with a server of this machine.
_open: Final = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class Vllm(ABC):
    """A server that `VllmPolicy` publishes to, at ``url``. Callable from any thread.

    ``base`` is its name for the model without adapters, ``key`` the API key that it asks for, ``restarts`` how often it had to
    be started again. Calls go through ``gate``. Where it ``sleeps``, a pause leaves its GPU memory to others: it moves its
    weights to the processor's and drops its cache.
    """

    url: str
    base: str
    key: str | None
    restarts: int = 0

    def __init__(self, *, sleeps: bool) -> None:
        self.gate = CallGate()
        self._sleeps = sleeps

    @property
    @abstractmethod
    def generation(self) -> int:
        """Grows when the server has lost what was loaded into it."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """True while it may be asked. Raises `UpstreamError` (503) when it never will again."""

    @abstractmethod
    def wait(self) -> int:
        """Blocks until the server answers; returns the generation. Raises `UpstreamError` when it does not come up."""

    @abstractmethod
    def on_start(self, load: Callable[[], None]) -> None:
        """``load`` is called each time the server has started again, before anybody else may use it."""

    def pause(self) -> None:
        """Waits for running calls and holds new ones; the first pause puts it to sleep. Raises `UpstreamError`."""
        if self.gate.close() == 1 and self._sleeps:
            try:
                self._do("/sleep?level=1")
            except BaseException:
                self.gate.open()
                raise

    def resume(self) -> None:
        """Ends one pause; the last wakes it up. Raises `UpstreamError` when it does not wake up."""
        try:
            if self.gate.times_closed == 1 and self._sleeps:
                import torch

                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                self._do("/wake_up")
        finally:
            self.gate.open()

    def _do(self, what: str) -> None:
        failure = ""
        for _ in attempts(self):
            try:
                status, text = ask(self, what, {})
            except OSError as error:  # it is lost, and is started again
                failure = str(error)
                continue
            if status == 200:
                return
            failure = f"{status}: {text[:300]}"
        raise UpstreamError(f"vLLM refuses {what}: {failure}")


def is_healthy(url: str) -> bool:
    """Returns whether the server at ``url`` answers and its engine lives."""
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


#: Seconds between looks at the process, and between questions after its health.
_LOOK_S: Final = 0.25
_HEALTH_S: Final = 5.0
#: A server that does not answer so often in a row is started again.
_MISSED: Final = 3
#: A server that ends so often in a row before it ever answered is not started again.
_FAILED_STARTS: Final = 2


class VllmServer(Vllm):
    """vLLM in a process group of its own on a free loopback port; a context manager. Ends with this process, however that ends.

    A thread watches it: when it ended, or its health does not answer, everything in the group is killed and it is started
    again; callbacks of `on_start` run before `wait` returns. When it ends twice in a row before it answers, `wait` raises from
    then on. Its output goes to ``log``. Entering blocks until it answers. Raises `UpstreamError` and `SettingsError`.
    """

    def __init__(self, model: str, name: str, options: VllmOptions, log: Path) -> None:
        if not os.access(options.python, os.X_OK):
            raise SettingsError(
                f"there is no Python with vLLM at {options.python}",
                hint="python -m venv .venv-vllm && .venv-vllm/bin/pip install vllm, or --vllm-python PYTHON",
            )
        # A name and key that no other server has: an answer from elsewhere cannot be taken for this one's.
        self.base = f"{name}-{secrets.token_hex(4)}"
        super().__init__(sleeps=options.sleep)
        self.key = self._own_key = secrets.token_hex(16)
        self.log, self.url = log, ""
        self._model, self._options = model, options
        self._state = threading.Condition()
        self._generation = 0
        self._ready = self._closed = False
        self._failure: str | None = None
        self._loads: list[Callable[[], None]] = []
        options.command(model, name, 0)  # raises for what cannot be started
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = threading.Thread(target=self._watch, name="lgov-vllm", daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        try:
            self.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def generation(self) -> int:
        """How often it was started again."""
        return self._generation

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    def on_start(self, load: Callable[[], None]) -> None:
        """``load`` runs in the watching thread after each start, before `wait` returns; it may raise `UpstreamError`."""
        self._loads.append(load)

    @property
    def ready(self) -> bool:
        """True while it answers. Raises `UpstreamError` (503) when it was stopped, or does not start."""
        if self._failure or self._closed:
            why = self._failure or "it was stopped"
            raise UpstreamError(f"vLLM is not running: {why}", status=503, hint=f"its output is in {self.log}")
        process = self._process
        return self._ready and process is not None and process.poll() is None

    def wait(self) -> int:
        """Blocks until the server answers; returns the generation. Raises as `ready`."""
        with self._state:
            while not self.ready:
                self._state.wait(_LOOK_S)
            return self._generation

    def close(self) -> None:
        """Ends the server and everything it started; waiting calls fail."""
        with self._state:
            self._closed, self._ready = True, False
            self._state.notify_all()
        self._kill()
        if self._watcher.is_alive() and threading.current_thread() is not self._watcher:
            self._watcher.join(30.0)

    # ------------------------------------------------------------------ in the watching thread

    def _watch(self) -> None:
        failed = 0
        while not self._closed:
            try:
                process = self._start()
                failed = 0
            except (UpstreamError, OSError) as error:
                failed += 1
                self._kill()
                if failed >= _FAILED_STARTS and not self._closed:
                    with self._state:
                        self._failure = error.message if isinstance(error, UpstreamError) else str(error)
                        self._state.notify_all()
                    return
                continue
            self._until_down(process)
            with self._state:
                self._ready = False
                self._generation += 1
            if not self._closed:
                self.restarts += 1
            self._kill()

    def _start(self) -> subprocess.Popen[bytes]:
        """Starts the process and returns it once it answers and has loaded what it had. Raises `UpstreamError`."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        environment = {
            **os.environ,
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_API_KEY": self._own_key,
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
            "VLLM_NO_USAGE_STATS": "1",
            **({"VLLM_SERVER_DEV_MODE": "1"} if self._options.needs_control else {}),
        }
        environment.pop("PYTHONPATH", None)
        with self.log.open("ab") as log:
            self._process = process = subprocess.Popen(
                self._options.command(self._model, self.base, port),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        deadline = time.monotonic() + self._options.start_s
        while not is_healthy(url):
            status = process.poll()
            if status is not None or self._closed:
                raise UpstreamError(f"it ended with status {status} before it answered")
            if time.monotonic() > deadline:
                raise UpstreamError(f"it did not answer within {self._options.start_s:g} s")
            time.sleep(_LOOK_S)
        self.url = url
        for load in self._loads:
            load()
        with self._state:
            self._ready = not self._closed
            self._state.notify_all()
        return process

    def _until_down(self, process: subprocess.Popen[bytes]) -> None:
        checked, missed = time.monotonic(), 0
        while not self._closed and process.poll() is None and missed < _MISSED:
            time.sleep(_LOOK_S)
            if time.monotonic() - checked >= _HEALTH_S:
                missed = 0 if is_healthy(self.url) else missed + 1
                checked = time.monotonic()

    def _kill(self) -> None:
        process = self._process
        if process is None:
            return
        self._process = None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class AttachedVllm(Vllm):
    """A vLLM that runs at ``url`` already. Its base model must be the one that is named; it must read our folders."""

    def __init__(self, url: str, *, key: str | None = None, start_s: float = 600.0, sleeps: bool = False) -> None:
        if not url.startswith(("http://", "https://")):
            raise SettingsError(f"{url} is not the URL of a vLLM", hint="such as http://127.0.0.1:8000")
        self.url = url.rstrip("/").removesuffix("/v1")
        super().__init__(sleeps=sleeps)
        self.key, self.base = key, ""
        self._start_s = start_s

    def __enter__(self) -> Self:
        self.wait()
        status, text = ask(self, "/v1/models")
        bases: list[str] = []
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):  # it is no vLLM
            bases = [model["id"] for model in json.loads(text)["data"] if not model.get("parent")]
        if status != 200 or not bases:
            raise UpstreamError(f"the vLLM at {self.url} names no model ({status}: {text[:200]})")
        self.base = str(bases[0])
        return self

    def __exit__(self, *exc: object) -> None:
        """Does nothing: the server is not ours."""

    @property
    def generation(self) -> int:
        """0: what it loses is noticed by a call that does not find it."""
        return 0

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
