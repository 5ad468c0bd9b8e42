"""Checks the JSON Schemas of tools when a policy is made: what reads like a constraint and would not be checked is an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import unquote

from lgov_core.errors import PolicyError
from lgov_core.policies.base import DataFile

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
