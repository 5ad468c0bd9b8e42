"""Starts commands of lgov as processes that are forked from one that has loaded torch already: each begins at once.

Its standard input takes a JSON object a line: ``argv``, ``cwd``, ``env``, ``log`` (both outputs go there) and ``hold``; each
is answered with the process id. ``{"wait": pid}`` is answered with the exit status, as subprocess gives it. ``hold`` makes the
command wait at a moment of its own, until a file is there: ``{"at": "open:NAME"}`` when a file of that name is opened,
``{"at": "rename:NAME"}`` when something is renamed to it, ``{"at": "step"}`` at an optimiser's step; it touches
``held`` and goes on when ``go`` is there. What arrives meanwhile, such as Ctrl-C, arrives at that moment.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Warm:
    """Such a process, running: the side that asks. ``environ`` and ``cwd`` are what it begins with."""

    def __init__(self, environ: dict[str, str], cwd: Path) -> None:
        command = [sys.executable, "-m", "tests.pair.warm_process"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, cwd=cwd, text=True
        )

    def ask(self, asked: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def hold(at: str, held: str, go: str) -> None:
    state = {"left": 1}

    def stop(*_: Any) -> None:
        if state["left"]:
            state["left"] = 0
            Path(held).touch()
            while not os.path.exists(go):
                time.sleep(0.01)

    kind, _, name = at.partition(":")
    if kind == "step":
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(stop)
        return
    event, place = {"open": ("open", 0), "rename": ("os.rename", 1)}[kind]

    def hook(found: str, arguments: tuple[Any, ...]) -> None:
        if found == event and os.path.basename(str(arguments[place])) == name:
            stop()

    sys.addaudithook(hook)


def run(asked: dict[str, Any]) -> None:
    os.chdir(asked["cwd"])
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, to in ((0, nothing), (1, log), (2, log)):
        os.dup2(to, number)
    os.environ.update(asked["env"])
    sys.path.insert(0, asked["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked["hold"]:
        hold(**asked["hold"])
    module, *arguments = asked["argv"]
    sys.argv = [module, *arguments]
    if module == "lgov":
        from lgov_core.commands import main

        main()
    elif module == "python":  # a program
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        sys.exit(0)
    else:
        from lgov_core.server.command import server_command

        server_command()


def main() -> None:
    for name in ("server.local", "server.sft", "evaluation.evaluation", "evaluation.promotion"):
        importlib.import_module(f"lgov_core.{name}")
    importlib.import_module("transformers.models.llama.modeling_llama")
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            print(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]), flush=True)
            continue
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        run(asked)  # ends with SystemExit, and so the process, as a command does
        raise AssertionError("the command did not say how it ended")


if __name__ == "__main__":
    main()
