"""The form that a reply must have, as a grammar: a JSON object, JSON of a schema, or a tool call that the client demands.

The engine draws only tokens that the grammar allows (llguidance, extra ``train``), so that a reply that ends is of that form;
one that is cut off at its token limit is a prefix of one. The grammar is not part of the prompt.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import EndpointError
from lgov_core.models.tool_text import Tool, tool_name, tool_parameters
from lgov_core.wire.exchange import ChatRequest
from lgov_core.wire.fields import an_object, shown, text

if TYPE_CHECKING:
    import torch

    from lgov_core.models import LanguageModel

#: JSON in one line, as Python's json writes it: free white space could be endless.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MOST_GRAMMARS = 64
#: An array's bounds may be this much: llguidance 1.7, which vLLM 0.32 has, takes memory for each possible item.
_MOST_ITEMS = 10_000


def reply_grammar(request: ChatRequest, tool_format: str) -> str | None:
    """The grammar (Lark, as llguidance reads it) of the replies to ``request``; None when any text will do.

    ``response_format`` asks for JSON; with tools offered a reply may be calls instead. ``tool_choice`` demands a call: of
    any tool, or of one. ``parallel_tool_calls: false`` allows one call only. Raises `EndpointError` (400) for a form that is
    none.
    """
    tools = _demanded(request)
    schema = _answer_schema(request.body)
    if tools is None and schema is None:
        return None
    alone = request.body.get("parallel_tool_calls") is False
    rules: dict[str, list[str]] = {}
    if offered := request.tools if tools is None else tools:
        rules["calls"] = _calls(offered, tool_format, alone=alone)
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


def _calls(tools: Sequence[Tool], tool_format: str, *, alone: bool) -> list[str]:
    any_call = " | ".join(f"call_{number}" for number in range(len(tools)))
    rules = [f"call_{number}: {_call(tool, tool_format)}" for number, tool in enumerate(tools)]
    if alone:
        return [f"calls: {any_call}", *rules]
    if tool_format == "json":
        return [f'calls: {any_call} | "[" one_call (", " one_call)* "]"', f"one_call: {any_call}", *rules]
    return [r'calls: one_call ("\n" one_call)*', f"one_call: {any_call}", *rules]


def _call(tool: Tool, tool_format: str) -> str:
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
        return rf'"<tool_call>\n" %json {_styled(whole)} "\n</tool_call>"'
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
