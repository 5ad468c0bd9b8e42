"""Embeddings and counts of tokens under a policy: their texts are judged like those of a model call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from lgov_core.errors import EndpointError
from lgov_core.gateway.protocol import Gate, GateRefusal, GateReply, GateRequest
from lgov_core.gateway.serving.attribution import Attribution
from lgov_core.types import new_id
from lgov_core.wire.fields import model_name, shown
from lgov_core.wire.request_texts import texts_beside_messages

_T = TypeVar("_T")


async def judged_embeddings(
    gate: Gate,
    embed: Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]],
    body: Mapping[str, Any],
    who: Attribution,
) -> Mapping[str, Any]:
    """What ``embed`` answers to ``body``, if ``gate`` lets the call through. Fails closed.

    Raises `EndpointError`: 400 for input that is not text, 403 where a policy denied the call or would have changed it
    (an embedding cannot carry a denial), 503 where the judgement failed.
    """
    given = body.get("input")
    texts = given if isinstance(given, list) and given else [given]
    if not all(isinstance(text, str) for text in texts):
        raise EndpointError(f"policies cannot read the input {shown(given)}", hint="send it as text")
    judged = GateRequest(
        model=model_name(body),
        messages=[{"role": "user", "content": text} for text in texts],
        route="embeddings",
        fields=texts_beside_messages("embeddings", body),
        rollout_id=who.rollout_id,
        attempt=who.attempt,
        agent=who.agent,
    )
    return await judged_answer(gate, judged, partial(embed, body), _prompt_tokens)


def _prompt_tokens(reply: Mapping[str, Any]) -> int:
    read: Any = reply.get("usage")
    tokens = read.get("prompt_tokens") if isinstance(read, dict) else None
    return tokens if type(tokens) is int else 0


async def judged_answer(
    gate: Gate, judged: GateRequest, ask: Callable[[], Awaitable[_T]], used: Callable[[_T], int]
) -> _T:
    """What ``ask`` answers, which is no text, if ``gate`` lets the call ``judged`` through as it is. Fails closed.

    ``used`` reads from the answer the tokens that were used. Raises `EndpointError`, as `judged_embeddings`.
    """
    try:
        if await gate.admit(judged) is not judged:
            raise EndpointError(f"a policy changed the call, which {judged.route} cannot carry", status=403)
        try:
            reply = await ask()
        except Exception as error:
            await gate.failed(judged, error)
            raise
        await gate.release(judged, [GateReply(new_id("emb"), "", (), "stop", used(reply), 0)])
        return reply
    except GateRefusal as refusal:
        if refusal.status != 200:
            raise
        raise GateRefusal(refusal.text, status=403, decision_id=refusal.decision_id) from refusal
