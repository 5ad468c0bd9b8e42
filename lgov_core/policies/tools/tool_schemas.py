"""What a JSON Schema of a tool's arguments says must be checked: what a validator would silently ignore is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import unquote

from lgov_core.errors import PolicyError
from lgov_core.policies.data import DataFile

_DATA: Final = DataFile("lgov_core.policies.tools", "schema_keywords.yaml")
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
    for part in _parts(what, schema):
        target = part.get("$ref", "#")
        if not (isinstance(target, str) and target.startswith("#")):
            raise PolicyError(
                f"{what} refers to {target!r}", hint="copy it into definitions and refer to #/definitions/..."
            )
        for keyword in words("unsupported").intersection(part):
            raise PolicyError(f"{what} uses {keyword}, which is not checked", hint="write it in JSON Schema draft 7")
        _check_spelling(what, part)
        _check_values(what, part, draft4=draft4)


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping) and any(keyword in _checked() for keyword in value)


def _parts(what: str, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """``root`` and every schema in it, definitions included, or that it refers to."""
    pending: list[Any] = [root]
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if isinstance(part, bool) or id(part) in seen:
            continue
        seen.add(id(part))
        if not isinstance(part, Mapping):
            raise PolicyError(f"{what} holds {part!r} where a schema belongs", hint="write a mapping, true or false")
        yield part
        for keyword, value in part.items():
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
    place: Any = root
    for step in reference.partition("#")[2].strip("/").split("/") if reference.strip("#/") else ():
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping):
            place = place.get(name, True)
        elif isinstance(place, list | tuple) and name.isdigit() and int(name) < len(place):
            place = place[int(name)]
        else:
            return True
    return place


def _check_spelling(what: str, part: Mapping[str, Any]) -> None:
    for keyword in part:
        if keyword not in _checked() and (meant := _near(str(keyword), _checked())) is not None:
            raise PolicyError(f"{what} holds {keyword}, which is not a keyword of JSON Schema", hint=f"write {meant}")
    given = part.get("format")
    if isinstance(given, str) and given not in words("formats") and given not in words("unchecked_formats"):
        meant = _DATA.content["meant_formats"].get(given.lower()) or _near(given, words("formats"))
        if meant is not None:
            raise PolicyError(f"{what} has the format {given!r}, which is not checked", hint=f"write {meant}")


def _near(word: str, known: Iterable[str]) -> str | None:
    plain = {name.lower().replace("-", ""): name for name in known}
    given = word.lower().replace("_", "").replace("-", "")
    # Letters that changed places make a short word less alike than the cutoff asks for.
    turned = [name for name in plain if sorted(name) == sorted(given)]
    close = turned or get_close_matches(given, plain, n=1, cutoff=_CLOSE)
    return plain[close[0]] if close else None


def _check_values(what: str, part: Mapping[str, Any], *, draft4: bool) -> None:
    beside = [keyword for keyword in part if keyword in _checked() and keyword != "$ref"]
    if "$ref" in part and beside:
        raise PolicyError(
            f"{what} has {beside[0]} beside $ref, which is not checked", hint="write allOf: [{$ref: ...}, {...}]"
        )
    dependencies = part.get("dependencies")
    lists = [part.get("required"), *(dependencies.values() if isinstance(dependencies, Mapping) else ())]
    for wanted in lists:
        for name in wanted if isinstance(wanted, list | tuple) else ():
            if not isinstance(name, str):
                raise PolicyError(f"{what} requires {name!r}, which is not a name", hint="put the name in quotes")
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(part.get(keyword), bool) and not draft4:
            raise PolicyError(
                f"{what} has {keyword}: {part[keyword]}, which only draft 4 knows",
                hint=f"write the limit itself, {keyword}: 5, or name draft 4 in $schema",
            )
    if "if" not in part and ("then" in part or "else" in part):
        raise PolicyError(f"{what} has then or else without if, so it is not checked", hint="write if beside it")
    values = part.get("enum", ()) if isinstance(part.get("enum"), list | tuple) else ()
    if part.get("type") == "string" and any(isinstance(value, bool) for value in (*values, part.get("const"))):
        raise PolicyError(f"{what} has a truth value where it allows texts only", hint='write "on" or "no" in quotes')
