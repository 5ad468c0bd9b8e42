"""The model APIs that the endpoint speaks, and a call in one of them.

An upstream that speaks an API is asked in it. Chat completions and completions carry token ids where the server gives
them; the Responses and the Messages API have no place for token ids, so calls recorded from them have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from lgov_core.errors import EndpointError, LgovError
from lgov_core.types import new_id
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
from lgov_core.wire.responses_stream import stream_of as response_stream
from lgov_core.wire.turns import with_text_at

Body = Mapping[str, Any]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Api:
    """One API: how its requests and replies are read, changed and written, by functions without state.

    ``route`` is its name in records, ``path`` stands below ``/v1``. ``id_prefix`` begins the ids of replies that are
    written here, ``error_event`` is the name of the event with which a stream fails. ``wanted`` is added to a request to an
    upstream so that token ids come back.

    - ``translate``: the request as a chat completion request, after the conversation that it goes on from, if it names one.
      Raises `EndpointError` (400) that names what is wrong, or cannot be said in a chat completion.
    - ``native``: the request as it is, for an engine that speaks this API. Raises `EndpointError` (400).
    - ``readable``: a native request with its messages in chat form, as policies read it. Raises `EndpointError` (400).
    - ``places``: where the text of each message stands in a request; None for a message that has no place for a text. The
      messages of an earlier conversation, whose number is given, stand at ``("before", number, "content")``.
    - ``read_reply``: a reply of this API. Raises `UpstreamError` for what is not one.
    - ``assembler``: puts the events of a reply of so many choices together.
    - ``writer``: the writer, with this id, of the reply to a body, for an engine that is asked for a chat completion.
    - ``changed_reply``: a whole reply as policies left it.
    - ``events``: a whole reply as the stream that the request asks for, without the events that its client has.
    - ``error_body``: an error in the shape of this API.
    """

    route: str
    path: str
    id_prefix: str
    error_event: str | None = None
    wanted: Body = field(default_factory=dict[str, Any])
    translate: Callable[[Body, Sequence[Message]], ChatRequest]
    native: Callable[[Body], ChatRequest]
    readable: Callable[[ChatRequest], ChatRequest]
    places: Callable[[Body, int], list[Place | None]]
    read_reply: Callable[[Body], Completion]
    assembler: Callable[[int], Assembler]
    writer: Callable[[ChatRequest, Body, str], ReplyWriter]
    changed_reply: Callable[[Body, Changes], Body]
    events: Callable[[Body, Body, Sequence[Body]], bytes]
    error_body: Callable[[LgovError, int], Body] = error_body

    def pass_on(self, request: ChatRequest) -> ReplyWriter:
        """The writer of a reply that the engine wrote in this API."""
        return PassedOn(request, self.read_reply, self.assembler, self.error_body, event=self.error_event)


def _read_chat(body: Body, _before: Sequence[Message] = ()) -> ChatRequest:
    wants_usage(body)  # checks it before anything is generated
    return read_chat_request(body)


def _as_it_is(route: str, most: str) -> Callable[[Body], ChatRequest]:
    """Reads a request of an API whose messages only the upstream and policies read."""

    def read(body: Body) -> ChatRequest:
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


#: OpenAI's chat completions.
CHAT: Final = Api(
    route="chat",
    path="/chat/completions",
    id_prefix="chatcmpl",
    wanted={"logprobs": True, "return_token_ids": True},
    translate=_read_chat,
    native=_read_chat,
    readable=lambda request: request,
    places=lambda body, _before: chat_places(body),
    read_reply=read_completion,
    assembler=ChatAssembler,
    writer=lambda request, _body, _id: CHAT.pass_on(request),
    changed_reply=changed_chat_reply,
    events=lambda request, reply, passed: stream_of(dict(request), dict(reply), (), list(map(dict, passed))).encode(),
)
#: OpenAI's legacy completions.
COMPLETIONS: Final = Api(
    route="completions",
    path="/completions",
    id_prefix="cmpl",
    wanted={"logprobs": 1, "return_token_ids": True},
    translate=lambda body, _before: read_completions_request(body),
    native=read_native_completions,
    readable=readable_prompts,
    places=lambda body, _before: prompt_places(body),
    read_reply=read_completion,
    assembler=lambda n: ChatAssembler(n, legacy=True),
    writer=CompletionsWriter,
    changed_reply=changed_text_reply,
    events=text_events,
)
#: OpenAI's Responses API.
RESPONSES: Final = Api(
    route="responses",
    path="/responses",
    id_prefix="resp",
    error_event="error",
    translate=read_responses_request,
    native=_as_it_is("responses", "max_output_tokens"),
    readable=lambda request: read_responses_request(request.body),
    places=response_places,
    read_reply=read_response,
    assembler=lambda _n: ResponsesAssembler(),
    writer=ResponsesWriter,
    changed_reply=changed_response,
    events=lambda request, reply, passed: response_stream(
        dict(request), dict(reply), (), list(map(dict, passed))
    ).encode(),
)
#: Anthropic's Messages API.
MESSAGES: Final = Api(
    route="messages",
    path="/messages",
    id_prefix="msg",
    error_event="error",
    translate=read_messages_request,
    native=_as_it_is("messages", "max_tokens"),
    readable=lambda request: read_messages_request(request.body),
    places=lambda body, _before: message_places(body),
    read_reply=read_message,
    assembler=lambda _n: MessagesAssembler(),
    writer=MessagesWriter,
    changed_reply=changed_message,
    events=lambda _request, reply, passed: message_events(reply, passed),
    error_body=messages_error,
)
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

    def reply_writer(self) -> ReplyWriter:
        """The writer of the reply; it has a fresh id where the engine does not write in this API."""
        if self.native:
            return self.api.pass_on(self.request)
        return self.api.writer(self.request, self.body, new_id(self.api.id_prefix))
