"""OpenAI's legacy completions, asked of an engine as chat: the prompt is the one message of a user."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lgov_core._util.json_text import wire_text
from lgov_core.errors import EndpointError, LgovError
from lgov_core.wire.chat import (
    completion_body,
    error_body,
    read_chat_request,
    usage_body,
    wants_usage,
    weights_version,
)
from lgov_core.wire.exchange import DONE, Changes, ChatRequest, Completion, Place, frame
from lgov_core.wire.fields import FIELDS, accepted_fields, model_name, number, only_known, refuse, shown, text
from lgov_core.wire.reply_writer import ChunkWriter

_WHOSE = "completions that are translated to chat"
#: Fields that a chat completion has too.
_TAKEN = sorted(accepted_fields("completions") - {"logprobs", "model", "prompt"})


def read_completions_request(body: Mapping[str, Any], _before: Sequence[Any] = ()) -> ChatRequest:
    """A completions request as a chat completion request. Raises `EndpointError` (400) that names the field."""
    refuse(body, ("best_of", "echo", "suffix"), _WHOSE, unless={"best_of": (1, body.get("n") or 1), "suffix": ("",)})
    only_known(body, FIELDS["completions"], _WHOSE)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise EndpointError(
            f"'prompt' must be one text, not {shown(prompt)}", hint="send several requests: each is a call of its own"
        )
    chat: dict[str, Any] = {"model": model_name(body), "messages": [{"role": "user", "content": prompt}]}
    chat |= {name: body[name] for name in _TAKEN if body.get(name) is not None}
    chat.setdefault("max_tokens", 16)  # as the API says
    top = number(body, "logprobs", None, low=0, high=5, whole=True)
    if top is not None:
        chat |= {"logprobs": True, **({"top_logprobs": int(top)} if top else {})}
    wants_usage(body)
    return read_chat_request(chat)


def read_native_completions(body: Mapping[str, Any]) -> ChatRequest:
    """A completions request for an upstream that has completions: the prompt, if it is text, stands as one message.

    The upstream checks the fields; a prompt of several texts, or of token ids, is its affair. The choices of a list of
    prompts are numbered on, as they come.
    """
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    text_of_prompt = wire_text(prompt) if not isinstance(prompt, str) else prompt
    plain = {
        key: body[key] for key in ("temperature", "top_p", "max_tokens", "seed", "stop", "stream", "n") if key in body
    }
    read = read_chat_request(
        {**plain, "model": model_name(body), "messages": [{"role": "user", "content": text_of_prompt}]}
    )
    return replace(read, body=body, route="completions", n=read.n * prompts)


def readable_prompts(request: ChatRequest) -> ChatRequest:
    """A completions request for an upstream that has completions, with each text in it as a message of its own.

    Raises `EndpointError` (400) for prompts that are not text: policies cannot read token ids.
    """
    prompt = request.body.get("prompt")
    prompts = prompt if isinstance(prompt, list) and prompt else [prompt]
    if not all(isinstance(prompt_text, str) for prompt_text in prompts):
        raise EndpointError(f"policies cannot read the prompt {shown(prompt)}", hint="send it as text")
    refuse(request.body, ("prompt_embeds",), "an endpoint with a policy")
    suffix = text(request.body, "suffix")
    texts = [*prompts, suffix] if suffix else prompts
    return replace(request, messages=[{"role": "user", "content": prompt_text} for prompt_text in texts])


class CompletionsWriter(ChunkWriter):
    """Writes a legacy completion, whole or as chunks; several choices may come in turns. For one task."""

    def __init__(self, request: ChatRequest, body: Mapping[str, Any], response_id: str) -> None:
        super().__init__(request, body, response_id)
        self._created = int(time.time())
        self._wrote = False

    def _events(self, chunk: Mapping[str, Any]) -> bytes:
        written = b""
        for choice in chunk.get("choices") or ():
            text = (choice.get("delta") or {}).get("content")
            if isinstance(text, str) and text:
                written += self._chunk({"index": choice.get("index", 0), "text": text}, chunk.get("model"))
                self._wrote = True
        return written

    def _chunk(self, choice: Mapping[str, Any], model: Any, **more: Any) -> bytes:
        whole = {"logprobs": None, "finish_reason": None, **choice}
        return frame({**self._head(model), "choices": [whole], **more})

    def _head(self, model: Any) -> dict[str, Any]:
        named = str(model or self._request.model)
        return {"id": self._response_id, "object": "text_completion", "created": self._created, "model": named}

    def settle(self, completion: Completion) -> tuple[Completion, Mapping[str, Any], bytes]:
        """The call under the id that the client knows, its body, and the chunks that finish its choices."""
        more = tuple(replace(choice, response_id=self._response_id) for choice in completion.more)
        completion = replace(completion, response_id=self._response_id, more=more)
        chat = completion_body(completion, self._request.body)
        choices = [_choice(choice, self._request.body) for choice in chat["choices"]]
        body = {**self._head(completion.model), "choices": choices, "usage": usage_body(completion)}
        body["lgov"] = {"weights_version": weights_version(completion)}
        if self._request.body.get("return_token_ids"):
            for choice in choices:
                choice["prompt_token_ids"] = completion.prompt_ids
        written = b""
        for choice in choices:
            last = {**choice, "text": "" if self._wrote else choice["text"]}
            written += self._chunk(last, completion.model, lgov=body["lgov"])
        if wants_usage(self._asked):
            written += frame({**self._head(completion.model), "choices": [], "usage": body["usage"]})
        return completion, body, written + DONE

    def failed(self, error: LgovError, status: int) -> bytes:
        """The error as an event."""
        return frame(error_body(error, status))


def _choice(chat: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """A choice of a chat reply, which has what the record needs, with what ``request`` asks for."""
    content = (chat.get("logprobs") or {}).get("content") if request.get("logprobs") else None
    choice = {
        "index": chat.get("index", 0),
        "text": chat["message"].get("content") or "",
        "finish_reason": chat["finish_reason"],
        "logprobs": None if content is None else _logprobs(content),
    }
    if request.get("return_token_ids") and chat.get("token_ids") is not None:
        choice["token_ids"] = chat["token_ids"]
    return choice


def _logprobs(content: Any) -> dict[str, Any]:
    tops = [{top["token"]: top["logprob"] for top in entry.get("top_logprobs") or ()} for entry in content]
    return {
        "tokens": [entry["token"] for entry in content],
        "token_logprobs": [entry["logprob"] for entry in content],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": None,  # an engine that knows ids only does not know where in the text its tokens stand
    }


def changed_text_reply(body: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """A completion as policies left it. A choice that was changed has no tokens."""
    choices = sorted(body["choices"], key=lambda choice: choice.get("index") or 0)
    changed: list[Mapping[str, Any]] = []
    for index, choice in enumerate(choices):
        change = changes.get(index)
        if change is None:
            changed.append(choice)
        else:
            kept = {name: choice[name] for name in ("index", "finish_reason", "stop_reason") if name in choice}
            changed.append({"index": 0, **kept, "text": change.text, "logprobs": None})
    return {**body, "choices": changed}


def text_events(request: Mapping[str, Any], body: Mapping[str, Any], passed: Sequence[Mapping[str, Any]]) -> bytes:
    """A completion as the chunks that ``request`` asks for, without the texts of the chunks ``passed``."""
    head = {name: value for name, value in body.items() if name not in ("choices", "lgov", "usage")}
    last = {name: body[name] for name in ("lgov",) if name in body}
    before = "".join(choice.get("text") or "" for chunk in passed for choice in chunk.get("choices") or ())
    written = b""
    for choice in body["choices"]:
        rest = {**choice, "text": choice["text"].removeprefix(before)}
        written += frame({**head, "choices": [rest], **last})
    if wants_usage(request):
        written += frame({**head, "choices": [], "usage": body.get("usage")})
    return written + DONE


def prompt_places(body: Mapping[str, Any]) -> list[Place | None]:
    """Where each text of `readable_prompts` stands in a completions request."""
    prompt = body.get("prompt")
    several = range(len(prompt)) if isinstance(prompt, list) else None
    places: list[Place | None] = [("prompt",)] if several is None else [("prompt", index) for index in several]
    return [*places, ("suffix",)] if body.get("suffix") else places
