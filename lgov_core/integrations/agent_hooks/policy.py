"""Interceptors of AGENT-HOOKS-0.1 as a policy of a governor."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import itertools
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from types import SimpleNamespace
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypedDict, TypeVar, Unpack

from agent_hooks import (
    ApprovalResolver,
    CompositionConfig,
    EnforcementMode,
    IdentityProvider,
    InterceptionEmitter,
    InterceptionPoint,
    InterceptionRecord,
    Interceptor,
)

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import PolicyError
from lgov_core.governor import ObservedDecision
from lgov_core.governor.judging import private_copy
from lgov_core.governor.options import positive_number, require_declared
from lgov_core.hookspecs import hookimpl
from lgov_core.integrations.agent_hooks.contexts import UnclearContext, context_of
from lgov_core.integrations.agent_hooks.verdicts import Deciding
from lgov_core.policies.base import BoundedPolicy
from lgov_core.types import Action, Decision, Effect, Point, new_id

Mode = Literal["enforce", "evaluate_only"]

_TOOL_POINTS: Final = (Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL)
#: Runs, and calls, of which the state is kept; beyond it the oldest is forgotten.
MAX_REMEMBERED: Final = 4096


@dataclass(slots=True)
class _Run:
    """One run as interceptors see it: ``blocked`` says that its last invocation was denied."""

    blocked: bool = False
    numbers: Iterator[int] = field(default_factory=itertools.count)  # next() is atomic


class EmissionOptions(TypedDict, total=False):
    """How verdicts combine, and who is asked for approval of what; see `InterceptorPolicy`."""

    composition: CompositionConfig | None
    resolver: ApprovalResolver | None
    approval_redactor: Callable[[dict[str, Any]], dict[str, Any]] | None
    identity_provider: str | IdentityProvider | None


class InterceptorPolicy(BoundedPolicy):
    """Has interceptors judge every action, as a host that conforms to AGENT-HOOKS-0.1.

    Give it to a governor as a plugin (``Governor(plugins=[policy])``: coroutines of the interceptors then run in the
    agent's own event loop), or as a policy, alone or in a `PolicySet`; not both ways. What interceptors answer becomes a
    decision: deny; deny with approval an escalation; transform; allow with warnings a warn. ``composition`` says how
    several combine; by default all are asked, transforms fold, and the most severe verdict wins, as among policies.

    Each interceptor gets a copy of the context and ``timeout_s`` to answer. One that is not a coroutine function is called
    in a thread, so that one that hangs is a deny and blocks nothing else; one with ``bounded = True`` is called directly. A
    ``resolver`` is asked about denies with approval; without one they stay escalations. ``approval_redactor`` makes what it
    gets to see. ``identity_provider`` (``"jcs-sha256"``, one of your own, or None) names what was judged in records and
    approvals. With ``mode="evaluate_only"`` verdicts are only recorded. ``tools`` are the tools to name when a rollout
    begins. ``on_record`` gets the record of every emission, on the thread of the judgement; what it raises is ignored.

    An exception, a timeout, an answer that is not a verdict, an action that JSON cannot hold and a change that lgov cannot
    make (of the tool calls in a reply, or of content into something that is not a text) are denies. Without any interceptor
    everything is denied. ``agent_startup`` and ``agent_shutdown`` come where rollouts begin and end.

    May be called from any threads and event loops at once, if its interceptors may. Fails closed.
    """

    default_points: ClassVar[tuple[Point, ...]] = tuple(Point)
    stateful: ClassVar[bool] = True

    permits = True

    def __init__(
        self,
        interceptors: Interceptor | Iterable[Interceptor],
        *,
        name: str = "agent-hooks",
        timeout_s: float = 2.0,
        mode: Mode | EnforcementMode = "enforce",
        tools: Sequence[str] = (),
        on_record: Callable[[InterceptionRecord], None] | None = None,
        **options: Unpack[EmissionOptions],
    ) -> None:
        require_declared("InterceptorPolicy", options, EmissionOptions)
        listed = list(interceptors) if isinstance(interceptors, Iterable) else [interceptors]
        for interceptor in listed:
            if not callable(getattr(interceptor, "intercept", None)):
                raise PolicyError(
                    f"{name}: {interceptor!r} is not an interceptor", hint="an interceptor has intercept(context)"
                )
        try:
            self.mode = EnforcementMode(mode)
        except ValueError as error:
            raise PolicyError(f"{name}: mode {mode!r} is unknown", hint="write enforce or evaluate_only") from error
        self.name = name
        self._deciding = Deciding(name, self.mode)
        self.composition = options.get("composition") or CompositionConfig.run_all()
        self._each_s = positive_number(name, "timeout_s", timeout_s)
        self._identity = options.get("identity_provider", "jcs-sha256")
        self._redactor = options.get("approval_redactor")
        self._tools = tuple(tools)
        self._on_record = on_record
        self._pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="lgov-interceptor")
        self._interceptors = [GuardedInterceptor(interceptor, self._pool) for interceptor in listed]
        resolver = options.get("resolver")
        self._resolver = None if resolver is None else guarded_resolver(resolver, self._pool)
        #: No interceptor waits: judging is a plain call.
        self.bounded = resolver is None and all(interceptor.bounded for interceptor in self._interceptors)
        #: How long a governor has to wait for all of them.
        self.timeout_s = self._each_s * max(1, len(listed)) * (1 if resolver is None else 2) + 1.0
        self._session = new_id("session")
        self._lock = Lock()
        self._runs: BoundedDict[Hashable, _Run] = BoundedDict(MAX_REMEMBERED)
        self._judged: BoundedDict[Hashable, tuple[Mapping[str, Any], str | None]] = BoundedDict(MAX_REMEMBERED)
        self._ran_with: BoundedDict[Hashable, Mapping[str, Any]] = BoundedDict(MAX_REMEMBERED)
        try:
            self._emitter()
        except ValueError as error:
            raise PolicyError(f"{name}: {error}") from error

    # ------------------------------------------------------------------ as a policy

    def judge(self, action: Action) -> Decision:
        """The verdict of the interceptors, for synchronous callers. Coroutines run in an event loop of their own."""
        if self.bounded:
            return run_without_waiting(self.ajudge(action))
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.ajudge(action))
        carried = contextvars.copy_context()
        return self._pool.submit(carried.run, asyncio.run, self.ajudge(action)).result(self.timeout_s)

    async def ajudge(self, action: Action) -> Decision:
        """The verdict of the interceptors, in the running event loop."""
        key = (action.operation_id, action.point) if action.operation_id is not None else None
        before = self._judged.get(key)
        if before is not None and before == (action.arguments, action.text):
            # A governor asks again when a transform changed the action: this is the interceptors' own.
            return Decision(Effect.ALLOW, self.name, "judged", "The interceptors have judged it in this form.")
        run_key, session_id = self._run_of(action)
        with self._lock:
            run = self._runs.get(run_key) or _Run()
            self._runs.put(run_key, run)
        if action.point is Point.INPUT:
            run.blocked = False
        number = next(run.numbers)
        if action.point is Point.AGENT_SHUTDOWN:
            self._runs.pop(run_key)
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
        except UnclearContext as error:
            point = InterceptionPoint(action.point.value)
            emitter.record_host_failure(point, str(error), session_id=session_id, sequence=number)
            return self._deciding.unclear(error)
        sent = copy.deepcopy(context)
        record = await emitter.emit_unchecked(context)
        decision = self._deciding.of(action, sent, context, record)
        if key is not None and not decision.blocks:
            # The form in which the governor asks again.
            arguments, text = action.arguments, action.text
            if decision.effect is Effect.TRANSFORM:
                arguments = arguments if decision.arguments is None else decision.arguments
                text = text if decision.text is None else decision.text
            self._judged.put(key, (arguments, text))
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

    # ------------------------------------------------------------------ outcomes

    def observe(self, event: Any) -> None:
        """Takes note of the committed decision, of which this policy's was one part."""
        if not isinstance(event, ObservedDecision):
            return
        action, decision = event.action, event.decision
        self._judged.pop((action.operation_id, action.point))
        if action.point is Point.PRE_TOOL_CALL and action.operation_id is not None:
            if decision.arguments is not None and not decision.blocks:
                self._ran_with.put(action.operation_id, private_copy(decision.arguments))
        elif action.point is Point.POST_TOOL_CALL:
            self._ran_with.pop(action.operation_id)
        run = self._runs.get(self._run_of(action)[0])
        if run is not None and decision.blocks and action.point not in _TOOL_POINTS:
            run.blocked = True
        elif run is not None and action.point is Point.OUTPUT:
            run.blocked = False  # what was blocked was an agent inside this one

    def close(self) -> None:
        """Shuts the threads down; an interceptor that hangs keeps its own. Later actions may be denied."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ as a plugin

    @hookimpl
    async def lgov_agent_startup(self, action: Action) -> Decision:
        """Judges at every point; see `lgov_core.hookspecs`."""
        return await self.ajudge(action)

    lgov_input = lgov_pre_model_call = lgov_post_model_call = lgov_pre_tool_call = lgov_agent_startup
    lgov_post_tool_call = lgov_output = lgov_agent_shutdown = lgov_agent_startup

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """See `lgov_core.hookspecs.lgov_observe`."""
        self.observe(event)


T = TypeVar("T")
Call: TypeAlias = Callable[[Any], Any]


class GuardedInterceptor:
    """An interceptor that can be abandoned: one that may block is called in a thread."""

    def __init__(self, inner: Interceptor, pool: ThreadPoolExecutor) -> None:
        asynchronous = inspect.iscoroutinefunction(inner.intercept)
        self.bounded = getattr(inner, "bounded", False) is True and not asynchronous
        self.intercept: Call = inner.intercept if self.bounded else _guarded(inner.intercept, pool)


def guarded_resolver(inner: ApprovalResolver, pool: ThreadPoolExecutor) -> Any:
    """As `GuardedInterceptor`, for an approval resolver."""
    return SimpleNamespace(resolve=_guarded(inner.resolve, pool))


def _guarded(function: Call, pool: ThreadPoolExecutor) -> Call:
    """``function``, which is called in a thread of ``pool`` unless it is a coroutine function."""
    if inspect.iscoroutinefunction(function):
        return function

    async def in_thread(argument: Any) -> Any:
        carried = contextvars.copy_context()
        answer = await asyncio.get_running_loop().run_in_executor(pool, lambda: carried.run(function, argument))
        return await answer if inspect.isawaitable(answer) else answer

    return in_thread


def run_without_waiting(judging: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits. Raises `RuntimeError` for one that does: the caller then denies."""
    try:
        judging.send(None)
    except StopIteration as end:
        return end.value
    judging.close()
    raise RuntimeError("an interceptor with bounded=True waited for something")
