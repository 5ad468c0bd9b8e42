"""Interceptors of AGENT-HOOKS-0.1 as a policy of a governor."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final, Literal, TypeVar

from agent_hooks import (
    ApprovalRequest,
    ApprovalResolution,
    ApprovalResolver,
    CompositionConfig,
    EnforcementMode,
    IdentityProvider,
    InterceptionEmitter,
    InterceptionPoint,
    InterceptionRecord,
    Interceptor,
    Verdict,
)
from agent_hooks import Decision as TheirDecision

from lgov_core.agent_hooks.contexts import Unclear, context_of, replaced
from lgov_core.agent_hooks.sessions import Remembered, Run
from lgov_core.errors import PolicyError
from lgov_core.governor import ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.policies.combine import fault, private_copy
from lgov_core.types import Action, Decision, Effect, Point, Severity, new_id

T = TypeVar("T")

Mode = Literal["enforce", "evaluate_only"]

_TOOL_POINTS: Final = (Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL)
_MAX_SLUG: Final = 200
_MAX_REASON: Final = 2000
#: Failures of the judgement itself: they say nothing about the agent.
_FAULTS: Final = {
    "host_error:interceptor_failed": "An interceptor failed",
    "host_error:interceptor_timeout": "An interceptor did not answer in time",
    "host_error:verdict_invalid": "An interceptor answered what is no verdict",
    "host_error:transform_invalid": "An interceptor asked for a change that cannot be made",
    "host_error:transform_target_forbidden": "An interceptor asked to change what must not be changed here",
    "host_error:approval_resolver_failed": "Approval could not be asked for",
    "host_error:approval_identity_mismatch": "The approval was given to something else",
    "host_error:no_interceptor": "There is no interceptor",
}
_OTHER_ERRORS: Final = {
    "host_error:context_invalid": "This cannot be put before the interceptors",
    "host_error:transform_conflict": "Two interceptors want it changed into different things",
    "host_error:composition_disagreement": "The interceptors do not agree",
    "host_error:approval_unresolved": "Nobody has approved it",
}


class InterceptorPolicy:
    """Asks interceptors about every action, in the name of a host that conforms to AGENT-HOOKS-0.1.

    Give it to a governor as a plugin (``Governor(plugins=[policy])``: coroutines of the interceptors then run in the
    agent's own event loop), or as a policy, alone or in a `PolicySet`; not both ways. What interceptors answer becomes a
    decision: deny; deny with approval an escalation; transform; allow with warnings a warn. ``composition`` says how
    several combine; by default all are asked, transforms fold, and the most severe verdict wins, as among policies.

    Each interceptor gets a copy of the context and ``timeout_s`` to answer. One that is no coroutine function is called in
    a thread, so that one that hangs is a deny and holds nobody up; one with ``bounded = True`` is called directly. A
    ``resolver`` is asked about denies with approval; without one they stay escalations. ``approval_redactor`` makes what it
    gets to see. ``identity_provider`` (``"jcs-sha256"``, one of your own, or None) names what was judged in records and
    approvals. With ``mode="evaluate_only"`` verdicts are only recorded. ``tools`` are the tools to name when a rollout
    begins. ``on_record`` gets the record of every emission, on the thread of the judgement; what it raises is ignored.

    An exception, a timeout, an answer that is no verdict, an action that JSON cannot hold and a change that lgov cannot
    make (of the tool calls in a reply, or of content into something that is no text) are denies. Without any interceptor
    everything is denied. ``agent_startup`` and ``agent_shutdown`` come where rollouts begin and end.

    May be called from any threads and event loops at once, if its interceptors may. Fails closed.
    """

    default_points: ClassVar[tuple[Point, ...]] = tuple(Point)
    keeps_count: ClassVar[bool] = True

    def __init__(
        self,
        interceptors: Interceptor | Iterable[Interceptor],
        *,
        name: str = "agent-hooks",
        timeout_s: float = 2.0,
        composition: CompositionConfig | None = None,
        resolver: ApprovalResolver | None = None,
        approval_redactor: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        identity_provider: str | IdentityProvider | None = "jcs-sha256",
        mode: Mode | EnforcementMode = "enforce",
        tools: Sequence[str] = (),
        on_record: Callable[[InterceptionRecord], None] | None = None,
    ) -> None:
        given = list(interceptors) if isinstance(interceptors, Iterable) else [interceptors]
        for one in given:
            if not callable(getattr(one, "intercept", None)):
                raise PolicyError(f"{name}: {one!r} is no interceptor", hint="an interceptor has intercept(context)")
        if isinstance(timeout_s, bool) or not timeout_s > 0:
            raise PolicyError(f"{name}: timeout_s must be more than 0, not {timeout_s!r}")
        try:
            self.mode = EnforcementMode(mode)
        except ValueError as error:
            raise PolicyError(f"{name}: mode {mode!r} is unknown", hint="write enforce or evaluate_only") from error
        self.name = name
        self.composition = composition or CompositionConfig.run_all()
        self._each_s = float(timeout_s)
        self._identity = identity_provider
        self._redactor = approval_redactor
        self._tools = tuple(tools)
        self._on_record = on_record
        self._pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="lgov-interceptor")
        self._interceptors = [_Guarded(one, self._pool) for one in given]
        self._resolver = None if resolver is None else _GuardedResolver(resolver, self._pool)
        #: No interceptor waits: judging is a plain call.
        self.bounded = resolver is None and all(one.bounded for one in self._interceptors)
        #: How long a governor has to wait for all of them.
        self.timeout_s = self._each_s * max(1, len(given)) * (1 if resolver is None else 2) + 1.0
        self._session = new_id("session")
        self._runs: Remembered[Run] = Remembered()
        self._judged: Remembered[tuple[Mapping[str, Any], str | None]] = Remembered()
        self._ran_with: Remembered[Mapping[str, Any]] = Remembered()
        try:
            self._emitter()
        except ValueError as error:
            raise PolicyError(f"{name}: {error}") from error

    # ------------------------------------------------------------------ as a policy

    def judge(self, action: Action) -> Decision:
        """The verdict of the interceptors, for synchronous callers. Coroutines run in an event loop of their own."""
        if self.bounded:
            return _run_without_waiting(self.ajudge(action))
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.ajudge(action))
        carried = contextvars.copy_context()
        return self._pool.submit(carried.run, _run, self.ajudge(action)).result(self.timeout_s)

    async def ajudge(self, action: Action) -> Decision:
        """The verdict of the interceptors, in the running event loop."""
        key = (action.operation_id, action.point) if action.operation_id is not None else None
        before = self._judged.get(key)
        if before is not None and before == (action.arguments, action.text):
            # A governor asks again when somebody changed the action: this is what the interceptors made of it themselves.
            return Decision(Effect.ALLOW, self.name, "judged", "The interceptors have judged it in this form.")
        run_key, session_id = self._run_of(action)
        run = self._runs.get_or_make(run_key, Run)
        if action.point is Point.INPUT:
            run.blocked = False
        number = run.next_number()
        if action.point is Point.AGENT_SHUTDOWN:
            self._runs.drop(run_key)
        emitter = self._emitter()
        try:
            context = context_of(
                action,
                session_id=session_id,
                sequence=number,
                arguments=self._ran_with.get(action.operation_id),
                tools=self._tools,
                ended="error" if run.blocked else "completed",
            )
        except Unclear as error:
            point = InterceptionPoint(action.point.value)
            emitter.record_host_failure(point, str(error), session_id=session_id, sequence=number)
            return self._unclear(error)
        sent = copy.deepcopy(context)
        record = await emitter.emit_unchecked(context)
        decision = self._decision(action, sent, context, record)
        if key is not None and not decision.blocks:
            self._judged.put(key, _form(action, decision))
        return decision

    def _emitter(self) -> InterceptionEmitter:
        """One emission's emitter: the SDK's belong to one thread, and a governor has many."""
        emitter = InterceptionEmitter(
            mode=self.mode,
            resolver=self._resolver,
            timeout=self._each_s,
            composition=self.composition,
            identity_provider=self._identity,
        )
        for interceptor in self._interceptors:
            emitter.register(interceptor)
        if self._redactor is not None:
            emitter.set_approval_redactor(self._redactor)
        if self._on_record is not None:
            emitter.set_record_sink(self._on_record)
        return emitter

    def _run_of(self, action: Action) -> tuple[tuple[Any, ...], str]:
        """The run that the action is part of, and the id of its session for the interceptors."""
        if action.rollout_id is not None:
            return (action.rollout_id, action.attempt), f"{action.rollout_id}/{action.attempt or 1}"
        session_id = action.session_id or self._session
        return (session_id,), session_id

    # ------------------------------------------------------------------ verdicts

    def _decision(
        self, action: Action, sent: Mapping[str, Any], context: Mapping[str, Any], record: InterceptionRecord
    ) -> Decision:
        verdict = record.verdict
        if self.mode is EnforcementMode.EVALUATE_ONLY:
            return self._watched(verdict)
        if verdict.decision is TheirDecision.DENY:
            return self._denied(verdict)
        try:
            arguments, text = replaced(action, sent, context)
        except Unclear as error:
            return self._unclear(error)
        warned = [self._named(Effect.WARN, one.reason, one.message) for one in verdict.warnings]
        if arguments is None and text is None:
            return warned[0] if len(warned) == 1 else self._with_parts(Effect.ALLOW, verdict, warned)
        changed = self._named(Effect.TRANSFORM, verdict.reason, verdict.message)
        changed = Decision(Effect.TRANSFORM, self.name, changed.rule, changed.reason, arguments=arguments, text=text)
        if not warned:
            return changed
        return Decision(
            Effect.TRANSFORM,
            self.name,
            changed.rule,
            changed.reason,
            arguments=arguments,
            text=text,
            parts=(changed, *warned),
        )

    def _with_parts(self, effect: Effect, verdict: Verdict, parts: Sequence[Decision]) -> Decision:
        if parts:
            first = parts[0]
            return Decision(Effect.WARN, self.name, first.rule, first.reason, parts=tuple(parts))
        return self._named(effect, verdict.reason, verdict.message)

    def _denied(self, verdict: Verdict) -> Decision:
        slug = verdict.reason or ""
        if slug in _FAULTS:
            detail = f" ({verdict.message[:_MAX_SLUG]})" if verdict.message else ""
            return fault(self.name, slug, f"{_FAULTS[slug]}{detail}")
        effect = Effect.ESCALATE if verdict.approval is not None else Effect.DENY
        return self._named(effect, slug, _OTHER_ERRORS.get(slug) or verdict.message, Severity.HIGH)

    def _watched(self, verdict: Verdict) -> Decision:
        if verdict.decision is TheirDecision.ALLOW:
            return self._named(Effect.ALLOW, verdict.reason, verdict.message)
        effect = Effect.TRANSFORM if verdict.decision is TheirDecision.TRANSFORM else Effect.DENY
        would = self._named(effect, verdict.reason, verdict.message).changed(shadowed=True)
        reason = "The interceptors only watch; nothing is blocked."
        return Decision(Effect.ALLOW, self.name, "evaluate-only", reason, parts=(would,), shadowed=True)

    def _named(
        self, effect: Effect, slug: str | None, message: str | None, severity: Severity = Severity.LOW
    ) -> Decision:
        reason = message or slug or f"The interceptors answer {effect.label}."
        return Decision(effect, self.name, (slug or effect.label)[:_MAX_SLUG], reason[:_MAX_REASON], severity)

    def _unclear(self, error: Unclear) -> Decision:
        return Decision(Effect.DENY, self.name, "not-expressible", f"It cannot be judged: {error}.", Severity.HIGH)

    # ------------------------------------------------------------------ what came of it

    def observe(self, event: Any) -> None:
        """Hears how a judgement ended, of which this policy was one voice."""
        if not isinstance(event, ObservedDecision):
            return
        action, decision = event.action, event.decision
        self._judged.drop((action.operation_id, action.point))
        if action.point is Point.PRE_TOOL_CALL and action.operation_id is not None:
            if decision.arguments is not None and not decision.blocks:
                self._ran_with.put(action.operation_id, private_copy(decision.arguments))
        elif action.point is Point.POST_TOOL_CALL:
            self._ran_with.drop(action.operation_id)
        run = self._runs.get(self._run_of(action)[0])
        if run is not None and decision.blocks and action.point not in _TOOL_POINTS:
            run.blocked = True
        elif run is not None and action.point is Point.OUTPUT:
            run.blocked = False  # what was blocked was an agent inside this one

    def close(self) -> None:
        """Gives the threads back; an interceptor that hangs keeps its own. What is asked afterwards may be denied."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ as a plugin

    @hookimpl
    async def lgov_agent_startup(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_agent_startup`."""
        return await self.ajudge(action)

    @hookimpl
    async def lgov_input(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_input`."""
        return await self.ajudge(action)

    @hookimpl
    async def lgov_pre_model_call(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_pre_model_call`."""
        return await self.ajudge(action)

    @hookimpl
    async def lgov_post_model_call(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_post_model_call`."""
        return await self.ajudge(action)

    @hookimpl
    async def lgov_pre_tool_call(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_pre_tool_call`."""
        return await self.ajudge(action)

    @hookimpl
    async def lgov_post_tool_call(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_post_tool_call`."""
        return await self.ajudge(action)

    @hookimpl
    async def lgov_output(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_output`."""
        return await self.ajudge(action)

    @hookimpl
    async def lgov_agent_shutdown(self, action: Action) -> Decision:
        """See `lgov_core.hookspecs.lgov_agent_shutdown`."""
        return await self.ajudge(action)

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """See `lgov_core.hookspecs.lgov_observe`."""
        self.observe(event)


class _Guarded:
    """An interceptor that can be given up: one that may block is called in a thread."""

    def __init__(self, inner: Interceptor, pool: ThreadPoolExecutor) -> None:
        self._inner = inner
        self._pool = pool
        asynchronous = inspect.iscoroutinefunction(inner.intercept)
        self.bounded = getattr(inner, "bounded", False) is True and not asynchronous
        self._direct = self.bounded or asynchronous

    def intercept(self, context: dict[str, Any]) -> Any:
        if self._direct:
            return self._inner.intercept(context)
        return _in_thread(self._pool, self._inner.intercept, context)


class _GuardedResolver:
    def __init__(self, inner: ApprovalResolver, pool: ThreadPoolExecutor) -> None:
        self._inner = inner
        self._pool = pool
        self._direct = inspect.iscoroutinefunction(inner.resolve)

    def resolve(self, request: ApprovalRequest, /) -> Any:
        if self._direct:
            return self._inner.resolve(request)
        answer: Awaitable[ApprovalResolution] = _in_thread(self._pool, self._inner.resolve, request)
        return answer


async def _in_thread(pool: ThreadPoolExecutor, function: Callable[[Any], Any], argument: Any) -> Any:
    carried = contextvars.copy_context()
    answer = await asyncio.get_running_loop().run_in_executor(pool, lambda: carried.run(function, argument))
    return await answer if inspect.isawaitable(answer) else answer


def _run(judging: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(judging)


def _run_without_waiting(judging: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits. Raises `RuntimeError` for one that does: the caller then denies."""
    try:
        judging.send(None)
    except StopIteration as end:
        return end.value
    judging.close()
    raise RuntimeError("an interceptor that says it is bounded waited for something")


def _form(action: Action, decision: Decision) -> tuple[Mapping[str, Any], str | None]:
    """The action's arguments and text as ``decision`` leaves them."""
    if decision.effect is not Effect.TRANSFORM:
        return action.arguments, action.text
    arguments = action.arguments if decision.arguments is None else decision.arguments
    return arguments, action.text if decision.text is None else decision.text
