"""Requests, completions and stream pieces that the endpoint's routes, engines and gates exchange, and their protocols.

`gate_request`, `gate_replies`, `changed_exchange` and `changes_of` convert calls and replies for any gate.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from lgov_core._util.json_text import json_object
from lgov_core.errors import ContextOverflow, EndpointError, UpstreamError
from lgov_core.types import new_id
from lgov_core.wire.chat import reasoning_of
from lgov_core.wire.exchange import Changes, ChatRequest, ChoiceChange, Completion, StreamPiece, ToolCall
from lgov_core.wire.fields import shown, texts_beside_messages
from lgov_core.wire.turns import media_in, media_kind, with_texts

if TYPE_CHECKING:
    import torch

    from lgov_core.wire.apis import Exchange

ANY_MODEL: Final = "*"


class Engine(Protocol):
    """Answers model calls. All methods are called from the endpoint's event loop, many requests at once.

    An engine answers chat completions, from which other APIs are translated, unless an attribute ``speaks`` lists them
    (see `speaks`). Optional are ``async embed(body) -> body``, ``async count_tokens(request) -> int``, ``async list_models()``,
    the names that `ANY_MODEL` stands for, and ``lacks``, the fields of a chat completion that its model has no dial for. All
    raise `EndpointError` for what the engine cannot do and `UpstreamError` when the server behind it failed. ``stream`` yields
    pieces as the client will see them, and last the one with the completion; closing it early cancels the call.
    """

    name: str

    @property
    def models(self) -> Sequence[str]:
        """Names this engine answers to; `ANY_MODEL` among them means every name that no other engine has."""
        ...

    async def chat(self, request: ChatRequest) -> Completion:
        """The whole reply."""
        ...

    def stream(self, request: ChatRequest) -> AsyncIterator[StreamPiece]:
        """The reply piece by piece."""
        ...

    async def start(self) -> None:
        """Called once before the first request."""
        ...

    async def close(self) -> None:
        """Called once after the last request; fails what is still waiting."""
        ...


class EngineControl(Protocol):
    """The weights that an engine answers calls with, and the calls on them: all that a training asks of an engine.

    Every call is answered with one version, from its first token to its last, and the version is recorded with it. Callable
    from any thread; `pause` and `publish` block.
    """

    @property
    def weights_version(self) -> int:
        """The version that new calls are answered with: 0 for the weights that the engine began with."""
        ...

    def pause(self) -> None:
        """Holds new calls and returns when the running ones have ended.

        Pauses are counted: each needs its `resume`. Raises `LgovError`, and is then not paused, where the engine is closed or
        lost.
        """
        ...

    def publish(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        """Answers the calls that begin after it with new weights; returns their version. Works while paused.

        ``version`` must rise (default: by one). Raises `LgovError` for weights that do not fit or are not finite and a version
        that does not rise: the weights before are then still in use.
        """
        ...

    def resume(self) -> None:
        """Ends one pause; the calls that it held begin once no other holds them."""
        ...


@contextmanager
def paused(engine: EngineControl) -> Generator[None]:
    """Within it no call is answered, and the engine's weights may be changed in place. Raises as `EngineControl.pause`."""
    engine.pause()
    try:
        yield
    finally:
        engine.resume()


def speaks(engine: Engine) -> frozenset[str]:
    """The APIs an engine answers in their own form, which its attribute ``speaks`` names: ``chat`` if it has none.

    ``chat``, ``completions``, ``responses``, ``messages``, ``embeddings``.
    """
    return frozenset(getattr(engine, "speaks", ("chat",)))


async def models_of(engine: Engine) -> Sequence[str]:
    """The names that an engine answers to; for `ANY_MODEL` those that it lists, if it can. Raises `UpstreamError`."""
    listing = getattr(engine, "list_models", None)
    return engine.models if listing is None or ANY_MODEL not in engine.models else await listing()


def model_entry(name: str, engine: Engine) -> dict[str, Any]:
    """One model in the list, for clients of either kind."""
    return {
        "id": name, "object": "model", "created": 0, "owned_by": engine.name,
        "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z",
    }  # fmt: skip


def no_model(name: str, names: Iterable[str]) -> EndpointError:
    """The error (404) for a model of another name than ``names``."""
    there_are = ", ".join(name for name in names if name != ANY_MODEL)
    return EndpointError(f"there is no model {name!r}", status=404, hint=f"there are: {there_are}")


@dataclass(frozen=True, slots=True)
class Attribution:
    """Whose call it is. ``rollout_id`` and ``attempt`` are both set or both None.

    ``headers`` are those by which a client of the Messages API says what it understands.
    """

    rollout_id: str | None = None
    attempt: int | None = None
    agent: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def owner(self) -> tuple[str | None, int | None]:
        """The rollout and the attempt, by which is kept what belongs to it."""
        return self.rollout_id, self.attempt


