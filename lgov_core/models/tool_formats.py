"""How tool calls are written as text, and read out of it again.

A model writes text; an OpenAI-style client expects calls. A format is both directions of that:
`ToolFormat.render_messages` turns a conversation with calls and results into plain role/content messages,
`ToolFormat.parse` finds the calls in a reply. What the model wrote is never repaired: broken JSON is handed on as the
raw arguments text, and something that is not even a named call stays content.

Formats are values without state: callable from any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, cast

from lgov_core._util.json_text import json_object
from lgov_core.errors import EndpointError, suggest_name

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call found in a reply. ``arguments_text`` is JSON text if the model wrote JSON, else the raw text it wrote."""

    name: str
    arguments_text: str


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply taken apart. ``content`` is what is not a call; None when there is nothing but calls."""

    content: str | None
    calls: tuple[ParsedCall, ...] = ()


def tool_name(tool: Tool) -> str:
    """The function name in an OpenAI tool definition."""
    return str(tool["function"]["name"])


def tool_parameters(tool: Tool) -> tuple[Mapping[str, Any], Sequence[str]]:
    """The properties of a tool's parameter schema by name, and the names of those that are required."""
    schema = tool["function"].get("parameters") or {}
    return schema.get("properties") or {}, schema.get("required") or ()


def schema_line(tool: Tool) -> str:
    """A tool as one line of JSON."""
    function = tool["function"]
    return dump({key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None})


def message_text(message: Message) -> str:
    """The text of an OpenAI message: a string, or a list of text parts. Raises `EndpointError` for anything else."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise EndpointError(f"message content must be a string or a list of parts, not {type(content).__name__}")
    texts: list[str] = []
    for content_part in cast("Sequence[Any]", content):
        kind = content_part.get("type") if isinstance(content_part, Mapping) else type(content_part).__name__
        if kind not in ("text", "refusal") or not isinstance(content_part.get(kind), str):
            raise EndpointError(f"message part of type {kind!r} is not supported", hint="this model reads text only")
        texts.append(content_part[kind])
    return "".join(texts)


def dump(value: Any) -> str:
    """``value`` as readable JSON. A lone surrogate, which is not valid text, stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return text if is_valid_text(text) else json.dumps(value)


def is_valid_text(text: str) -> bool:
    """Returns whether ``text`` can be encoded, i.e. has no lone surrogates."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


_DECODER = json.JSONDecoder()
# A call in the key order that call_object writes.
_CALL_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')


def value_end(text: str, start: int) -> int:
    """Where the JSON value that begins at ``start`` ends; -1 when there is none."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return -1


def call_object(name: str, arguments_json: str) -> str:
    """A call as a JSON object around the arguments as they are; blank arguments are an empty object."""
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments_json.strip() or "{}"}}}'


def call_in(text: str) -> ParsedCall | None:
    """The call that the whole ``text`` is; None when it is not a call.

    Broken JSON is still a call if its name can be read: then the arguments are the raw text after it.
    """
    value, head = json_object(text), _CALL_HEAD.match(text)
    if value is not None and isinstance(value.get("name"), str):
        key = "arguments" if "arguments" in value else "parameters"
        if head is not None and (end := value_end(text, head.end())) >= 0:
            raw = text[head.end() : end]
            if json.loads(raw) == value[key]:  # a repeated key would make another value count
                return ParsedCall(value["name"], raw)
        return ParsedCall(value["name"], dump(value[key]) if key in value else "{}")
    if value is None and head is not None:
        try:
            name = json.loads(head.group(1))
        except ValueError:
            return None
        rest = text[head.end() :].strip()
        # The last brace closes the call, not the arguments.
        return ParsedCall(name, rest[:-1].rstrip() if rest.endswith("}") else rest)
    return None


@dataclass(frozen=True, slots=True)
class Spelling:
    """How texts are written into a prompt: ``theirs``, of users and tools, and ``own``, of the model and of lgov."""

    theirs: Callable[[str], str] = str
    own: Callable[[str], str] = str


_AS_IT_IS = Spelling()


