"""Between chat requests and tokens: the prompt that a conversation becomes, the completion that generated tokens become.

A reply that must have a form (JSON, a schema, a tool call) is held to it by a grammar over the tokens.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import ContextOverflow, EndpointError
from lgov_core.models import LanguageModel
from lgov_core.models.language_model import REPLY_STARTS
from lgov_core.models.tool_formats import Tool, message_text, tool_name, tool_parameters
from lgov_core.types import new_id
from lgov_core.wire.exchange import ChatRequest, Completion, ToolCall
from lgov_core.wire.fields import Use, an_object, fields_with, only_known, refuse, shown, text

if TYPE_CHECKING:
    import torch


#: JSON in one line, as Python's json writes it: free white space could be endless.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MOST_GRAMMARS = 64
#: An array's bounds may be this much: llguidance 1.7, which vLLM 0.32 has, takes memory for each possible item.
_MOST_ITEMS = 10_000


def reply_grammar(request: ChatRequest, model: LanguageModel) -> str | None:
    """The grammar (Lark, as llguidance reads it) of the replies of ``model`` to ``request``; None when any text will do.

    ``response_format`` asks for JSON; with tools offered a reply may be calls instead. ``tool_choice`` demands a call: of
    any tool, or of one. ``parallel_tool_calls: false`` allows one call only. Raises `EndpointError` (400) for a form that is
    none.
    """
    tools = _demanded(request)
    schema = _answer_schema(request.body)
    if tools is None and schema is None:
        return None
    tool_format = model.format.name
    alone = request.body.get("parallel_tool_calls") is False
    rules: dict[str, list[str]] = {}
    if offered := request.tools if tools is None else tools:
        # A tag that is one token of the model is that token: no text can be spelt with it.
        tags = {tag: f"<[{model.text.tags[tag]}]>" for tag in _HERMES_TAGS if tag in model.text.tags}
        rules["calls"] = _calls(offered, tool_format, tags, alone=alone)
    if schema is not None and tools is None:
        rules["answer"] = [f"answer: %json {_styled(schema)}"]
    return "\n".join([f"start: {' | '.join(rules)}", *chain(*rules.values())])


def _demanded(request: ChatRequest) -> Sequence[Tool] | None:
    """The tools one of which must be called; None when none must."""
    choice = request.body.get("tool_choice")
    if choice in (None, "auto", "none"):
        return None
    if not request.tools:
        raise EndpointError(f"'tool_choice' ({shown(choice)}) needs 'tools'")
    if choice == "required":
        return request.tools
    function = an_object(choice, "function", "tool_choice.") if isinstance(choice, dict) else {}
    name = text(function, "name", "tool_choice.function.")
    demanded = [tool for tool in request.tools if tool_name(tool) == name]
    if not demanded:
        raise EndpointError(
            f"'tool_choice' ({shown(choice)}) names no tool of the request",
            hint='auto, none, required, or {"type": "function", "function": {"name": ...}}',
        )
    return demanded


def _answer_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    form = an_object(body, "response_format")
    kind = form.get("type")
    if not form or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        inner = an_object(form, "json_schema", "response_format.")
        return an_object(inner, "schema", "response_format.json_schema.")
    raise EndpointError(f"'response_format' ({shown(form)}) is not known", hint="text, json_object or json_schema")


_HERMES_TAGS = ("<tool_call>", "</tool_call>")


def _calls(tools: Sequence[Tool], tool_format: str, tags: Mapping[str, str], *, alone: bool) -> list[str]:
    any_call = " | ".join(f"call_{number}" for number in range(len(tools)))
    rules = [f"call_{number}: {_call(tool, tool_format, tags)}" for number, tool in enumerate(tools)]
    if alone:
        return [f"calls: {any_call}", *rules]
    if tool_format == "json":
        return [f'calls: {any_call} | "[" one_call (", " one_call)* "]"', f"one_call: {any_call}", *rules]
    return [r'calls: one_call ("\n" one_call)*', f"one_call: {any_call}", *rules]


def _call(tool: Tool, tool_format: str, tags: Mapping[str, str]) -> str:
    name = tool_name(tool)
    function: Mapping[str, Any] = tool.get("function") or {}
    parameters = {"type": "object", **(function.get("parameters") or {})}
    if tool_format in ("compact", "examples"):
        forms = [f'" " %json {_styled(parameters)}']
        properties, required = tool_parameters(tool)
        strings = [key for key, schema in properties.items() if schema.get("type", "string") == "string"]
        bare = next(iter((*required[:1], *strings[:1])), None)
        if bare is not None and bare in strings and not set(required) - {bare} and not _narrow(properties[bare]):
            # As the format itself writes a single text: what follows the name, up to the end of the line.
            forms.append(r'" " /[^{@\s]([^\n\r]*[^\s])?/')
        if not required:
            forms.append('""')
        return f"{json.dumps('@' + name)} ({' | '.join(forms)})"
    whole = {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
    if tool_format == "hermes":
        opens, closes = (tags.get(tag, json.dumps(tag)) for tag in _HERMES_TAGS)
        return rf'{opens} "\n" %json {_styled(whole)} "\n" {closes}'
    return f"%json {_styled(whole)}"


def _narrow(schema: Mapping[str, Any]) -> bool:
    """Returns whether a schema asks more of a text than to be a text."""
    return bool(set(schema) - {"type", "description", "title", "default", "examples"})


def _styled(schema: Mapping[str, Any]) -> str:
    parts: list[Any] = [schema]
    while parts:
        node = parts.pop()
        if isinstance(node, dict):
            for name in ("minItems", "maxItems"):
                if isinstance(bound := node.get(name), int | float) and bound > _MOST_ITEMS:
                    raise EndpointError(f"'{name}' of a JSON schema is {bound}", hint=f"{_MOST_ITEMS} at most")
            parts += node.values()
        elif isinstance(node, list):
            parts += node
    return json.dumps({**schema, "x-guidance": _STYLE})


class GrammarConstraint:
    """Holds one reply to a grammar. ``fault`` is the error, "" if there is none. For one sequence and one thread."""

    def __init__(self, matcher: Any, eos_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self.fault = ""

    def allowed(self, size: int) -> torch.Tensor:
        """The tokens that the grammar allows next: bool [size], on the CPU. Where it failed the reply ends."""
        import torch

        bits = torch.zeros((size + 31) // 32, dtype=torch.int32)
        if not self.fault:
            self._matcher.unsafe_compute_mask_ptr(bits.data_ptr(), bits.numel() * bits.element_size())
            self.fault = self._matcher.get_error()
        mask = ((bits[:, None] >> torch.arange(32, dtype=torch.int32)) & 1).bool().flatten()[:size]
        if not bool(mask.any()):
            self.fault = self.fault or "no token can follow"
            mask[list(self._eos_ids)] = True
        return mask

    def take(self, token: int) -> None:
        """Goes on behind ``token``."""
        if not self.fault and not self._matcher.consume_token(token):
            self.fault = self._matcher.get_error() or f"token {token} does not follow"


class Grammars:
    """Makes constraints of grammars for one model. Callable from any thread; the first time takes a second."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._matchers: BoundedDict[str, Any] = BoundedDict(_MOST_GRAMMARS)

    def constraints(self, grammar: str, count: int) -> list[GrammarConstraint]:
        """``count`` constraints by ``grammar``. Raises `EndpointError`: 400 for one that is invalid, 501 without llguidance."""
        try:
            from llguidance import LLMatcher
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise EndpointError(
                "replies in JSON and demanded tool calls need llguidance", status=501, hint="pip install 'lgov[train]'"
            ) from error
        model = self._model
        with self._lock:
            if self._tokenizer is None:
                size = int(model.module.config.get_text_config().vocab_size)
                self._tokenizer = from_tokenizer(model.tokenizer, n_vocab=size, eos_token=sorted(model.eos_ids))
            matcher = self._matchers.get(grammar)
            if matcher is None:
                matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
                if error := matcher.get_error():
                    lines = [line for line in str(error).splitlines() if line.strip()]
                    raise EndpointError(f"the JSON schema cannot be decoded by: {lines[0][:200] if lines else error}")
                self._matchers.put(grammar, matcher)
            return [GrammarConstraint(matcher.deep_copy(), model.eos_ids) for _ in range(count)]


