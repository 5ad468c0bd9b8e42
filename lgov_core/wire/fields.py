"""The JSON of requests and replies: fields read strictly (what is wrong is named, what cannot be honoured is refused).

`FIELDS` is the one table of what an API has: the readers of the APIs, the engines with a tokenizer of their own, and the
reference page are made from it. A field that is not in it is refused where the endpoint reads the request: nothing is
dropped silently.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NoReturn, cast

from lgov_core._util.json_text import fast_json
from lgov_core.errors import EndpointError
from lgov_core.wire.turns import media_bytes


def shown(value: Any) -> str:
    """``value`` as a message shows it, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def flag(body: Mapping[str, Any], name: str) -> bool:
    """A boolean field; absent or null is False. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise EndpointError(f"{name!r} must be true or false, not {shown(value)}")
    return bool(value)


def number(
    body: Mapping[str, Any],
    name: str,
    default: float | None,
    *,
    low: float = -math.inf,
    above: float = -math.inf,
    high: float = math.inf,
    whole: bool = False,
) -> float | None:
    """A number from ``low`` to ``high``, and above ``above``; ``default`` when absent or null. Raises `EndpointError`."""
    value = body.get(name)
    if value is None:
        return default
    right_type = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right_type or not (low <= value <= high and value >= above) or value == above:
        bounds = (
            [f"≥ {low}"] * (low > -math.inf) + [f"> {above}"] * (above > -math.inf) + [f"≤ {high}"] * (high < math.inf)
        )
        kind = "a whole number" if whole else "a number"
        raise EndpointError(f"{name!r} must be {' '.join([kind, *bounds])}, not {shown(value)}")
    return value


def text(body: Mapping[str, Any], name: str, where: str = "") -> str | None:
    """A text field; absent or null is None. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise EndpointError(f"{where}{name!r} must be text, not {shown(value)}")
    return value


def an_object(body: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
    """A field that holds an object; absent or null is an empty one. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise EndpointError(f"{where}{name!r} must be an object, not {shown(value)}")
    return cast("Mapping[str, Any]", value or {})


def a_list(body: Mapping[str, Any], name: str, where: str = "") -> list[Any]:
    """A field that holds a list; absent or null is an empty one. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, list):
        raise EndpointError(f"{where}{name!r} must be a list, not {shown(value)}")
    return cast("list[Any]", value or [])


