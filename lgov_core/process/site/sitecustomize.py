"""Python imports this at the start of every process that a governed program starts: see `lgov_core.process.children`."""

import os
import sys


def _govern() -> None:
    if "LGOV_CHILD" not in os.environ:
        return
    try:
        from lgov_core.process.children import govern_child
    except BaseException as error:  # noqa: BLE001 - ungoverned it must not run, whatever is missing
        if os.path.isdir("/.lgov-box"):  # the kernel holds it: `lgov_core.places.MARK`
            return
        sys.stderr.write(
            f"lgov: not run: {sys.executable} was started by a governed program and cannot be governed:"
            f" {type(error).__name__}: {error}\n  hint: install lgov there, or run the program with --children allow\n"
        )
        sys.stderr.flush()
        os._exit(78)
    govern_child()


def _next_one() -> None:
    """Runs the sitecustomize that this file shadows, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in sys.path if os.path.abspath(entry) != here]
    if len(rest) == len(sys.path):
        return
    sys.path[:] = rest
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401 # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


_govern()
_next_one()
