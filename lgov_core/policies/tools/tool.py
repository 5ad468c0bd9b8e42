"""ToolPolicy: which tools may be called, and with which arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import unquote

from lgov_core.errors import PolicyError
from lgov_core.governor.linear_pattern import LinearPattern, PatternLimit, pattern_steps
from lgov_core.governor.options import string_tuple, surely_matches
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.data import DataFile
from lgov_core.types import Action, Decision, Point, Severity

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


#: Allowed tools are named in a denial when there are no more than this.
NAMED_TOOLS = 8
#: Characters of a denial about arguments: names in it are the model's own, of any length.
MAX_PROBLEM = 300


class ToolPolicy(BoundedPolicy):
    """Lets only the named tools be called, with arguments that fit their JSON Schema.

    ``allow`` are globs (letter case matters) for the names of tools, hand-offs and agents. ``schemas`` maps the exact
    name of an allowed tool to the JSON Schema (drafts 4, 6, 7) of its arguments object; references must stay inside the
    schema, and nothing is ever fetched. Schemas are compiled once, here; what reads like a constraint and would not be
    checked (a misspelt keyword, a keyword beside ``$ref``) is an error.

    Judges ``pre_tool_call`` only. May be called from several threads at once. Fails closed. Raises `PolicyError` when a
    schema is wrong, or belongs to a tool that is not allowed.
    """

    permits = True

    def __init__(
        self, *, allow: Sequence[str], schemas: Mapping[str, Mapping[str, Any]] | None = None, name: str = "tool"
    ) -> None:
        self.name = name
        self.allowed = string_tuple(name, "allow", allow)
        self._checks: dict[str, Callable[[object], str | None]] = {}
        by_tool = schemas if schemas is not None else {}
        if not isinstance(by_tool, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"{name}: schemas must map tool names to JSON Schemas, not {by_tool!r}")
        for tool, schema in by_tool.items():
            if not self._is_allowed(tool):
                raise PolicyError(f"{name}: there is a schema for {tool!r}, but allow does not name it")
            self._checks[tool] = _compiled(f"{name}: the schema of {tool}", schema)

    def judge(self, action: Action) -> Decision | None:
        """The verdict on a tool call; None at other points."""
        if action.point is not Point.PRE_TOOL_CALL:
            return None
        if not self._is_allowed(action.name):
            return self.deny("tool-unknown", f"There is no tool {action.name[:80]!r} here. {self._offer()}")
        check = self._checks.get(action.name)
        problem = check(action.arguments) if check is not None else None
        if problem is not None:
            return self.deny("tool-arguments", f"The arguments of {action.name} are wrong: {problem}.", Severity.LOW)
        return self.allow()

    def _is_allowed(self, tool: str) -> bool:
        return surely_matches(tool, self.allowed)

    def _offer(self) -> str:
        if not self.allowed:
            return "No tool may be called."
        if len(self.allowed) > NAMED_TOOLS:
            return "Call one of the tools you were given."
        return f"Allowed tools: {', '.join(self.allowed)}."


class _NotFinite(Exception):
    """A number that is infinite or not a number."""


def _compiled(what: str, schema: object) -> Callable[[object], str | None]:
    """A check of arguments against ``schema``: None when they fit, else what was expected where."""
    import fastjsonschema

    if not isinstance(schema, Mapping):
        raise PolicyError(f"{what} is not a JSON Schema object", hint="write type: object and properties")
    check_schema(what, schema)

    def refuse(uri: str) -> object:
        raise PolicyError(f"{what} refers to {uri}", hint="schemas are never fetched; copy it into definitions")

    handlers: dict[str, Callable[[str], object]] = dict.fromkeys(("http", "https", "ftp", "file", ""), refuse)
    try:
        # Defaults are not filled in: a judge must not change what it judges.
        formats: Any = {"email": _is_email}
        validate: Any = fastjsonschema.compile(_plain(schema), handlers=handlers, formats=formats, use_default=False)
        patterns: dict[str, Any] = validate.func.__globals__["REGEX_PATTERNS"]
        for name, pattern in patterns.items():  # those of the schema are keys themselves
            is_format = name.removesuffix("_re_pattern") in words("formats")
            patterns[name] = re.compile(pattern.pattern, re.ASCII) if is_format else LinearPattern(what, name)
    except PolicyError:
        raise
    except Exception as error:  # the compiler raises many things on a schema that makes no sense
        raise PolicyError(f"{what} is wrong: {error}") from error

    def check(arguments: object) -> str | None:
        try:
            with pattern_steps():
                validate(_plain(arguments))
        except fastjsonschema.JsonSchemaValueException as error:
            return error.message.replace("data", "arguments", 1)[:MAX_PROBLEM]
        except (PatternLimit, _NotFinite) as error:
            return f"they hold {error}"
        except UnicodeEncodeError:
            return "they hold a lone surrogate"
        except (OverflowError, ValueError):  # as a limit is compared with it, or as it is written out for the message
            return "they hold a number too long to be checked"
        except RecursionError:
            return "they are nested too deeply"
        return None

    return check


def _is_email(text: str) -> bool:
    """Returns whether it is an e-mail address. The validator's own pattern takes quadratic time for a row of dots."""
    local, _, host = text.partition("@")
    dotted = local[:1] in ("", ".") or local.endswith(".") or ".." in local
    return not dotted and "@" not in host and "." in host[1:-1]


def _plain(value: Any) -> Any:
    """``value`` with every mapping as a dict and every sequence as a list, which is what the validator knows."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):  # no limit of a schema holds for nan
        raise _NotFinite(f"{value}, which is not a number in JSON")
    return value
