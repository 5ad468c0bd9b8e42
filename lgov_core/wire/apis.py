"""The model APIs that the endpoint speaks, one class each, and a call in one of them.

An upstream that speaks an API is asked in it. Chat completions and completions carry token ids where the server gives
them; the Responses and the Messages API have no place for token ids, so calls recorded from them have none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from lgov_core.errors import EndpointError, LgovError
from lgov_core.wire.chat import (
    changed_chat_reply,
    chat_places,
    error_body,
    read_chat_request,
    read_completion,
    wants_usage,
)
from lgov_core.wire.chat_turns import ChatAssembler, stream_of
from lgov_core.wire.completions import (
    CompletionsWriter,
    changed_text_reply,
    prompt_places,
    read_completions_request,
    read_native_completions,
    readable_prompts,
    text_events,
)
from lgov_core.wire.exchange import Assembler, Changes, ChatRequest, Completion, Place
from lgov_core.wire.fields import flag, model_name, number
from lgov_core.wire.messages import (
    MessagesAssembler,
    MessagesWriter,
    changed_message,
    message_events,
    message_places,
    messages_error,
    read_message,
    read_messages_request,
)
from lgov_core.wire.reply_writer import PassedOn, ReplyWriter
from lgov_core.wire.responses import (
    ResponsesWriter,
    changed_response,
    read_response,
    read_responses_request,
    response_places,
)
from lgov_core.wire.responses_stream import ResponsesAssembler
from lgov_core.wire.responses_stream import stream_of as response_stream_of
from lgov_core.wire.turns import with_text_at

Body = Mapping[str, Any]
Message = Mapping[str, Any]


class Api(ABC):
    """One API: how its requests and replies are read, changed and written. Stateless.

    ``route`` is its name in records, ``path`` stands below ``/v1``. ``id_prefix`` begins the ids of replies that are
    written here, ``error_event`` is the name of the event with which a stream fails. ``wanted`` is added to a request to an
    upstream so that token ids come back.
    """

    route: ClassVar[str]
    path: ClassVar[str]
    id_prefix: ClassVar[str]
    error_event: ClassVar[str | None] = None
    wanted: ClassVar[Body] = {}

    @abstractmethod
    def translate(self, body: Body, before: Sequence[Message] = ()) -> ChatRequest:
        """The request as a chat completion request; ``before`` is the conversation that it goes on from, if it names one.

        Raises `EndpointError` (400) that names what is wrong, or cannot be said in a chat completion.
        """

    @abstractmethod
    def native(self, body: Body) -> ChatRequest:
        """The request as it is, for an engine that speaks this API. Raises `EndpointError` (400)."""

    def readable(self, request: ChatRequest) -> ChatRequest:
        """A `native` request with its messages in chat form, as policies read it. Raises `EndpointError` (400)."""
        return self.translate(request.body)

    @abstractmethod
    def places(self, body: Body, before: int = 0) -> list[Place | None]:
        """Where the text of each message stands in a request; None for a message that has no place for a text.

        The ``before`` messages of an earlier conversation stand at ``("before", number, "content")``.
        """

    @abstractmethod
    def read_reply(self, body: Body) -> Completion:
        """A reply of this API. Raises `UpstreamError` for what is not one."""

    @abstractmethod
    def assembler(self, n: int) -> Assembler:
        """Puts the events of a reply of ``n`` choices together."""

    @abstractmethod
    def writer(self, request: ChatRequest, body: Body, response_id: str) -> ReplyWriter:
        """The writer of the reply to ``body``, for an engine that is asked for the chat completion ``request``."""

    @abstractmethod
    def changed_reply(self, body: Body, changes: Changes) -> Body:
        """A whole reply as policies left it."""

    @abstractmethod
    def events(self, request: Body, reply: Body, passed: Sequence[Body] = ()) -> bytes:
        """A whole reply as the stream that ``request`` asks for, without the events ``passed``: its client has them."""

    def error_body(self, error: LgovError, status: int) -> Body:
        """An error in the shape of this API."""
        return error_body(error, status)

    def pass_on(self, request: ChatRequest) -> ReplyWriter:
        """The writer of a reply that the engine wrote in this API."""
        return PassedOn(request, self.read_reply, self.assembler(request.n), self.error_body, event=self.error_event)


class ChatApi(Api):
    """OpenAI's chat completions."""

    route, path, id_prefix = "chat", "/chat/completions", "chatcmpl"
    wanted: ClassVar[Body] = {"logprobs": True, "return_token_ids": True}

    def translate(self, body: Body, before: Sequence[Message] = ()) -> ChatRequest:
        """See `Api`."""
        wants_usage(body)  # checks it before anything is generated
        return read_chat_request(body)

    def native(self, body: Body) -> ChatRequest:
        """See `Api`."""
        return self.translate(body)

    def readable(self, request: ChatRequest) -> ChatRequest:
        """See `Api`."""
        return request

    def places(self, body: Body, before: int = 0) -> list[Place | None]:
        """See `Api`."""
        return chat_places(body)

    def read_reply(self, body: Body) -> Completion:
        """See `Api`."""
        return read_completion(body)

    def assembler(self, n: int) -> Assembler:
        """See `Api`."""
        return ChatAssembler(n)

    def writer(self, request: ChatRequest, body: Body, response_id: str) -> ReplyWriter:
        """See `Api`."""
        return self.pass_on(request)

    def changed_reply(self, body: Body, changes: Changes) -> Body:
        """See `Api`."""
        return changed_chat_reply(body, changes)

    def events(self, request: Body, reply: Body, passed: Sequence[Body] = ()) -> bytes:
        """See `Api`."""
        return stream_of(dict(request), dict(reply), (), [dict(event) for event in passed]).encode()


