"""Tool calls as text, written and parsed.

A model's text is never repaired: broken JSON is passed on as the raw arguments text, and text without a readable call name
stays content. Formats have no state: callable from any thread.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lgov_core._util.suggestions import suggest_name
from lgov_core.errors import EndpointError
from lgov_core.models.tool_text import (
    Message,
    ParsedCall,
    ParsedReply,
    Tool,
    call_in,
    call_object,
    dump,
    is_valid_text,
    load_object,
    render_conversation,
    schema_line,
    tool_name,
    tool_parameters,
    value_end,
)

__all__ = ["TOOL_FORMATS", "ParsedCall", "ParsedReply", "ToolFormat", "tool_format"]


@dataclass(frozen=True, slots=True)
class ToolFormat(ABC):
    """One way to write tool calls as text.

    ``name`` is its name in `TOOL_FORMATS`. ``tool_role`` is the role of results in the chat template: ``tool``; for a
    template without that role, ``dataclasses.replace(format, tool_role="user")``. ``separator`` stands between the system
    message and the description of the tools.
    """

    name: str
    tool_role: str = "tool"
    separator: str = "\n\n"

    @abstractmethod
    def describe(self, tools: Sequence[Tool]) -> str:
        """The tools as text for the system prompt; "" when there are none."""

    @abstractmethod
    def render_call(self, name: str, arguments_json: str, tools: Sequence[Tool] = ()) -> str:
        """A call as the model would have written it. The arguments may be broken JSON; blank means none."""

    @abstractmethod
    def parse(self, text: str, tools: Sequence[Tool] = ()) -> ParsedReply:
        """The calls in the reply to a request that offered tools. Never raises.

        ``parse(render_call(name, arguments, tools), tools)`` gives back that call.
        """

    def render_messages(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[dict[str, str]]:
        """OpenAI messages as plain role/content messages, tools described in the system message.

        Raises `EndpointError` (400) for a message that cannot be written as text, such as one with an image.
        """
        return render_conversation(
            messages,
            system=self.describe(tools),
            separator=self.separator,
            tool_role=self.tool_role,
            render_calls=lambda calls: self._join([self.render_call(name, text, tools) for name, text in calls]),
            render_result=self._render_result,
        )

    def _join(self, calls: Sequence[str]) -> str:
        return "\n".join(calls)

    def _render_result(self, text: str) -> str:
        return text


@dataclass(frozen=True, slots=True)
class _Hermes(ToolFormat):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, several allowed, text around them is content."""

    name: str = "hermes"

    def describe(self, tools: Sequence[Tool]) -> str:
        if not tools:
            return ""
        schemas = "\n".join(map(schema_line, tools))
        return (
            f"# Tools\n\nYou may call these functions, given as JSON schemas:\n<tools>\n{schemas}\n</tools>\n\n"
            "To call one, write its name and arguments as a JSON object between tool_call tags:\n"
            '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>'
        )

    def render_call(self, name: str, arguments_json: str, tools: Sequence[Tool] = ()) -> str:
        return f"<tool_call>\n{call_object(name, arguments_json)}\n</tool_call>"

    def _render_result(self, text: str) -> str:
        # Templates with a tool role put tags of their own around a result; in a user message something has to.
        return f"<tool_response>\n{text}\n</tool_response>" if self.tool_role == "user" else text

    def parse(self, text: str, tools: Sequence[Tool] = ()) -> ParsedReply:
        content: list[str] = []
        calls: list[ParsedCall] = []
        position = 0
        while (start := text.find("<tool_call>", position)) >= 0:
            inner = start + len("<tool_call>")
            end, after = self._block_end(text, inner)
            call = call_in(text[inner:end])
            if call is None:
                content.append(text[position:after])
            else:
                content.append(text[position:start])
                calls.append(call)
            position = after
        if not calls:
            return ParsedReply(text)
        content.append(text[position:])
        return ParsedReply("".join(content).strip() or None, tuple(calls))

    @staticmethod
    def _block_end(text: str, inner: int) -> tuple[int, int]:
        """Where the block's JSON ends and where the text goes on. A closing tag in a JSON string closes nothing."""
        begin = len(text) - len(text[inner:].lstrip())
        if (end := value_end(text, begin)) >= 0:
            closing = len(text) - len(text[end:].lstrip())
            if text.startswith("</tool_call>", closing):
                return end, closing + len("</tool_call>")
        close = text.find("</tool_call>", inner)
        return (len(text), len(text)) if close < 0 else (close, close + len("</tool_call>"))


