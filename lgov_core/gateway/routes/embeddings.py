"""Embeddings under a policy: their texts are judged like those of a model call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from lgov_core.errors import EndpointError
from lgov_core.gateway.formats.request_fields import model_name, shown
from lgov_core.gateway.protocol import Gate, GateRefusal, GateReply, GateRequest
from lgov_core.gateway.serving.attribution import Attribution
from lgov_core.types import new_id


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
        rollout_id=who.rollout_id,
        attempt=who.attempt,
        agent=who.agent,
    )
    try:
        if await gate.admit(judged) is not judged:
            raise EndpointError("a policy changed the call, which embeddings cannot carry", status=403)
        try:
            reply = await embed(body)
        except Exception as error:
            await gate.failed(judged, error)
            raise
        read: Any = reply.get("usage")
        tokens = read.get("prompt_tokens") if isinstance(read, dict) else None
        await gate.release(judged, [GateReply(new_id("emb"), "", (), "stop", tokens if type(tokens) is int else 0, 0)])
        return reply
    except GateRefusal as refusal:
        if refusal.status != 200:
            raise
        raise GateRefusal(refusal.text, status=403, decision_id=refusal.decision_id) from refusal