class CompletionsApi(Api):
    """OpenAI's legacy completions."""

    route, path, id_prefix = "completions", "/completions", "cmpl"
    wanted: ClassVar[Body] = {"logprobs": 1, "return_token_ids": True}

    def translate(self, body: Body, before: Sequence[Message] = ()) -> ChatRequest:
        """See `Api`."""
        return read_completions_request(body)

    def native(self, body: Body) -> ChatRequest:
        """See `Api`."""
        return read_native_completions(body)

    def readable(self, request: ChatRequest) -> ChatRequest:
        """See `Api`."""
        return readable_prompts(request)

    def places(self, body: Body, before: int = 0) -> list[Place | None]:
        """See `Api`."""
        return prompt_places(body)

    def read_reply(self, body: Body) -> Completion:
        """See `Api`."""
        return read_completion(body)

    def assembler(self, n: int) -> Assembler:
        """See `Api`."""
        return ChatAssembler(n, legacy=True)

    def writer(self, request: ChatRequest, body: Body, response_id: str) -> ReplyWriter:
        """See `Api`."""
        return CompletionsWriter(request, body, response_id)

    def changed_reply(self, body: Body, changes: Changes) -> Body:
        """See `Api`."""
        return changed_text_reply(body, changes)

    def events(self, request: Body, reply: Body, passed: Sequence[Body] = ()) -> bytes:
        """See `Api`."""
        return text_events(request, reply, passed)


class ResponsesApi(Api):
    """OpenAI's Responses API."""

    route, path, id_prefix, error_event = "responses", "/responses", "resp", "error"

    def translate(self, body: Body, before: Sequence[Message] = ()) -> ChatRequest:
        """See `Api`."""
        return read_responses_request(body, before)

    def native(self, body: Body) -> ChatRequest:
        """See `Api`."""
        return _as_it_is(self.route, body, "max_output_tokens")

    def places(self, body: Body, before: int = 0) -> list[Place | None]:
        """See `Api`."""
        return response_places(body, before)

    def read_reply(self, body: Body) -> Completion:
        """See `Api`."""
        return read_response(body)

    def assembler(self, n: int) -> Assembler:
        """See `Api`."""
        return ResponsesAssembler()

    def writer(self, request: ChatRequest, body: Body, response_id: str) -> ReplyWriter:
        """See `Api`."""
        return ResponsesWriter(request, body, response_id)

    def changed_reply(self, body: Body, changes: Changes) -> Body:
        """See `Api`."""
        return changed_response(body, changes)

    def events(self, request: Body, reply: Body, passed: Sequence[Body] = ()) -> bytes:
        """See `Api`."""
        return response_stream_of(dict(request), dict(reply), (), [dict(event) for event in passed]).encode()