_HONOURED = (
    "logprobs", "max_completion_tokens", "max_tokens", "messages", "model", "n", "return_token_ids", "seed", "stop",
    "stream", "stream_options", "temperature", "tools", "top_p",
)  # fmt: skip
#: Without effect on what the model reads and writes.
_IGNORED = fields_with("chat", Use.FORWARDED)
#: Accepted with the values that ask for nothing special.
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "frequency_penalty": (0,),
    "logit_bias": (),
    "min_p": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (-1, 0),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
}
#: Dials that these models do not have.
LACKS = ("reasoning", "reasoning_effort", "thinking", "verbosity")
_REFUSED = ("audio", "chat_template_kwargs", "function_call", "functions", "reasoning_effort", "web_search_options")
#: What a reply must look like, which an engine without grammars refuses.
_FORMS: Mapping[str, Sequence[Any]] = {"response_format": ({"type": "text"},), "tool_choice": ("auto", "none")}


def check_fields(request: ChatRequest, whose: str, *, grammars: bool) -> None:
    """Raises `EndpointError` (400) naming the field for what the engine ``whose`` cannot honour.

    With ``grammars``, ``response_format`` and ``tool_choice`` are read by `lgov_core.gateway.engine.reply_codec`.
    ``strict`` of a tool is ignored where no call is demanded: arguments are then what the model wrote.
    """
    body = request.body
    for name, neutral in {**_NEUTRAL, **({} if grammars else _FORMS)}.items():
        refuse(body, (name,), whose, unless={name: neutral})
    refuse(body, _REFUSED, whose)
    only_known(body, {*_HONOURED, *_IGNORED, *_NEUTRAL, *_FORMS, *_REFUSED}, whose)
    for index, message in enumerate(request.messages):
        if message.get("function_call"):
            raise EndpointError(f"messages[{index}] has a 'function_call'", hint="write it as 'tool_calls'")