@dataclass(frozen=True, slots=True)
class GateRequest:
    """A model call as policies see it, the same for every API.

    ``messages`` are in the order in which the model reads them, instructions first: ``role`` (system, user, assistant,
    tool), ``content`` (the text of it, "" for none), on an assistant's message ``tool_calls`` (``id``, ``name``, ``args``:
    an object, or the text where it is not one), on a tool's ``tool_call_id``, and ``media`` (see
    `lgov_core.wire.turns.media_in`) where it has any. ``max_tokens`` is a count of tokens.
    ``tools`` are the definitions that the model gets. ``fields`` is what the request says besides, in the form of its own
    API: every text in it that is not part of ``messages``. ``operation_id`` is the same before and after the call.
    ``fixed`` gives the numbers of the messages that have no place for a text, which a gate must leave as they are.
    """

    model: str
    messages: Sequence[Mapping[str, Any]]
    route: str = "chat"
    max_tokens: int | None = None
    rollout_id: str | None = None
    attempt: int | None = None
    agent: str | None = None
    tools: Sequence[Any] = ()
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    operation_id: str = field(default_factory=lambda: new_id("op"))
    fixed: Callable[[], Set[int]] = field(default=frozenset[int], repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class GateReply:
    """The text and calls of one choice of the model's reply, the same for every API. Only the first choice counts tokens.

    ``reasoning`` is what it wrote beside the text and shows to the client: a gate keeps it, or empties it.
    ``unreadable`` is that of the `Completion`.
    """

    response_id: str
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning: str = ""
    unreadable: str | None = None


class GateRefusal(EndpointError):
    """A policy refused the call, or its whole reply.

    With ``status`` 200 the agent gets ``text`` as if the model had said it: an ordinary, finished reply of one choice in
    the shape of its API, streamed if it asked for a stream. Any other status is an error in the shape of its API: 403
    when the policy says that the run is over, 503 (with a ``retry-after``) when the judgement itself failed.
    """

    code = "denied"

    def __init__(self, text: str, *, status: int = 200, decision_id: str | None = None) -> None:
        super().__init__(text, status=status)
        self.text = text
        self.decision_id = decision_id
        self.retry_after_s = 5.0 if status == 503 else None


class Gate(Protocol):
    """Judges model calls on their way through the endpoint. Called from its event loop, many calls at once.

    `admit` is called before the engine is asked, `release` with the whole reply before any of it goes out; if the gate does not
    read replies, text of a stream goes out before. What is recorded is the model's own reply. Fails closed: whatever goes wrong
    is a `GateRefusal`.
    """

    async def admit(self, request: GateRequest) -> GateRequest:
        """The same object, or one in which the content of some messages, or texts in ``fields``, differ. `GateRefusal`."""
        ...

    async def failed(self, request: GateRequest, error: BaseException) -> None:
        """An admitted call brought no reply that `release` gets. Raises nothing."""
        ...

    def reads_replies(self) -> bool:
        """Returns whether anything evaluates what models write; if not, their text passes while it arrives."""
        ...

    async def release(self, request: GateRequest, replies: Sequence[GateReply]) -> Sequence[GateReply]:
        """One reply for each choice, as the agent may get it: the same object where nothing changed. `GateRefusal`.

        Denied calls are removed, and the text gives the reason; arguments and text may be replaced.
        """
        ...


class UpstreamRejection(UpstreamError):
    """The upstream refused the request (a 4xx): its status, body and content type are handed on as they are.

    A refusal of the endpoint's own key is not one: no client can do anything about it. ``route`` is the API in which it was
    asked.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        body: bytes,
        content_type: str,
        headers: Mapping[str, str],
        route: str = "chat",
    ) -> None:
        super().__init__(message, status=status, headers=headers, refused=True)
        self.route = route
        self.body = body
        self.content_type = content_type


#: How servers say that a prompt is too long: the most tokens and those of the prompt, or the other way round.
_TOO_LONG: Final = (
    re.compile(r"maximum context length (?:is|of) (?P<limit>\d+) tokens?\D+(?P<tokens>\d+)"),
    re.compile(r"(?P<tokens>\d+) tokens\)? (?:is longer than|exceeds|>) \D*(?P<limit>\d+)"),
)
_MOST_READ: Final = 4000


def overflow_in(text: str) -> ContextOverflow | None:
    """The overflow of a context that the refusal ``text`` of a server is about; None if it is about something else."""
    for pattern in _TOO_LONG:
        if (match := pattern.search(text[:_MOST_READ])) and int(match["tokens"]) > int(match["limit"]):
            return ContextOverflow(int(match["tokens"]), int(match["limit"]))
    return None


#: Roles that policies can read.
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))


def gate_request(
    request: ChatRequest,
    route: str,
    body: Mapping[str, Any],
    who: Attribution,
    fixed: Callable[[], Set[int]] = frozenset[int],
) -> GateRequest:
    """The call as policies see it: the messages of ``request``, and what ``body``, the client's own, says besides.

    ``fixed`` is that of the `GateRequest`. Raises `EndpointError` (400) for what they cannot read.
    """
    return GateRequest(
        model=request.model,
        messages=[_plain_message(message) for message in request.messages],
        route=route,
        max_tokens=request.max_tokens,
        rollout_id=who.rollout_id,
        attempt=who.attempt,
        agent=who.agent,
        tools=request.tools,
        fields=texts_beside_messages(route, body),
        fixed=fixed,
    )


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] not in _ROLES or message.get("function_call"):
        what = "a function_call" if message.get("function_call") else f"the role {shown(message['role'])}"
        raise EndpointError(
            f"policies cannot read a message with {what}", hint=f"roles are {', '.join(sorted(_ROLES))}; use tool_calls"
        )
    role = "system" if message["role"] == "developer" else message["role"]
    seen: dict[str, Any] = {"role": role, "content": _content_text(message.get("content"))}
    if media := media_in(message.get("content")):
        seen["media"] = media
    if calls := message.get("tool_calls"):
        written = [call["function"].get("arguments") or "{}" for call in calls]
        seen["tool_calls"] = [
            {
                "id": call.get("id") or "",
                "name": call["function"]["name"],
                "args": text if (arguments := json_object(text)) is None else arguments,
            }
            for call, text in zip(calls, written, strict=True)
        ]
    if message.get("tool_call_id") is not None:
        seen["tool_call_id"] = message["tool_call_id"]
    return seen


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is not None and not isinstance(content, list):
        raise EndpointError(f"policies cannot read the content {shown(content)}", hint="send text, or a list of parts")
    return "".join(map(_text_of_part, content or ()))


def _text_of_part(content_part: Any) -> str:
    if isinstance(content_part, str):  # which some servers take
        return content_part
    kind = content_part.get("type") if isinstance(content_part, dict) else None
    texts = (
        [content_part[name] for name in ("text", "refusal") if content_part.get(name) is not None]
        if kind is not None
        else []
    )
    if media_kind(content_part) is not None:
        return ""
    if kind not in ("text", "refusal") or not texts or not all(isinstance(text, str) for text in texts):
        raise EndpointError(f"policies cannot read a part of a message: {shown(content_part)}", hint="send it as text")
    return "".join(texts)


def changed_exchange(exchange: Exchange, before: GateRequest, after: GateRequest) -> Exchange:
    """The call with the texts that a gate changed. Raises `EndpointError` (403) for other changes."""
    if len(before.messages) != len(after.messages):
        raise EndpointError("a policy added or took away messages, which cannot be carried over", status=403)
    pairs = enumerate(zip(before.messages, after.messages, strict=True))
    texts = {index: str(new["content"]) for index, (old, new) in pairs if new["content"] != old["content"]}
    try:
        body = with_texts(exchange.body, before.fields, after.fields)
    except ValueError as error:
        raise EndpointError("a policy changed more of the request than its texts", status=403) from error
    return exchange.changed(body, texts)


def gate_replies(completion: Completion) -> list[GateReply]:
    """The choices as policies see them."""
    thoughts = reasoning_of(completion)
    return [
        GateReply(
            choice.response_id,
            choice.content or "",
            choice.tool_calls,
            choice.finish_reason,
            completion.prompt_tokens if number == 0 else None,
            sum(each.completion_tokens for each in completion.choices) if number == 0 else None,
            thoughts.get(number, ""),
            choice.unreadable,
        )
        for number, choice in enumerate(completion.choices)
    ]


def changes_of(before: Sequence[GateReply], after: Sequence[GateReply], passed: str = "") -> Changes:
    """The changes of a gate, by the number of the choice. A text that the client has got in part goes on from there."""
    changes: dict[int, ChoiceChange] = {}
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is new:
            continue
        released = list(new.tool_calls)
        calls: dict[int, ToolCall] = {}
        for position, call in enumerate(old.tool_calls):
            if released and (released[0].call_id, released[0].name) == (call.call_id, call.name):
                calls[position] = released.pop(0)
        if released:
            raise EndpointError("a gate released a call that the model did not make", status=503)
        text = new.text if new.text.startswith(passed) else f"{passed}\n{new.text}"
        changes[number] = ChoiceChange(text, text == old.text, calls, new.reasoning == old.reasoning)
    return changes


def refusal_completion(text: str, response_id: str, model: str) -> Completion:
    """A refusal as a finished reply of one choice. It has no tokens: no model wrote it."""
    return Completion(response_id, model, text, text, (), "stop", None, None, None, None, 0, 0)
