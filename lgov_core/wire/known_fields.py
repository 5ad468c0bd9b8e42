"""The fields of a request that the endpoint knows, by API, and what each of them does.

`FIELDS` is the one table: the readers of the APIs, the engines with a tokenizer of their own, and the reference page are
made from it. A field that is not in it is refused where the endpoint reads the request: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Use(StrEnum):
    """What a field does."""

    #: The engine reads, samples or writes by it.
    ASKED = "asked"
    #: Without effect on what is sampled; the reply repeats it, or the endpoint goes by it itself.
    KEPT = "kept"
    #: Without effect on what is sampled here; a server behind the endpoint that is asked in the same API gets it.
    FORWARDED = "forwarded"
    #: Without effect at all where the call is translated: it stands in the record.
    RECORDED = "recorded"
    #: Answered with 400 where the call is translated.
    REFUSED = "refused"


def _uses(**names: str) -> Mapping[str, Use]:
    return MappingProxyType({name: Use(use) for use, words in names.items() for name in words.split()})


#: By API, the fields of a request's body and their use.
FIELDS: Final[Mapping[str, Mapping[str, Use]]] = MappingProxyType(
    {
        "chat": _uses(
            asked="frequency_penalty logit_bias logprobs max_completion_tokens max_tokens messages min_p modalities model n"
            " parallel_tool_calls presence_penalty reasoning_effort repetition_penalty response_format return_token_ids seed"
            " stop stream stream_options temperature tool_choice tools top_k top_logprobs top_p verbosity",
            forwarded="metadata prediction prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier"
            " service_tier store user",
        ),
        "completions": _uses(
            asked="frequency_penalty logit_bias logprobs max_tokens min_p model n presence_penalty prompt repetition_penalty"
            " return_token_ids seed stop stream stream_options temperature top_k top_p",
            forwarded="user",
            refused="best_of echo suffix",
        ),
        "responses": _uses(
            asked="include input instructions max_output_tokens model parallel_tool_calls previous_response_id reasoning"
            " stream stream_options temperature text tool_choice tools top_logprobs top_p",
            kept="metadata store truncation user",
            recorded="prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier service_tier",
            refused="background conversation context_management max_tool_calls moderation prompt",
        ),
        "messages": _uses(
            asked="max_tokens messages model output_config stop_sequences stream system temperature tool_choice tools top_k"
            " top_p",
            recorded="cache_control metadata service_tier thinking",
            refused="container context_management inference_geo mcp_servers speed",
        ),
        "embeddings": _uses(asked="dimensions encoding_format input model", forwarded="user"),
    }
)


def fields_with(api: str, *uses: Use) -> tuple[str, ...]:
    """The fields of ``api`` that have one of ``uses``, in the order of the table."""
    return tuple(name for name, use in FIELDS[api].items() if use in uses)


def accepted_fields(api: str) -> frozenset[str]:
    """The fields of ``api`` that a translated call may have."""
    return frozenset(fields_with(api, Use.ASKED, Use.KEPT, Use.FORWARDED, Use.RECORDED))