@dataclass(frozen=True, slots=True)
class _Reply:
    text: str
    content: str
    calls: tuple[ToolCall, ...]


class ReplyTokenCache:
    """The tokens of the last ``size`` replies of one engine; an older reply is tokenised anew. For one event loop."""

    def __init__(self, model: LanguageModel, size: int = 8192) -> None:
        self._model = model
        self._end = model.decode([model.end_id])
        self._ids: BoundedDict[bytes, tuple[int, ...]] = BoundedDict(size)
        self._replies: BoundedDict[str, _Reply] = BoundedDict(size)
        # A tokenizer that treats text differently after a control token than at the start of a text cannot be cut
        # there.
        encode = model.text.encode
        self._cuttable = encode(f"a b{self._end} c") == [*encode(f"a b{self._end}"), *encode(" c")]

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, tuple[int, ...]]:
        """The prompt's text, to be handed to `remember`, and its token ids."""
        text = self._model.render_text([self._verbatim(message) for message in messages], tools)
        return text, tuple(self._encode(text))

    def remember(
        self,
        prompt_text: str,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        text: str,
        content: str | None,
        calls: tuple[ToolCall, ...],
    ) -> None:
        """Keeps a reply: ``response_ids`` as generated, ``text`` their decoded text without the end token."""
        if calls:
            self._replies.put(calls[0].call_id, _Reply(text, content or "", calls))
        if not self._cuttable:
            return
        whole = (*prompt_ids, *response_ids)
        if whole[-1] != self._model.end_id:
            if whole[-1] in self._model.eos_ids:
                return  # ended with a token that is not how the template ends a turn
            whole = (*whole, self._model.end_id)
        key = _digest(f"{prompt_text}{REPLY_STARTS}{self._model.text.protect_turns(text)}{self._end}")
        self._ids.put(key, whole)

    def _verbatim(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The message; when it holds the calls of a remembered reply unchanged, the reply as it was generated."""
        calls = message.get("tool_calls")
        if message.get("role") != "assistant" or not calls:
            return message
        reply = self._replies.get(str(calls[0].get("id")))
        if reply is None or len(calls) != len(reply.calls) or message_text(message) != reply.content:
            return message
        for call, remembered in zip(calls, reply.calls, strict=True):
            function = call["function"]
            same = (
                call.get("id") == remembered.call_id
                and function["name"] == remembered.name
                and _same_arguments(function.get("arguments") or "", remembered.arguments)
            )
            if not same:
                return message
        return {"role": "assistant", "content": reply.text}

    def _encode(self, text: str) -> list[int]:
        cut = text.rfind(self._end) if self._cuttable else -1
        while cut >= 0:
            cut += len(self._end)
            key = _digest(text[:cut])
            if (ids := self._ids.get(key)) is not None:
                return [*ids, *self._model.text.encode(text[cut:])]
            cut = text.rfind(self._end, 0, cut - len(self._end))
        return self._model.text.encode(text)


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _same_arguments(left: str, right: str) -> bool:
    """Returns whether both are the same JSON value (clients serialise it with other white space), or the same broken text."""
    if left == right:
        return True
    try:
        # As text, because 1, 1.0 and True are equal as values.
        first, second = (json.dumps(json.loads(text), sort_keys=True) for text in (left, right))
    except (ValueError, RecursionError):
        return False
    return first == second


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as text and as token ids (int, length P)."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Generated:
    """Generated tokens: ``ids`` (int, at least one), their ``logprobs`` (the same length, or None) and weights version.

    ``forced`` are the places of tokens that a grammar decided.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    weights_version: int | None
    forced: tuple[int, ...] = ()


class ReplyCodec:
    """Writes prompts and reads replies of one `LanguageModel`. For one event loop.

    ``name`` is the model's name in completions, ``context`` the most tokens of prompt and reply together. Prompts repeat
    the tokens of earlier replies exactly (`ReplyTokenCache`).
    """

    def __init__(self, model: LanguageModel, *, name: str, context: int) -> None:
        self._model = model
        self._name = name
        self._context = context
        self._cache = ReplyTokenCache(model)

    def count(self, request: ChatRequest) -> int:
        """How many tokens the prompt has. Raises `EndpointError` (400) for a conversation that is not text."""
        return len(self._cache.render(request.messages, request.tools)[1])

    def prompt(self, request: ChatRequest) -> Prompt:
        """The prompt. Raises `ContextOverflow` for one that fills the context, `EndpointError` (400) for what is not text."""
        prompt = Prompt(*self._cache.render(request.messages, request.tools))
        if len(prompt.ids) >= self._context:
            raise ContextOverflow(len(prompt.ids) + 1, self._context)  # a reply has a token at least
        return prompt

    def reply_limit(self, request: ChatRequest, prompt: Prompt, most: int) -> int:
        """How many tokens the reply may have: ``most``, the request's limit, or what is left of the context."""
        limit = most if request.max_tokens is None else request.max_tokens
        return min(limit, most, self._context - len(prompt.ids))

    def completion(self, request: ChatRequest, prompt: Prompt, choices: Sequence[Generated]) -> Completion:
        """The reply of one choice or several."""
        first, *others = [self._choice(request, prompt, choice) for choice in choices]
        return replace(first, more=tuple(replace(other, response_id=first.response_id) for other in others))

    def _choice(self, request: ChatRequest, prompt: Prompt, generated: Generated) -> Completion:
        ids = generated.ids
        ended = ids[-1] in self._model.eos_ids
        text = self._model.decode(ids[:-1] if ended else ids)
        matches = [(position, stop) for stop in request.stop if (position := text.find(stop)) >= 0]
        position, matched = min(matches, default=(len(text), None))
        before_stop = text[:position]
        finish = "stop" if ended or matched is not None else "length"
        content: str | None = before_stop
        calls: tuple[ToolCall, ...] = ()
        # A reply that was cut off at its token limit proposes no tool calls: half a call is never acted on.
        if request.tools and (finish == "stop" or self._model.format.is_whole(before_stop, request.tools)):
            parsed = self._model.format.parse(before_stop, request.tools)
            content = parsed.content
            # Where no form holds it to one call, as servers do: the program gets the first.
            most = 1 if request.body.get("parallel_tool_calls") is False else None
            calls = tuple(ToolCall(new_id("call"), call.name, call.arguments_text) for call in parsed.calls[:most])
        if matched is None:
            self._cache.remember(prompt.text, prompt.ids, ids, text, content, calls)
        return Completion(
            response_id=new_id("chatcmpl"),
            model=self._name,
            text=text,
            content=content,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else finish,
            prompt_ids=prompt.ids,
            response_ids=ids,
            logprobs=generated.logprobs,
            weights_version=generated.weights_version,
            prompt_tokens=len(prompt.ids),
            completion_tokens=len(ids),
            matched_stop=matched,
            forced=generated.forced,
        )
