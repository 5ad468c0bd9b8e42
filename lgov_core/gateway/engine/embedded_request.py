"""What the embedded engine can be asked for: everything else is refused, never dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lgov_core.errors import EndpointError
from lgov_core.gateway.formats.request_fields import only_known, refuse
from lgov_core.gateway.protocol import ChatRequest

_WHOSE: Final = "the embedded engine"
_HONOURED = (
    "logprobs", "max_completion_tokens", "max_tokens", "messages", "model", "n", "response_format", "return_token_ids",
    "seed", "stop", "stream", "stream_options", "temperature", "tool_choice", "tools", "top_p",
)  # fmt: skip
#: Of no effect on what the model reads and writes, here as with other servers: notes, caches, tiers, obfuscation.
IGNORED = (
    "metadata", "prediction", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store",
    "user",
)  # fmt: skip
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


def check_embedded(request: ChatRequest) -> None:
    """Raises `EndpointError` (400) naming the field for what the embedded engine cannot honour.

    What replies must look like (``response_format``, ``tool_choice``) is read by `lgov_core.gateway.engine.reply_grammar`.
    ``strict`` of a tool is ignored where no call is demanded: arguments are then what the model wrote.
    """
    body = request.body
    held = body.get("tool_choice") not in (None, "auto", "none") or body.get("response_format") not in (
        None,
        {},
        {"type": "text"},
    )
    for name, neutral in _NEUTRAL.items():
        if name == "parallel_tool_calls" and body.get(name) is False and request.tools:
            if held:
                continue
            raise EndpointError(
                f"'parallel_tool_calls' (False) is not supported by {_WHOSE} where no call is demanded",
                hint="leave it out, or demand a call with 'tool_choice'",
            )
        refuse(body, (name,), _WHOSE, unless={name: neutral})
    refuse(body, _REFUSED, _WHOSE)
    only_known(body, {*_HONOURED, *IGNORED, *_NEUTRAL, *_REFUSED}, _WHOSE)
    for index, message in enumerate(request.messages):
        if message.get("reasoning_content") or message.get("reasoning"):
            raise EndpointError(f"messages[{index}] has reasoning, which {_WHOSE} does not read")
        if message.get("function_call"):
            raise EndpointError(f"messages[{index}] has a 'function_call'", hint="write it as 'tool_calls'")
