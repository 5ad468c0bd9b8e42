"""A vLLM server as a child process that is watched and started again."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from lgov_core.errors import SettingsError, UpstreamError
from lgov_core.train.engines.call_gate import CallGate
from lgov_core.train.engines.vllm_calls import is_healthy
from lgov_core.train.engines.vllm_options import VllmOptions

#: Seconds between looks at the process, and between questions after its health.
_LOOK_S: Final = 0.25
_HEALTH_S: Final = 5.0
#: A server that does not answer so often in a row is started again.
_MISSED: Final = 3
#: A server that ends so often in a row before it ever answered is not started again.
_FAILED_STARTS: Final = 2


class VllmServer:
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
        self.gate = CallGate()
        self.key: str = secrets.token_hex(16)
        self.log, self.restarts, self.url = log, 0, ""
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
        """Whether it answers. Raises `UpstreamError` (503) when it was stopped, or does not start."""
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
            "VLLM_API_KEY": self.key,
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
        asked, missed = time.monotonic(), 0
        while not self._closed and process.poll() is None and missed < _MISSED:
            time.sleep(_LOOK_S)
            if time.monotonic() - asked >= _HEALTH_S:
                missed = 0 if is_healthy(self.url) else missed + 1
                asked = time.monotonic()

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
