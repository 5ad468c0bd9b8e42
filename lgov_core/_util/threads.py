"""How the threads of a numerical library wait for each other."""

from __future__ import annotations

import os


def wait_without_spinning() -> None:
    """Has OpenMP's threads sleep while they wait, unless the environment says otherwise. For before torch is imported.

    Beside other programs a thread that spins keeps the one that it waits for from the processor: decoding is then several
    times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
