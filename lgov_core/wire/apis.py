"""The model APIs that the endpoint speaks, each as one value: how it is read, written, and says that it failed.

An upstream that speaks an API is asked in it. Chat completions and completions carry token ids where the server gives
them; the Responses and the Messages API have no place for token ids, so calls recorded from them have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lgov_core.wire.chat import error_body, read_chat_request, read_completion, wants_usage
from lgov_core.wire.chat_stream import StreamAssembler
from lgov_core.wire.completions import (
    CompletionsWriter,
    read_completions_request,
    read_native_completions,
)
from lgov_core.wire.exchange import ChatRequest, Completion
from lgov_core.wire.fields import flag, model_name, number
from lgov_core.wire.messages import (
    MessagesAssembler,
    MessagesWriter,
    messages_error,
    read_message,
    read_messages_request,
)
from lgov_core.wire.reply_writer import ErrorBody, PassedOn, ReplyWriter
from lgov_core.wire.responses import ResponsesWriter, read_response, read_responses_request
from lgov_core.wire.responses_stream import ResponsesAssembler
from lgov_core.wire.sse import Assembler

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
        native = NATIVE[self.route]
        return PassedOn(request, native.read, native.assembler(request.n), self.error_body, event=self.error_event)


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
    return CHAT.pass_on(request)


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


_WANTED = {"logprobs": True, "return_token_ids": True}


@dataclass(frozen=True, slots=True)
class NativeReply:
    """How an upstream is asked in one API: the path below its base URL, what is added to the request so that token ids
    come back, and how the reply is read.
    """

    path: str
    wanted: Mapping[str, Any]
    read: Callable[[Mapping[str, Any]], Completion]
    assembler: Callable[[int], Assembler]


NATIVE: Mapping[str, NativeReply] = MappingProxyType(
    {
        "chat": NativeReply("/chat/completions", _WANTED, read_completion, StreamAssembler),
        "completions": NativeReply(
            "/completions", {**_WANTED, "logprobs": 1}, read_completion, lambda n: StreamAssembler(n, legacy=True)
        ),
        "responses": NativeReply("/responses", {}, read_response, lambda _n: ResponsesAssembler()),
        "messages": NativeReply("/messages", {}, read_message, lambda _n: MessagesAssembler()),
    }
)
