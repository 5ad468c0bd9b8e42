"""ToolPolicy: which tools may be called, and with which arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from lgov_core.errors import PolicyError
from lgov_core.governor.patterns import LinearPattern, PatternLimit, pattern_steps, surely_matches
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.options import PolicyOptions, Text, Texts, takes
from lgov_core.policies.pins import check_schema, words
from lgov_core.types import Action, Decision, Point, Severity

#: Allowed tools are named in a denial when there are no more than this.
NAMED_TOOLS = 8
#: Characters of a denial about arguments: names in it are the model's own, of any length.
MAX_PROBLEM = 300


class ToolOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of a `ToolPolicy`."""

    allow: Texts
    schemas: Annotated[Mapping[str, Any], Meta(description="a mapping of tool names to JSON Schemas")] | None = None
    name: Text = "tool"


class ToolPolicy(BoundedPolicy):
    """Lets only the named tools be called, with arguments that fit their JSON Schema.

    ``allow`` are globs (letter case matters) for the names of tools, hand-offs and agents. ``schemas`` maps the exact name
    of an allowed tool to the JSON Schema (drafts 4, 6, 7) of its arguments object; references must stay inside the schema,
    and nothing is ever fetched. A wrong schema is an error, also one that belongs to no allowed tool, or in which what
    reads like a constraint would not be checked (a misspelt keyword, a keyword beside ``$ref``).

    Evaluates ``pre_tool_call``. May be called from several threads at once. Fails closed. Raises `PolicyError` for an option
    without a meaning.
    """

    permits = True

    @takes(ToolOptions)
    def __init__(self, options: ToolOptions) -> None:
        self.name = name = options.name
        self.allowed = tuple(options.allow)
        self._checks: dict[str, Callable[[object], str | None]] = {}
        for tool, schema in (options.schemas or {}).items():
            if not self._is_allowed(tool):
                raise PolicyError(f"{name}: there is a schema for {tool!r}, but allow does not name it")
            self._checks[tool] = _compiled(f"{name}: the schema of {tool}", schema)

    def judge(self, action: Action) -> Decision | None:
        """The verdict on a tool call; None at other points."""
        if action.point is not Point.PRE_TOOL_CALL:
            return None
        if not self._is_allowed(action.name):
            allowed = ", ".join(self.allowed)
            offer = f"Allowed tools: {allowed}." if self.allowed else "No tool may be called."
            if len(self.allowed) > NAMED_TOOLS:
                offer = "Call one of the tools you were given."
            return self.deny("tool-unknown", f"There is no tool {action.name[:80]!r} here. {offer}")
        check = self._checks.get(action.name)
        problem = check(action.arguments) if check is not None else None
        if problem is not None:
            return self.deny("tool-arguments", f"The arguments of {action.name} are wrong: {problem}.", Severity.LOW)
        return self.allow()

    def _is_allowed(self, tool: str) -> bool:
        return surely_matches(tool, self.allowed)


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
