"""Plain openai for the contract of the adapters: a program's own loop over chat completions or responses."""

from __future__ import annotations

import asyncio
from typing import Any

import openai

from lgov_openai import govern_client
from lgov_openai.instrumentor import INSTRUMENTOR
from tests.contract.adapter_driver import Driver, Outcome, Program
from tests.openai import openai_programs as programs


class OpenAI(Driver):
    instrumentor = INSTRUMENTOR
    agents = False

    def __init__(self, api: str) -> None:
        self.api = api

    def patched(self) -> list[Any]:
        return [openai.OpenAI.request, openai.AsyncOpenAI.request]

    def run(self, program: Program) -> Outcome:
        tools = {function.__name__: function for function in program.tools}
        is_async = program.mode.startswith("async")
        client: Any = (programs.aclient if is_async else programs.client)(program.base_url)
        if program.explicit:
            client = govern_client(client, program.governor)
        pieces: list[str] = []
        ask = getattr(_Asking(pieces), f"{'a' * is_async}{self.api}{'_pieces' * program.streams}")
        loop: Any = getattr(programs, f"{'a' * is_async}{self.api}_loop")
        answer = loop(ask, client, tools, question=program.question)
        return Outcome(asyncio.run(answer) if is_async else answer, pieces=pieces)


class _Asking:
    """Asks the model in each of the ways; ``pieces`` gets the text of streamed replies."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces
        self.chat, self.achat = programs.chat_create, programs.achat_create
        self.response, self.aresponse = programs.response_create, programs.aresponse_create

    def chat_pieces(self, client: Any, messages: list[Any]) -> Any:
        return self._message(client.chat.completions.create(**_chat(messages)))

    async def achat_pieces(self, client: Any, messages: list[Any]) -> Any:
        return self._message([chunk async for chunk in await client.chat.completions.create(**_chat(messages))])

    def response_pieces(self, client: Any, **asked: Any) -> Any:
        return self._response(client.responses.create(**_response(asked)))

    async def aresponse_pieces(self, client: Any, **asked: Any) -> Any:
        return self._response([event async for event in await client.responses.create(**_response(asked))])

    def _message(self, chunks: Any) -> Any:
        chunks = list(chunks)
        texts = [choice.delta.content for chunk in chunks for choice in chunk.choices]
        self.pieces += [text for text in texts if text]
        return programs.assembled(chunks)

    def _response(self, events: Any) -> Any:
        events = list(events)
        self.pieces += [event.delta for event in events if event.type == "response.output_text.delta"]
        return events[-1].response


def _chat(messages: list[Any]) -> dict[str, Any]:
    return {"model": "m", "messages": messages, "tools": programs.CHAT_TOOLS, "stream": True}


def _response(asked: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "tools": programs.RESPONSE_TOOLS, "stream": True, **asked}


SETUPS = [(OpenAI("response"), "explicit"), (OpenAI("chat"), "instrumented")]
