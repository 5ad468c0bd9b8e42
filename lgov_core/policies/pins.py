"""PinnedToolsPolicy: a tool keeps the description and the arguments that it had when it was first offered to a model.

Also checks the JSON Schemas of tools when a policy is made: what would not be checked is an error.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, ClassVar, Final, cast
from urllib.parse import unquote

from lgov_core._util.json_text import NotCanonical, canonical_json
from lgov_core._util.sqlite_file import FileKind
from lgov_core.errors import PolicyError
from lgov_core.governor.options import DataFile, in_dry_run
from lgov_core.policies.budgets.ledger import SharedDatabase, StoredPolicy
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


class PinnedToolsPolicy(StoredPolicy):
    """Denies a model call that offers a tool with another definition than at first, or two tools of one name.

    The first definition (description and schema) is kept in the SQLite file ``store``, or for the life of the process. A
    changed definition is denied until a person approves its digest (``lgov policy trust``).

    Evaluates ``pre_model_call``, by the definitions in ``Action.context["tools"]`` or, where a host gives them as arguments,
    ``Action.arguments["tools"]``; a call that does not say which tools it offers is denied. May be called from several
    threads at once. Fails closed.
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
            return self.store_failed("tool-pins", "The pinned tools cannot be read", error)
        if changed:
            names = ", ".join(name[:80] for name in changed[:5])
            return self.deny(
                "tool-changed", f"Changed since they were first used, and not approved (lgov policy trust): {names}."
            )
        return self.allow()

    def ping(self) -> None:
        """Raises `PolicyError` while no tool can be pinned."""
        self.pins.ping()

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


_DATA: Final = DataFile("lgov_core.policies", "tool_schema_keywords.yaml")
words = _DATA.words
_CLOSE: Final = 0.85


def _checked() -> frozenset[str]:
    return words("checked") | words("one_schema") | words("several_schemas") | words("named_schemas")


def check_schema(what: str, schema: Mapping[str, Any]) -> None:
    """Raises `PolicyError` where ``schema`` (drafts 4, 6, 7) holds what would not be checked though it reads as if it were.

    Those are misspelt keywords and formats, keywords beside a ``$ref``, truth values where names or limits belong, and a
    mapping of properties in place of a schema. Keywords that resemble none (``x-order``) are notes and pass.
    """
    if schema and not any(keyword in _checked() for keyword in schema) and any(map(_is_schema, schema.values())):
        raise PolicyError(
            f"{what} has no keyword of JSON Schema", hint="write type: object, and the arguments under properties"
        )
    draft4 = "draft-04" in str(schema.get("$schema", ""))
    for subschema in _parts(what, schema):
        target = subschema.get("$ref", "#")
        if not (isinstance(target, str) and target.startswith("#")):
            raise PolicyError(
                f"{what} refers to {target!r}", hint="copy it into definitions and refer to #/definitions/..."
            )
        for keyword in words("unsupported").intersection(subschema):
            raise PolicyError(f"{what} uses {keyword}, which is not checked", hint="write it in JSON Schema draft 7")
        _check_spelling(what, subschema)
        _check_values(what, subschema, draft4=draft4)


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping) and any(keyword in _checked() for keyword in value)


def _parts(what: str, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """``root`` and every schema in it, definitions included, or that it refers to."""
    pending: list[Any] = [root]
    seen: set[int] = set()
    while pending:
        subschema = pending.pop()
        if isinstance(subschema, bool) or id(subschema) in seen:
            continue
        seen.add(id(subschema))
        if not isinstance(subschema, Mapping):
            raise PolicyError(
                f"{what} holds {subschema!r} where a schema belongs", hint="write a mapping, true or false"
            )
        yield subschema
        for keyword, value in subschema.items():
            if keyword in words("named_schemas") and isinstance(value, Mapping):
                pending += [item for item in value.values() if not isinstance(item, list | tuple)]
            elif keyword in ("definitions", "$defs") and isinstance(value, Mapping):
                pending += [item for item in value.values() if isinstance(item, Mapping)]
            elif (keyword in words("several_schemas") or keyword == "items") and isinstance(value, list | tuple):
                pending += value
            elif keyword in words("one_schema") or keyword == "items":
                pending.append(value)
            elif keyword == "$ref" and isinstance(value, str):
                pending.append(_pointed_at(root, value))


def _pointed_at(root: Mapping[str, Any], reference: str) -> Any:
    """The schema that a reference within ``root`` names; True (which says nothing) when there is none: others refuse that."""
    target: Any = root
    for step in reference.partition("#")[2].strip("/").split("/") if reference.strip("#/") else ():
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(name, True)
        elif isinstance(target, list | tuple) and name.isdigit() and int(name) < len(target):
            target = target[int(name)]
        else:
            return True
    return target


def _check_spelling(what: str, subschema: Mapping[str, Any]) -> None:
    for keyword in subschema:
        if keyword not in _checked() and (meant := _near(str(keyword), _checked())) is not None:
            raise PolicyError(f"{what} holds {keyword}, which is not a keyword of JSON Schema", hint=f"write {meant}")
    written_format = subschema.get("format")
    if (
        isinstance(written_format, str)
        and written_format not in words("formats")
        and written_format not in words("unchecked_formats")
    ):
        meant = _DATA.content["meant_formats"].get(written_format.lower()) or _near(written_format, words("formats"))
        if meant is not None:
            raise PolicyError(f"{what} has the format {written_format!r}, which is not checked", hint=f"write {meant}")


def _near(word: str, names: Iterable[str]) -> str | None:
    plain = {name.lower().replace("-", ""): name for name in names}
    plain_word = word.lower().replace("_", "").replace("-", "")
    # Letters that changed places make a short word less alike than the cutoff asks for.
    turned = [name for name in plain if sorted(name) == sorted(plain_word)]
    close = turned or get_close_matches(plain_word, plain, n=1, cutoff=_CLOSE)
    return plain[close[0]] if close else None


def _check_values(what: str, subschema: Mapping[str, Any], *, draft4: bool) -> None:
    beside = [keyword for keyword in subschema if keyword in _checked() and keyword != "$ref"]
    if "$ref" in subschema and beside:
        raise PolicyError(
            f"{what} has {beside[0]} beside $ref, which is not checked", hint="write allOf: [{$ref: ...}, {...}]"
        )
    dependencies = subschema.get("dependencies")
    lists = [subschema.get("required"), *(dependencies.values() if isinstance(dependencies, Mapping) else ())]
    for names in lists:
        for name in names if isinstance(names, list | tuple) else ():
            if not isinstance(name, str):
                raise PolicyError(f"{what} requires {name!r}, which is not a name", hint="put the name in quotes")
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(subschema.get(keyword), bool) and not draft4:
            raise PolicyError(
                f"{what} has {keyword}: {subschema[keyword]}, which only draft 4 knows",
                hint=f"write the limit itself, {keyword}: 5, or name draft 4 in $schema",
            )
    if "if" not in subschema and ("then" in subschema or "else" in subschema):
        raise PolicyError(f"{what} has then or else without if, so it is not checked", hint="write if beside it")
    values = subschema.get("enum", ()) if isinstance(subschema.get("enum"), list | tuple) else ()
    if subschema.get("type") == "string" and any(
        isinstance(value, bool) for value in (*values, subschema.get("const"))
    ):
        raise PolicyError(f"{what} has a truth value where it allows texts only", hint='write "on" or "no" in quotes')
