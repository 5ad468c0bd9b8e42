"""The request fields that engines with a tokenizer of their own honour: everything else is refused, never dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.errors import EndpointError
from lgov_core.wire.exchange import ChatRequest
from lgov_core.wire.fields import only_known, refuse
from lgov_core.wire.known_fields import Use, fields_with

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
_REFUSED = ("audio", "chat_template_kwargs", "function_call", "functions", "reasoning_effort", "web_search_options")
#: What a reply must look like, which an engine without grammars refuses.
_FORMS: Mapping[str, Sequence[Any]] = {"response_format": ({"type": "text"},), "tool_choice": ("auto", "none")}


def check_fields(request: ChatRequest, whose: str, *, grammars: bool) -> None:
    """Raises `EndpointError` (400) naming the field for what the engine ``whose`` cannot honour.

    With ``grammars``, ``response_format`` and ``tool_choice`` are read by `lgov_core.gateway.engine.reply_grammar`.
    ``strict`` of a tool is ignored where no call is demanded: arguments are then what the model wrote.
    """
    body = request.body
    demanded = any(body.get(name) not in (None, {}, *neutral) for name, neutral in _FORMS.items())
    for name, neutral in {**_NEUTRAL, **({} if grammars else _FORMS)}.items():
        if name == "parallel_tool_calls" and body.get(name) is False and request.tools:
            if grammars and demanded:
                continue
            raise EndpointError(
                f"'parallel_tool_calls' (False) is not supported by {whose} where no call is demanded",
                hint="leave it out, or demand a call with 'tool_choice'",
            )
        refuse(body, (name,), whose, unless={name: neutral})
    refuse(body, _REFUSED, whose)
    only_known(body, {*_HONOURED, *_IGNORED, *_NEUTRAL, *_FORMS, *_REFUSED}, whose)
    for index, message in enumerate(request.messages):
        if message.get("reasoning_content") or message.get("reasoning"):
            raise EndpointError(f"messages[{index}] has reasoning, which {whose} does not read")
        if message.get("function_call"):
            raise EndpointError(f"messages[{index}] has a 'function_call'", hint="write it as 'tool_calls'")