class MessagesApi(Api):
    """Anthropic's Messages API."""

    route, path, id_prefix, error_event = "messages", "/messages", "msg", "error"

    def translate(self, body: Body, before: Sequence[Message] = ()) -> ChatRequest:
        """See `Api`."""
        return read_messages_request(body)

    def native(self, body: Body) -> ChatRequest:
        """See `Api`."""
        return _as_it_is(self.route, body, "max_tokens")

    def places(self, body: Body, before: int = 0) -> list[Place | None]:
        """See `Api`."""
        return message_places(body)

    def read_reply(self, body: Body) -> Completion:
        """See `Api`."""
        return read_message(body)

    def assembler(self, n: int) -> Assembler:
        """See `Api`."""
        return MessagesAssembler()

    def writer(self, request: ChatRequest, body: Body, response_id: str) -> ReplyWriter:
        """See `Api`."""
        return MessagesWriter(request, body, response_id)

    def changed_reply(self, body: Body, changes: Changes) -> Body:
        """See `Api`."""
        return changed_message(body, changes)

    def events(self, request: Body, reply: Body, passed: Sequence[Body] = ()) -> bytes:
        """See `Api`."""
        return message_events(reply, passed)

    def error_body(self, error: LgovError, status: int) -> Body:
        """See `Api`."""
        return messages_error(error, status)


def _as_it_is(route: str, body: Body, most: str) -> ChatRequest:
    """A request of an API whose messages only the upstream and policies read."""
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


CHAT: Final[Api] = ChatApi()
COMPLETIONS: Final[Api] = CompletionsApi()
RESPONSES: Final[Api] = ResponsesApi()
MESSAGES: Final[Api] = MessagesApi()
APIS: Final = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
BY_ROUTE: Final[Mapping[str, Api]] = {api.route: api for api in APIS}


def api_of(path: str) -> Api:
    """The API whose error format is used for ``path``: chat for paths that belong to none."""
    _, _, below = path.partition("/v1")
    return next((api for api in APIS if below == api.path or below.startswith(f"{api.path}/")), CHAT)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One model call in the API of its client.

    ``body`` is the client's JSON, as policies left it, and ``before`` the conversation that it goes on from, in chat
    messages. ``request`` is how the engine is asked: in this API if the call is `native`, else for a chat completion.
    """

    api: Api
    body: Body
    request: ChatRequest
    before: Sequence[Message] = ()

    @classmethod
    def read(cls, api: Api, body: Body, *, native: bool, before: Sequence[Message] = ()) -> Self:
        """Reads ``body``, for an engine that speaks the API if ``native``. Raises `EndpointError` (400)."""
        return cls(api, body, api.native(body) if native else api.translate(body, before), before)

    @property
    def native(self) -> bool:
        """True where the engine is asked in the API of the client."""
        return self.request.route == self.api.route

    @property
    def readable(self) -> ChatRequest:
        """The call with its messages in chat form, as policies read it. Raises `EndpointError` (400)."""
        return self.api.readable(self.request) if self.native else self.request

    def fixed(self) -> frozenset[int]:
        """The numbers of the messages of `readable` that have no place for another text."""
        places = self.api.places(self.body, len(self.before))
        return frozenset(number for number, path in enumerate(places) if path is None)

    def changed(self, body: Body, texts: Mapping[int, str]) -> Exchange:
        """The call with another ``body``, and other ``texts`` in the messages of `readable` with these numbers.

        Raises `EndpointError` (403) for a text that has no place in the request.
        """
        places = self.api.places(body, len(self.before)) if texts else []
        before: Any = self.before
        for index, text in texts.items():
            path = places[index]
            if path is None:
                raise EndpointError("a policy changed a message that has no place for a text", status=403)
            if path[0] == "before":
                before = with_text_at(before, path[1:], text)
            else:
                body = with_text_at(body, path, text)
        return Exchange.read(self.api, body, native=self.native, before=before)

    def reply_writer(self, response_id: str) -> ReplyWriter:
        """The writer of the reply; its id is ``response_id`` where the engine does not write in this API."""
        return self.api.pass_on(self.request) if self.native else self.api.writer(self.request, self.body, response_id)
