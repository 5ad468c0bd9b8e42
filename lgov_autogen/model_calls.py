"""Governed calls of model clients, for `GovernedChatCompletionClient` and for the clients of an instrumented process.

One path serves whole and streamed replies: a reply is a stream of text whose last item is the result. The text is
withheld until the reply has been evaluated, or passed on as it comes where nothing evaluates replies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from autogen_core.models import CreateResult, LLMMessage

from lgov_autogen.messages import with_decisions
from lgov_autogen.model_exchange import CallMemory, ModelExchange, Refused, Reply
from lgov_autogen.proposals import ProposedCalls, results_in
from lgov_autogen.runs import Run, ensure_run
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.evaluated_call import model_call_covered


class ModelCalls:
    """Governs model calls, and remembers what their callers do not see. Serves any number of clients and tasks.

    ``evaluated_later``: see `ProposedCalls`.
    """

    def __init__(self, evaluated_later: Callable[[Governor, Any], bool]) -> None:
        self._memory = CallMemory(ProposedCalls(evaluated_later))

    async def create(
        self,
        governor: Governor | None,
        client: Any,
        create: Callable[..., Awaitable[CreateResult]],
        messages: Sequence[LLMMessage],
        options: Mapping[str, Any],
        agent: str | None = None,
    ) -> CreateResult:
        """The governed reply of ``create``, a method of ``client``, with the keyword arguments ``options``.

        Raises what the client raises, and `PolicyDenied` where a decision says abort, or where a denial cannot replace
        the structured answer that was asked for. Without a governor, and inside a call that it has evaluated, the
        client answers.
        """
        if governor is None or model_call_covered(governor):
            return await create(messages, **options)

        async def ask(sent: Sequence[LLMMessage], **how: Any) -> Reply:
            yield await create(sent, **how)

        async with aclosing(self._reply(governor, client, ask, messages, options, agent)) as reply:
            async for piece in reply:
                if isinstance(piece, CreateResult):
                    return piece
        raise RuntimeError("the model client gave no result")

    async def create_stream(
        self,
        governor: Governor | None,
        client: Any,
        create_stream: Callable[..., AsyncIterator[str | CreateResult]],
        messages: Sequence[LLMMessage],
        options: Mapping[str, Any],
        agent: str | None = None,
    ) -> Reply:
        """As `create`, for a streamed reply."""
        if governor is None or model_call_covered(governor):
            async for piece in create_stream(messages, **options):
                yield piece
            return
        async with aclosing(self._reply(governor, client, create_stream, messages, options, agent)) as reply:
            async for piece in reply:
                yield piece

    async def _reply(
        self,
        governor: Governor,
        client: Any,
        ask: Callable[..., AsyncIterator[str | CreateResult]],
        messages: Sequence[LLMMessage],
        options: Mapping[str, Any],
        agent: str | None,
    ) -> Reply:
        run = ensure_run()
        _raise_abort(run, messages)
        memory = self._memory
        await memory.proposals.settle(messages)
        exchange = ModelExchange(
            memory=memory,
            governor=governor,
            client=client,
            ask=ask,
            run=run,
            agent=agent if agent is not None else run.agent,
            options=dict(options),
            messages=memory.transcript.restored(with_decisions(memory.decisions, messages)),
        )
        try:
            async with aclosing(exchange.reply()) as reply:
                async for piece in reply:
                    yield piece
        except Refused as refused:
            yield refused.result


def _raise_abort(run: Run, messages: Sequence[LLMMessage]) -> None:
    """Ends a run whose tool call was denied with ``abort``: here raising reaches the caller."""
    if run.aborted is None:
        return
    decision = run.aborted
    if run.owner is None:  # a program's own loop, which may be another one than the one that was aborted
        run.aborted = None
        is_same_loop = run.aborted_calls & results_in(messages).keys()
        run.aborted_calls.clear()
        if not is_same_loop:
            return
    raise PolicyDenied(decision)