def model_name(body: Mapping[str, Any]) -> str:
    """The field ``model``. Raises `EndpointError`."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise EndpointError("'model' must be the name of a model", hint="GET /v1/models lists them")
    return model


def refuse(
    body: Mapping[str, Any], names: Collection[str], whose: str, *, unless: Mapping[str, Collection[Any]] | None = None
) -> None:
    """Refuses what ``whose`` cannot honour: the fields ``names``, unless they are absent, null, empty, or in ``unless``.

    Raises `EndpointError` (400) that names the field.
    """
    for name in names:
        value = body.get(name)
        if value is None or value == [] or value == {} or value is False:
            continue
        if unless and value in (unless.get(name) or ()):
            continue
        raise EndpointError(f"{name!r} ({shown(value)}) is not supported by {whose}", hint="leave it out")


def only_known(body: Mapping[str, Any], names: Collection[str], whose: str) -> None:
    """Refuses fields outside ``names`` that are not null. Raises `EndpointError` (400) that names them."""
    unknown = sorted(name for name in body.keys() - names if body[name] is not None)
    if unknown:
        named = ", ".join(map(repr, unknown[:5]))
        raise EndpointError(
            f"{named} is not a field that {whose} knows", hint="leave it out: nothing is dropped silently"
        )


def read_json(raw: bytes) -> Mapping[str, Any]:
    """The JSON object in a request's body.

    Raises `EndpointError` (400) for anything else: NaN and infinities, text that is not UTF-8, a lone surrogate.
    """
    try:
        body = fast_json(raw)
    except (ValueError, RecursionError):
        body = _read_slowly(raw)
    if not isinstance(body, dict):
        raise EndpointError(f"the request must be a JSON object, not {type(body).__name__}")
    return cast("dict[str, Any]", body)


def _read_slowly(raw: bytes) -> Any:
    """Reads text that the fast reader refuses: says in words why, and reads numbers that are too large for the other."""
    try:
        body = _DECODER.decode(raw.decode())
        if b"\\ud" in raw.lower():  # an escaped surrogate, perhaps without its other half
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise EndpointError("the request contains a lone surrogate, which is not valid text") from error
    except (ValueError, RecursionError) as error:
        raise EndpointError(f"the request is not JSON: {error}") from error
    return body


def count_values(raw: bytes, limit: int) -> int:
    """How many values, at most, the JSON ``raw`` holds. Raises `EndpointError` (413) for more than ``limit``."""
    bound = sum(map(raw.count, (b",", b"[", b"{")))
    if bound <= limit:
        return bound
    count = 0  # not counting what is inside strings
    for mark in _MARKS.finditer(raw):
        count += mark.end() - mark.start() == 1
        if count > limit:
            raise EndpointError(
                f"the request holds more than {limit} JSON values",
                status=413,
                hint="send less at once, or raise max_values",
            )
    return count


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


#: A string, with its end or without, or what comes before a value.
_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[,\[{]', re.DOTALL)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class Use(StrEnum):
    """The use of a field."""

    #: The engine reads, samples or writes by it.
    ASKED = "asked"
    #: Without effect on what is sampled; the reply repeats it, or the endpoint goes by it itself.
    KEPT = "kept"
    #: Without effect on what is sampled here; a server behind the endpoint that is asked in the same API gets it.
    FORWARDED = "forwarded"
    #: Without effect at all where the call is translated: it stands in the record.
    RECORDED = "recorded"
    #: Asks for what a model alone does not do: it is left out, and the reply's header, the record and the log name it.
    LEFT_OUT = "left out"
    #: Answered with 400 where the call is translated.
    REFUSED = "refused"


def _uses(**names: str) -> Mapping[str, Use]:
    return MappingProxyType(
        {name: Use(use.replace("_", " ")) for use, words in names.items() for name in words.split()}
    )


#: By API, the fields of a request's body and their use; fields of an object, or of the objects in a list, as ``object.field``.
FIELDS: Final[Mapping[str, Mapping[str, Use]]] = MappingProxyType(
    {
        "chat": _uses(
            asked="chat_template_kwargs enable_thinking frequency_penalty logit_bias logprobs max_completion_tokens max_tokens"
            " messages min_p modalities model n parallel_tool_calls presence_penalty reasoning reasoning_effort"
            " repetition_penalty response_format return_token_ids seed stop stream stream_options temperature thinking"
            " tool_choice tools top_k top_logprobs top_p verbosity",
            forwarded="metadata prediction prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier"
            " service_tier store user",
            left_out="web_search_options",
        ),
        "completions": _uses(
            asked="frequency_penalty logit_bias logprobs max_tokens min_p model n presence_penalty prompt repetition_penalty"
            " return_token_ids seed stop stream stream_options temperature top_k top_p",
            forwarded="metadata service_tier store user",
            refused="best_of echo suffix",
        ),
        "responses": _uses(
            asked="include input instructions max_output_tokens model parallel_tool_calls previous_response_id reasoning"
            " stream stream_options temperature text tool_choice tools top_logprobs top_p reasoning.effort reasoning.summary"
            " text.format text.verbosity tools.description tools.name tools.parameters tools.strict tools.type",
            kept="metadata store truncation user",
            recorded="access_programs client_metadata context_management image max_tool_calls prompt_cache_key"
            " prompt_cache_options prompt_cache_retention reasoning.context reasoning.generate_summary reasoning.mode"
            " safety_identifier service_tier tools.allowed_callers tools.async tools.defer_loading tools.output_schema",
            refused="background conversation moderation prompt",
        ),
        "messages": _uses(
            asked="max_tokens messages model output_config stop_sequences stream system temperature tool_choice tools top_k"
            " top_p output_config.effort output_config.format tools.description tools.input_schema tools.name tools.strict"
            " tools.type",
            recorded="billing_policy cache_control context_management diagnostics fallback_credit_token fallbacks metadata"
            " output_config.task_budget service_tier speed thinking tools.allowed_callers tools.cache_control"
            " tools.defer_loading tools.eager_input_streaming tools.input_examples user_profile_id workspace_id",
            left_out="container mcp_servers",
            refused="compaction inference_geo thread",
        ),
        "embeddings": _uses(asked="dimensions encoding_format input model", forwarded="user"),
    }
)


def fields_with(api: str, *uses: Use) -> tuple[str, ...]:
    """The fields of a request of ``api`` that have one of ``uses``, in the order of the table."""
    return tuple(name for name, use in FIELDS[api].items() if use in uses and "." not in name)


def fields_below(api: str, name: str) -> tuple[str, ...]:
    """The fields of the object ``name``, or of the objects in the list ``name``, of a request of ``api``."""
    return tuple(field.removeprefix(f"{name}.") for field in FIELDS[api] if field.startswith(f"{name}."))


def accepted_fields(api: str) -> frozenset[str]:
    """The fields of ``api`` that a translated call may have."""
    return frozenset(fields_with(api, Use.ASKED, Use.KEPT, Use.FORWARDED, Use.RECORDED))


#: By API, the types of tools that a model can be offered: only the client runs them. Any other is run by a server.
_OFFERED: Final[Mapping[str, Collection[Any]]] = {
    "chat": (None, "function"),
    "responses": (None, "function"),
    "messages": (None, "custom"),
}
#: What a chat completion asks of a model that can be told how much to write, and where other APIs ask it.
_DIALS: Final = {
    "reasoning_effort": {"responses": ("reasoning", "effort"), "messages": ("output_config", "effort")},
    "verbosity": {"responses": ("text", "verbosity")},
    "reasoning": {},
    "thinking": {},
}
#: What a header does not carry as it is.
_NO_WORD: Final = re.compile(r"[^ \w.\-\[\]]", re.ASCII)


def offered(
    api: str, body: Mapping[str, Any], *, lacks: Collection[str] = (), translated: bool = False
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """``body`` without what no model can be offered, or this one ``lacks``, and the names of what was left out.

    These are fields and tools that a server would have to serve, and the fields ``lacks`` (named as in a chat completion). Of a
    ``translated`` request it also names what of the conversation another server sealed or ran by itself.
    """
    names = [name for name in fields_with(api, Use.LEFT_OUT) if body.get(name)]
    kept = {name: value for name, value in body.items() if name not in names}
    for lacked in lacks:
        *outer, name = _DIALS[lacked].get(api) or (lacked if api == "chat" else "",)
        holder = kept.get(outer[0]) if outer else kept
        if isinstance(holder, dict) and cast("dict[str, Any]", holder).get(name) is not None:
            names.append(".".join((*outer, name)))
            rest = {each: value for each, value in cast("dict[str, Any]", holder).items() if each != name}
            kept = {**kept, outer[0]: rest} if outer else rest
    tools: Any = kept.get("tools")
    if isinstance(tools, list) and api in _OFFERED:
        served = {index: tool for index, tool in enumerate(cast("list[Any]", tools)) if _is_served(api, tool)}
        names += [f"tools[{index}] {tool['type']} {tool.get('name') or ''}" for index, tool in served.items()]
        kept["tools"] = [tool for index, tool in enumerate(cast("list[Any]", tools)) if index not in served]
    if translated:
        names += _foreign(api, body)
    return (kept if names else body), tuple(_NO_WORD.sub("_", name).strip()[:100] for name in names)


def _is_served(api: str, tool: Any) -> bool:
    kind: Any = cast("dict[str, Any]", tool).get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind not in _OFFERED[api]


def _foreign(api: str, body: Mapping[str, Any]) -> Iterator[str]:
    where = {"responses": "input", "messages": "messages"}.get(api, "")
    items = body.get(where)
    for index, item in enumerate(cast("list[Any]", items) if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            continue
        entry = cast("dict[str, Any]", item)
        content = entry.get("content") if where == "messages" else [entry]
        blocks = cast("list[Any]", content) if isinstance(content, list) else ()
        yield from dict.fromkeys(f"{where}[{index}] {block['type']}" for block in blocks if of_another_server(block))


def of_another_server(item: Any) -> bool:
    """Returns whether an item or block of a conversation is what only the server that made it can read, or ran by itself."""
    if not isinstance(item, dict):
        return False
    entry = cast("dict[str, Any]", item)
    kind = str(entry.get("type"))
    if kind == "reasoning":
        return bool(entry.get("encrypted_content")) and not (entry.get("content") or entry.get("summary"))
    ran = kind.endswith("_call") and not entry.get("call_id") and kind != "function_call"
    return ran or kind == "redacted_thinking" or kind.endswith(("_tool_use", "_tool_result"))


_WHOSE: Final = "an endpoint with a policy"
#: Policies get the value as part of a message.
_READ: Final = "read"
#: The bytes of an image, a recording or a file, which hold no text that policies could read; any other value is a text.
_MEDIA: Final = "media"
#: An encrypted text or a signature, which only the server that made it can read; any other value is a text.
_SEALED: Final = "sealed"
_SEALED_BYTES: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_TEXT: Final = {"text": _READ}
_CALL: Final = {"id": _READ, "function": {"": {"name": _READ, "arguments": _READ}}}
_CHAT_PARTS: Final = {
    "str": _READ,
    "text": {"text": _READ, "refusal": _READ},
    "refusal": {"text": _READ, "refusal": _READ},
    "image_url": {"image_url": {"": {"url": _MEDIA}}},
    "input_audio": {"input_audio": {"": {"data": _MEDIA}}},
    "file": {"file": {"": {"file_data": _MEDIA}}},
}
_CHAT_MESSAGE: Final = {
    "role": _READ,
    "content": _CHAT_PARTS,
    "tool_calls": {"": _CALL, "function": _CALL},
    "tool_call_id": _READ,
}
_RESPONSE_PARTS: Final = {
    "str": _READ,
    **dict.fromkeys(("input_text", "output_text", "text"), _TEXT),
    "refusal": {"refusal": _READ},
    "input_image": {"image_url": _MEDIA},
    "input_file": {"file_data": _MEDIA},
}
_RESPONSE_MESSAGE: Final = {"role": _READ, "content": _RESPONSE_PARTS}
_RESPONSE_ITEMS: Final = {
    "str": _READ,
    "": _RESPONSE_MESSAGE,
    "message": _RESPONSE_MESSAGE,
    "function_call": {"call_id": _READ, "name": _READ, "arguments": _READ},
    "function_call_output": {"call_id": _READ, "output": _RESPONSE_PARTS},
    "reasoning": {"encrypted_content": _SEALED},
}
_BLOCKS: Final = {
    "str": _READ,
    "text": _TEXT,
    **{kind: {"source": {"base64": {"data": _MEDIA}, "url": {}, "file": {}}} for kind in ("image", "document")},
    "tool_use": {"id": _READ, "name": _READ, "input": _READ},
    "thinking": {"signature": _SEALED},
    "redacted_thinking": {"data": _SEALED},
}
_RESULT: Final = {"tool_result": {"tool_use_id": _READ, "content": _BLOCKS}}
#: By route and field, which parts of it policies get as messages: by the type of an object ("" for none) and its fields.
_READ_AS_MESSAGES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "chat": {"messages": {"": _CHAT_MESSAGE}},
        "completions": {"prompt": {"str": _READ}, "suffix": _READ},
        "responses": {"input": _RESPONSE_ITEMS, "instructions": _READ},
        "messages": {"messages": {"": {"role": _READ, "content": {**_BLOCKS, **_RESULT}}}, "system": _BLOCKS},
        "embeddings": {"input": {"str": _READ}},
    }
)
#: Sampling parameters of vLLM and SGLang beyond the API: forwarded where they hold numbers and flags alone.
_EXTENSIONS: Final = frozenset((
    "add_generation_prompt", "add_special_tokens", "allowed_token_ids", "best_of", "continue_final_message",
    "echo", "ignore_eos", "include_reasoning", "include_stop_str_in_output", "length_penalty", "min_new_tokens", "min_tokens",
    "no_stop_trim", "priority", "prompt_logprobs", "return_tokens_as_token_ids", "separate_reasoning",
    "skip_special_tokens", "spaces_between_special_tokens", "stop_token_ids", "stream_reasoning",
    "truncate_prompt_tokens", "use_beam_search",
))  # fmt: skip
#: APIs whose fields are checked here; those of the Responses and the Messages API are where they are read.
_CHECKED: Final = ("chat", "completions", "embeddings")
_KNOWN_OF_MESSAGE: Final = frozenset((
    "annotations", "audio", "content", "function_call", "name", "parsed", "reasoning", "reasoning_content",
    "reasoning_details", "refusal", "role", "tool_call_id", "tool_calls",
))  # fmt: skip


def texts_beside_messages(route: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Everything in ``body`` that policies do not get as messages, except numbers and flags, in the form of the body.

    In a list, None stands for an element of which nothing is left. Raises `EndpointError` (400) that names a field which
    is not known: what cannot be read is not forwarded.
    """
    if route in _CHECKED:
        extensions = {name for name in _EXTENSIONS & body.keys() if route != "embeddings" and _numbers(body[name])}
        only_known(body, FIELDS[route].keys() | extensions if extensions else FIELDS[route], _WHOSE)
    for index, message in enumerate(body["messages"] if route == "chat" else ()):
        only_known(message, _KNOWN_OF_MESSAGE, f"messages[{index}] at {_WHOSE}")
    plain = {"model": _READ, **_READ_AS_MESSAGES[route]}
    beside = {name: _rest(value, plain.get(name)) for name, value in body.items()}
    return {name: value for name, value in beside.items() if not isinstance(value, int | float | None)}


