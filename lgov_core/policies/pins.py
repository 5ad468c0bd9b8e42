"""PinnedToolsPolicy: a tool keeps the description and the arguments that it had when it was first offered to a model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, cast

from lgov_core._util.file_kind import FileKind
from lgov_core._util.json_text import NotCanonical, canonical_json
from lgov_core.errors import PolicyError
from lgov_core.policies.base import BoundedPolicy, in_dry_run
from lgov_core.policies.budgets.ledger import SharedDatabase
from lgov_core.policies.options import PolicyOptions, Text, takes
from lgov_core.types import Action, Decision, Point

PINS: Final = FileKind(
    what="file of pinned tools",
    application_id=int.from_bytes(b"lgvT"),
    version=1,
    schema=("CREATE TABLE pins (name TEXT PRIMARY KEY, definition TEXT NOT NULL, changed TEXT)",),
    error=PolicyError,
)


@dataclass(frozen=True, slots=True)
class Pin:
    """A tool's definition as canonical JSON; ``changed`` is the last other one that was offered, and waits for approval."""

    name: str
    definition: str
    changed: str | None


class PinnedTools(SharedDatabase):
    """The definitions of tools by name, in the SQLite file at ``path`` or, without one, in this process.

    May be used from several threads and processes at once. Raises `PolicyError`.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(PINS, path)

    def all(self) -> list[Pin]:
        """Every pinned tool, by name."""
        with self.transaction() as connection:
            return [Pin(*row) for row in connection.execute("SELECT name, definition, changed FROM pins ORDER BY name")]

    def offer(self, definitions: Mapping[str, str]) -> list[str]:
        """Pins the tools that are new. Returns the names of those whose definition is not the pinned one."""
        changed: list[str] = []
        with self.transaction() as connection:
            for name, definition in definitions.items():
                connection.execute("INSERT INTO pins VALUES (?, ?, NULL) ON CONFLICT DO NOTHING", (name, definition))
                (pinned,) = connection.execute("SELECT definition FROM pins WHERE name = ?", (name,)).fetchone()
                if pinned != definition:
                    connection.execute("UPDATE pins SET changed = ? WHERE name = ?", (definition, name))
                    changed.append(name)
        return changed

    def approve(self, digest: str) -> Pin:
        """Pins the changed definition with this digest. Raises `PolicyError` when none with it waits."""
        for pin in self.all():
            if pin.changed is not None and digest_of_definition(pin.changed) == digest:
                with self.transaction() as connection:
                    connection.execute(
                        "UPDATE pins SET definition = ?, changed = NULL WHERE name = ?", (pin.changed, pin.name)
                    )
                return Pin(pin.name, pin.changed, None)
        raise PolicyError(
            f"no changed tool has the digest {digest}", hint="list them again: it may have changed once more"
        )


def digest_of_definition(definition: str) -> str:
    """SHA-256, in hex, of a definition."""
    return hashlib.sha256(definition.encode()).hexdigest()


class PinnedToolsOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of a `PinnedToolsPolicy`."""

    paths = kept = ("store",)
    in_python = MappingProxyType({"store": (os.PathLike,)})

    store: str | os.PathLike[str] | None = None
    name: Text = "pinned"


class PinnedToolsPolicy(BoundedPolicy):
    """Denies a model call that offers a tool with another definition than at first, or two tools of one name.

    The first definition (description and schema) is kept in the SQLite file ``store``, or for the life of the process. A
    changed one is denied until a person approves its digest (``lgov policy trust``).

    Judges ``pre_model_call``, by the definitions in ``Action.context["tools"]`` or, where a host gives them as arguments,
    ``Action.arguments["tools"]``; a call that does not say which tools it offers is denied. It only restricts. May be
    called from several threads at once. Fails closed.
    """

    default_points: ClassVar[tuple[Point, ...]] = (Point.PRE_MODEL_CALL,)

    @takes(PinnedToolsOptions)
    def __init__(self, options: PinnedToolsOptions) -> None:
        self.name = options.name
        path = None if options.store is None or in_dry_run() else os.fspath(options.store)
        self.pins = PinnedTools(path)
        self.bounded = path is None

    def judge(self, action: Action) -> Decision | None:
        """The verdict on a model call; None at other points."""
        if action.point is not Point.PRE_MODEL_CALL:
            return None
        tools = action.context.get("tools", action.arguments.get("tools"))
        definitions: dict[str, str] = {}
        try:
            if not isinstance(tools, list | tuple):
                raise NotCanonical("the call does not say which tools it offers")
            for tool in cast("list[Any]", tools):
                name = _name(tool)
                if name in definitions:
                    return self.deny("tool-twice", f"Two tools are called {name[:80]}; rename one, or leave one out.")
                definitions[name] = canonical_json(tool)
            changed = self.pins.offer(definitions)
        except (NotCanonical, RecursionError) as error:
            return self.deny("tool-unreadable", f"The tools of this call cannot be compared with their pins: {error}.")
        except PolicyError as error:
            return self.deny("tool-pins", f"The pinned tools cannot be read: {error.message}.")
        if changed:
            names = ", ".join(name[:80] for name in changed[:5])
            return self.deny(
                "tool-changed", f"Changed since they were first used, and not approved (lgov policy trust): {names}."
            )
        return self.allow()

    def continue_from(self, previous: object) -> None:
        """Goes on with the pins of ``previous``, the policy that this one replaces, when they are in memory."""
        if isinstance(previous, PinnedToolsPolicy) and previous.pins.path is None and self.pins.path is None:
            self.pins = previous.pins


def _name(tool: object) -> str:
    """The name of a tool in any of the usual forms; a hosted tool has the name of its type."""
    if isinstance(tool, Mapping):
        inner = tool.get("function")
        name = (inner if isinstance(inner, Mapping) else tool).get("name") or tool.get("type")
        if isinstance(name, str):
            return name
    raise NotCanonical("a tool has no name")