_COMPACT_CALL = re.compile(r"@([A-Za-z0-9_.\-]+)(?:[ \t]+(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Compact(ToolFormat):
    """One call a line: ``@run_sql SELECT 1``, or ``@run_sql {"query": "SELECT 1", "limit": 3}``.

    The bare text after the name is the tool's first required parameter, or else its only string parameter, or
    ``input`` for a tool that is not known. Text that begins with a brace is always JSON, well-formed or not.
    """

    name: str = "compact"
    separator: str = "\n"

    def describe(self, tools: Sequence[Tool]) -> str:
        signatures = ", ".join(f"{tool_name(tool)}({', '.join(tool_parameters(tool)[0])})" for tool in tools)
        return f"Tools: {signatures}" if signatures else ""

    def render_call(self, name: str, arguments_json: str, tools: Sequence[Tool] = ()) -> str:
        arguments = load_object(arguments_json)
        if arguments == {} or not arguments_json.strip():
            return f"@{name}"
        if arguments is not None and len(arguments) == 1:
            ((key, value),) = arguments.items()
            if key == self._bare_parameter(name, tools) and self._can_be_bare(value):
                return f"@{name} {value}"
        # A line break is only white space in JSON: it cannot be inside a JSON string.
        line = re.sub(r"[\r\n]+", " ", arguments_json.strip())
        return f"@{name} {line}"

    @staticmethod
    def _bare_parameter(name: str, tools: Sequence[Tool]) -> str:
        for tool in tools:
            if tool_name(tool) == name:
                properties, required = tool_parameters(tool)
                strings = [key for key, schema in properties.items() if schema.get("type", "string") == "string"]
                return str((*required[:1], *strings[:1], *properties, "input")[0])
        return "input"

    @staticmethod
    def _can_be_bare(value: Any) -> bool:
        if not isinstance(value, str) or not value or value[0] == "{" or value != value.strip():
            return False
        return "\n" not in value and is_valid_text(value)

    def parse(self, text: str, tools: Sequence[Tool] = ()) -> ParsedReply:
        content: list[str] = []
        calls: list[ParsedCall] = []
        for line in text.split("\n"):
            if match := _COMPACT_CALL.fullmatch(line):
                name, rest = match.group(1), (match.group(2) or "").strip()
                if rest and rest[0] != "{":
                    rest = dump({self._bare_parameter(name, tools): rest})
                calls.append(ParsedCall(name, rest or "{}"))
            else:
                content.append(line)
        if not calls:
            return ParsedReply(text)
        return ParsedReply("\n".join(content).strip() or None, tuple(calls))


@dataclass(frozen=True, slots=True)
class _Json(ToolFormat):
    """The whole reply is one JSON object with ``name`` and ``arguments`` (or ``parameters``), or a list of them."""

    name: str = "json"

    def describe(self, tools: Sequence[Tool]) -> str:
        if not tools:
            return ""
        schemas = "\n".join(map(schema_line, tools))
        return (
            f"You may call these functions:\n{schemas}\n\nTo call one, reply with nothing but "
            '{"name": <name>, "arguments": <object>}; for several, with a list of those.'
        )

    def render_call(self, name: str, arguments_json: str, tools: Sequence[Tool] = ()) -> str:
        return call_object(name, arguments_json)

    def _join(self, calls: Sequence[str]) -> str:
        return calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"

    def parse(self, text: str, tools: Sequence[Tool] = ()) -> ParsedReply:
        stripped = text.strip()
        if stripped.startswith("["):
            calls = self._calls_in_list(stripped)
        else:
            value = load_object(stripped)
            # An object that only has a name is an answer, not a call.
            is_call = value is None or "arguments" in value or "parameters" in value
            call = call_in(stripped) if is_call else None
            calls = (call,) if call else ()
        return ParsedReply(None, calls) if calls else ParsedReply(text)

    @staticmethod
    def _calls_in_list(text: str) -> tuple[ParsedCall, ...]:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return ()
        calls: list[ParsedCall] = []
        for value in values:
            key = next((k for k in ("arguments", "parameters") if isinstance(value, dict) and k in value), None)
            if key is None or not isinstance(value.get("name"), str):
                return ()
            calls.append(ParsedCall(value["name"], dump(value[key])))
        return tuple(calls)


TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {format_.name: format_ for format_ in (_Hermes(), _Compact(), _Json())}
)


def tool_format(name: str) -> ToolFormat:
    """The format of that name. Raises `EndpointError` naming the nearest one."""
    if (found := TOOL_FORMATS.get(name)) is not None:
        return found
    raise EndpointError(f"unknown tool format {name!r}", hint=suggest_name(name, TOOL_FORMATS))
