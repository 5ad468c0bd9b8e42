"""The layers of a box: which are in force, and giving up for good what the rules do not allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from lgov_core.confine import landlock, namespaces, privileges, root, seccomp
from lgov_core.confine.plan import Plan
from lgov_core.errors import InstrumentationError

T = TypeVar("T")
BEST_EFFORT = "or run with --confine=best-effort, which goes on without it"
_FIXES = {
    "namespaces": namespaces.FIX,
    "root": root.FIX,
    "landlock": "use Linux 6.7 or later with landlock among its security modules (boot parameter lsm=)",
    "capabilities": "use Linux 5.9 or later",
    "limits": "run lgov as an ordinary user, or leave the limit out",
    "seccomp": "use Linux 5.0 or later on x86-64 or aarch64",
}


@dataclass(slots=True)
class Layers:
    """Which layers are in force, each with its version where it has one, and why the others are not."""

    strict: bool
    held: dict[str, str] = field(default_factory=dict[str, str])
    missing: dict[str, str] = field(default_factory=dict[str, str])

    def put(self, name: str, apply: Callable[[], T]) -> T | None:
        """Applies a layer; returns what ``apply`` does. Raises `InstrumentationError` as `without` does."""
        try:
            result = apply()
        except OSError as error:
            self.without(name, str(error))
            return None
        self.held[name] = ""
        return result

    def without(self, name: str, why: str) -> None:
        """Goes on without a layer, or a part of one. Raises `InstrumentationError` when the box is strict."""
        if self.strict:
            raise InstrumentationError(
                f"confinement: {name} cannot be had: {why}", hint=f"{_FIXES[name.split()[0]]}; {BEST_EFFORT}"
            )
        self.missing[name] = why


def lock_down(plan: Plan, layers: Layers, ports: list[int]) -> int | None:
    """Gives up for good what the rules do not allow; returns the descriptor of `lgov_core.confine.seccomp.install`."""
    layers.put("limits", lambda: privileges.limit(plan.rules))
    layers.put("capabilities", privileges.drop_capabilities)
    apart, rooted = "namespaces" in layers.held, "root" in layers.held
    # Without a root of the box's own, what would lie at a private folder's place there is the user's.
    mounts = {path: mount for path, mount in plan.mounts.items() if rooted or mount.source == path}
    rights = {path: landlock.WRITE if mount.writable else landlock.READ for path, mount in mounts.items()}
    rights |= {f"/dev/{name}": landlock.DEVICE for name in root.DEVICES} | {"/proc": landlock.READ}
    if rooted:
        rights |= {"/": landlock.READ_DIR, "/dev/pts": landlock.WRITE | landlock.IOCTL_DEV, "/dev/shm": landlock.WRITE}
    else:
        rights |= {f"{plan.private}/tmp": landlock.WRITE}
    layers.put("landlock", lambda: landlock.restrict(rights, None if apart else ports))
    if "landlock" in layers.held:
        version = landlock.abi()
        layers.held["landlock"] = f"ABI {version}"
        if version < landlock.STRICT_ABI:
            layers.without("landlock ABI", f"the kernel has ABI {version}, and {landlock.STRICT_ABI} is needed")
    if not rooted and "landlock" not in layers.held:
        raise InstrumentationError(
            "confinement: neither a root of its own nor landlock can be had, so no file would be out of reach",
            hint=f"{_FIXES['namespaces']}; or {_FIXES['landlock']}",
        )
    return layers.put("seccomp", lambda: seccomp.install(unix_sockets=rooted))
