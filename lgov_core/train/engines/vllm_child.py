"""Runs ``vllm serve`` and ends with the process that started it: run as a file by vLLM's own Python, which has no lgov."""

import os
import sys

# Run as a file, its folder is the first place of modules: one of lgov's there must not stand for a library of the same name.
if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
    del sys.path[0]

import select
import signal
import threading


def _end_with_parent() -> None:
    """Ends this process and all that it started once the parent is gone.

    The other end of standard input closes with it, unless a process that it forked, which lives on, holds that end too.
    """
    parent = os.getppid()
    while os.getppid() == parent and not select.select([0], [], [], 1.0)[0]:
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    from vllm.entrypoints.cli.main import main  # pyright: ignore[reportMissingImports]

    main()
