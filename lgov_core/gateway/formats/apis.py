"""The model APIs that the endpoint speaks, each as one value: how it is read, written, and says that it failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lgov_core.gateway.formats.completions_format import (
    CompletionsWriter,
    read_completions_request,
    read_native_completions,
)
from lgov_core.gateway.formats.messages_format import MessagesWriter, messages_error
from lgov_core.gateway.formats.messages_request import read_messages_request
from lgov_core.gateway.formats.openai_format import error_body, read_chat_request, wants_usage
from lgov_core.gateway.formats.reply_writer import ErrorBody, PassedOn, ReplyWriter
from lgov_core.gateway.formats.request_fields import flag, model_name, number
from lgov_core.gateway.formats.responses_format import ResponsesWriter
from lgov_core.gateway.formats.responses_request import read_responses_request
from lgov_core.gateway.protocol import ChatRequest

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Api:
    """One API.

    ``route`` is its name in records, ``path`` stands below ``/v1``. ``translate`` reads a request as a chat completion
    request (with the conversation that it goes on from, if it names one), ``native`` as it is, for an engine that speaks
    this API; both raise `EndpointError` (400). ``rewrite`` makes the writer of translated replies. ``id_prefix`` begins
    the ids of those, ``error_event`` is the name of the event with which a stream fails.
    """

    route: str
    path: str
    translate: Callable[[Mapping[str, Any], Sequence[Message]], ChatRequest]
    native: Callable[[Mapping[str, Any]], ChatRequest]
    rewrite: Callable[[ChatRequest, Mapping[str, Any], str], ReplyWriter]
    id_prefix: str
    error_body: ErrorBody
    error_event: str | None = None

    def pass_on(self, request: ChatRequest) -> ReplyWriter:
        """The writer of replies that the engine wrote in this API."""
        return PassedOn(request, self.error_body, event=self.error_event)


def _read_chat(body: Mapping[str, Any], _before: Sequence[Message] = ()) -> ChatRequest:
    wants_usage(body)  # checks it before anything is generated
    return read_chat_request(body)


def _as_it_is(route: str, most: str) -> Callable[[Mapping[str, Any]], ChatRequest]:
    def read(body: Mapping[str, Any]) -> ChatRequest:
        tokens = number(body, most, None, low=1, whole=True)
        return ChatRequest(
            body=body,
            model=model_name(body),
            messages=(),
            max_tokens=None if tokens is None else int(tokens),
            temperature=number(body, "temperature", 1.0, low=0, high=2) or 0.0,
            top_p=number(body, "top_p", 1.0, low=0, high=1) or 1.0,
            stream=flag(body, "stream"),
            route=route,
        )

    return read


def _rewrite_chat(request: ChatRequest, _body: Mapping[str, Any], _id: str) -> ReplyWriter:
    return PassedOn(replace(request, route="chat"), error_body)


_read_responses = _as_it_is("responses", "max_output_tokens")
_read_messages = _as_it_is("messages", "max_tokens")

CHAT = Api("chat", "/chat/completions", _read_chat, _read_chat, _rewrite_chat, "chatcmpl", error_body)
COMPLETIONS = Api(
    "completions",
    "/completions",
    read_completions_request,
    read_native_completions,
    CompletionsWriter,
    "cmpl",
    error_body,
)
RESPONSES = Api(
    "responses", "/responses", read_responses_request, _read_responses, ResponsesWriter, "resp", error_body, "error"
)
MESSAGES = Api(
    "messages", "/messages", read_messages_request, _read_messages, MessagesWriter, "msg", messages_error, "error"
)
APIS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


def api_of(path: str) -> Api:
    """The API whose error format is used for ``path``: chat for paths that belong to none."""
    _, _, below = path.partition("/v1")
    return next((api for api in APIS if below == api.path or below.startswith(f"{api.path}/")), CHAT)
