"""Runs ``vllm serve`` and ends with the process that started it: run as a file by vLLM's own Python, which has no lgov."""

import os
import signal
import sys
import threading


def _end_with_parent() -> None:
    """Ends this process and all that it started once the parent, which holds the other end of standard input, is gone."""
    os.read(0, 1)  # not sys.stdin, which must not be in use when the interpreter ends
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    from vllm.entrypoints.cli.main import main  # pyright: ignore[reportMissingImports]

    main()