@dataclass(frozen=True)
class ToolFormat:
    """One way to write tool calls as text.

    ``name`` is the key in `TOOL_FORMATS`. ``tool_role`` is the role under which results are handed to the chat template;
    for a template that has no role ``tool``, ``dataclasses.replace(format, tool_role="user")``. ``folds``: the template
    refuses the role ``system``; such a text begins the user's next message, and messages of one role that follow each other
    are one.
    """

    name: str
    tool_role: str = "tool"
    folds: bool = False

    #: Between the system message of the conversation and the description of the tools.
    _separator: ClassVar = "\n\n"
    #: A pattern of what stands behind the arguments of a call up to its end.
    _closing: ClassVar = ""

    def describe(self, tools: Sequence[Tool]) -> str:
        """The tools as text for the system prompt; "" when there are none."""
        raise NotImplementedError

    def render_call(self, name: str, arguments_json: str, tools: Sequence[Tool] = ()) -> str:
        """A call as the model would have written it. The arguments may be broken JSON; blank means none."""
        raise NotImplementedError

    def parse(self, text: str, tools: Sequence[Tool] = ()) -> ParsedReply:
        """The calls in a reply, to be asked only when the request offered tools. Never raises.

        ``parse(render_call(name, arguments, tools), tools)`` gives back that call.
        """
        raise NotImplementedError

    def is_whole(self, text: str, tools: Sequence[Tool] = ()) -> bool:
        """Returns whether ``text`` ends where a call ends, by its own syntax: then no limit has cut that call."""
        calls = self.parse(text, tools).calls
        arguments = calls[-1].arguments_text if calls else ""
        return json_object(arguments) is not None and bool(re.search(f"{re.escape(arguments)}{self._closing}\\Z", text))

    def render_messages(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), spelling: Spelling = _AS_IT_IS
    ) -> list[dict[str, str]]:
        """OpenAI messages as plain role/content messages, tools described in the system message.

        Raises `EndpointError` (400) for a message that cannot be written as text, such as one with an image.
        """
        rendered: list[dict[str, str]] = []
        for message in messages:
            role, text = message.get("role"), message_text(message)
            if role == "assistant":
                if functions := [call["function"] for call in message.get("tool_calls") or ()]:
                    calls = [
                        self.render_call(function["name"], function.get("arguments") or "", tools)
                        for function in functions
                    ]
                    text = f"{text}\n{self._joined(calls)}" if text else self._joined(calls)
                rendered.append({"role": "assistant", "content": spelling.own(text)})
                # Earlier thoughts, of whichever server: the model reads those that its template writes.
                thoughts = message.get("reasoning_content") or message.get("reasoning")
                if isinstance(thoughts, str):
                    rendered[-1]["reasoning_content"] = spelling.own(thoughts)
            elif role == "tool":
                rendered.append({"role": self.tool_role, "content": self._render_result(spelling.theirs(text))})
            elif role == "user":
                rendered.append({"role": "user", "content": spelling.theirs(text)})
            elif role in ("system", "developer"):
                rendered.append({"role": "system", "content": spelling.own(text)})
            else:
                raise EndpointError(f"message role {role!r} is not supported")
        if system := spelling.own(self.describe(tools)):
            if rendered and rendered[0]["role"] == "system":
                system = f"{rendered.pop(0)['content']}{self._separator}{system}"
            rendered.insert(0, {"role": "system", "content": system})
        rendered[1:1] = self._shown_calls(tools, spelling)
        return self._folded(rendered) if self.folds else rendered

    def _shown_calls(self, tools: Sequence[Tool], spelling: Spelling) -> list[dict[str, str]]:
        """Turns before the conversation that show how the tools are called."""
        return []

    @staticmethod
    def _folded(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        folded: list[dict[str, str]] = []
        for message in messages:
            role = "user" if message["role"] == "system" else message["role"]
            if folded and folded[-1]["role"] == role:
                folded[-1]["content"] += f"\n\n{message['content']}"
            else:
                folded.append({**message, "role": role})
        return folded

    def _joined(self, calls: Sequence[str]) -> str:
        return "\n".join(calls)

    def _render_result(self, text: str) -> str:
        return text


class _Hermes(ToolFormat):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, several allowed, text around them is content."""

    _closing = r"\s*\}\s*</tool_call>"

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


class _Compact(ToolFormat):
    """One call a line: ``@run_sql SELECT 1``, or ``@run_sql {"query": "SELECT 1", "limit": 3}``.

    The bare text after the name is the tool's first required parameter, or else its only string parameter, or
    ``input`` for a tool that is not known. Text that begins with a brace is always JSON, well-formed or not.
    """

    _separator = "\n"

    def describe(self, tools: Sequence[Tool]) -> str:
        signatures = ", ".join(f"{tool_name(tool)}({', '.join(tool_parameters(tool)[0])})" for tool in tools)
        return f"Tools: {signatures}" if signatures else ""

    def render_call(self, name: str, arguments_json: str, tools: Sequence[Tool] = ()) -> str:
        arguments = json_object(arguments_json)
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


#: The tools that have an example in the prompt: more would only make it longer.
_MOST_EXAMPLES = 3
_PLACEHOLDERS: Mapping[str, Any] = MappingProxyType(
    {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
)


class _Examples(_Compact):
    """`_Compact`, for models that were not trained on it: the prompt describes each tool, and shows calls.

    The examples are turns before the conversation. A small model takes up the form from turns that it seems to have written
    itself; told in words alone, SmolLM2 135M writes no call at all.
    """

    _separator = "\n\n"

    def describe(self, tools: Sequence[Tool]) -> str:
        if not tools:
            return ""
        return "\n".join(("Tools, each called by a line that begins with @:", *map(self._described, tools)))

    def _described(self, tool: Tool) -> str:
        about = [str(text) for text in (tool["function"].get("description"),) if text]
        about += [
            f"{name}: {schema['description']}"
            for name, schema in tool_parameters(tool)[0].items()
            if schema.get("description")
        ]
        return "   ".join((self._example(tool), *about))

    def _example(self, tool: Tool) -> str:
        """A call with every required argument, or the first one if none is, as `parse` reads it."""
        properties, required = tool_parameters(tool)
        names = [name for name in required if name in properties] or list(properties)[:1]
        values = {name: _placeholder(name, properties[name]) for name in names}
        return self.render_call(tool_name(tool), dump(values), [tool])

    def _shown_calls(self, tools: Sequence[Tool], spelling: Spelling) -> list[dict[str, str]]:
        examples: list[dict[str, str]] = []
        for tool in tools[:_MOST_EXAMPLES]:
            question = tool["function"].get("description") or f"Call {tool_name(tool)}."
            examples += [
                {"role": "user", "content": spelling.theirs(str(question))},
                {"role": "assistant", "content": spelling.own(self._example(tool))},
            ]
        return examples


def _placeholder(name: str, schema: Mapping[str, Any]) -> Any:
    """A value that stands for an argument: one that the schema names, or else ``(name)`` for a text."""
    for keyword in ("const", "default"):
        if schema.get(keyword) is not None:
            return schema[keyword]
    for listed in ("enum", "examples"):
        if isinstance(schema.get(listed), list) and schema[listed]:
            return schema[listed][0]
    kind = schema.get("type")
    return _PLACEHOLDERS.get(kind, f"({name})") if isinstance(kind, str) else f"({name})"


class _Json(ToolFormat):
    """The whole reply is one JSON object with ``name`` and ``arguments`` (or ``parameters``), or a list of them."""

    _closing = r"\s*\}\s*\]?"

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

    def _joined(self, calls: Sequence[str]) -> str:
        return calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"

    def parse(self, text: str, tools: Sequence[Tool] = ()) -> ParsedReply:
        stripped = text.strip()
        if stripped.startswith("["):
            calls = self._calls_in_list(stripped)
        else:
            value = json_object(stripped)
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
    {form.name: form for form in (_Hermes("hermes"), _Compact("compact"), _Examples("examples"), _Json("json"))}
)


def tool_format(name: str) -> ToolFormat:
    """The format of that name. Raises `EndpointError` naming the nearest one."""
    if (chosen := TOOL_FORMATS.get(name)) is not None:
        return chosen
    raise EndpointError(f"unknown tool format {name!r}", hint=suggest_name(name, TOOL_FORMATS))