def _numbers(value: Any) -> bool:
    return all(
        isinstance(number, int | float) for number in (cast("list[Any]", value) if isinstance(value, list) else [value])
    )


def _rest(value: Any, read: Any) -> Any:
    """Returns the rest of ``value``; None for nothing."""
    if read is None:
        return value
    if read == _READ or (isinstance(value, str) and isinstance(read, Mapping) and "str" in read):
        return None
    if isinstance(value, list):
        rest_of_items = [_rest(item, read) for item in cast("list[Any]", value)]
        return rest_of_items if any(item is not None for item in rest_of_items) else None
    if read == _MEDIA:
        return None if isinstance(value, str) and media_bytes("data", value) is not None else value
    if read == _SEALED:
        return None if isinstance(value, str) and _SEALED_BYTES.fullmatch(value) else value
    kind = cast("dict[str, Any]", value).get("type") if isinstance(value, dict) else None
    fields: Mapping[str, Any] | None = read.get(kind or "") if isinstance(kind, str | None) else None
    if fields is None or not isinstance(value, dict):
        return value
    rest: dict[str, Any] = {}
    for name, item in cast("dict[str, Any]", value).items():
        here = fields.get(name)
        if here != _READ and name != "type" and (rest_of_item := _rest(item, here)) is not None:
            rest[name] = rest_of_item
    return rest or None
