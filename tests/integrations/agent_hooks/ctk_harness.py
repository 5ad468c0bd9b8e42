"""The conformance kit of AGENT-HOOKS-0.1 over real agents, governed by lgov's own adapters.

The kit's scripted interceptors stand behind an `InterceptorPolicy` in a `Governor`; what they see and what they stop is
what the adapter of the framework shows and stops. The model is a scripted server, the loop is the framework's own.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pluggy
from agent_hooks import IdentityProvider, InterceptionRecord
from agent_hooks.ctk import Capability, RunOutcome, RunRecord, Scenario
from agent_hooks.ctk.runner import VectorResult, run_vector
from agent_hooks.ctk.scripted import RecordingInterceptor, redact_paths

from lgov_core import hookspecs
from lgov_core.errors import PolicyDenied
from lgov_core.governor import Governor, ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.integrations.agent_hooks import InterceptorPolicy
from lgov_core.scope import RolloutScope
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.types import Decision, Point

Mode = Literal["sync", "async", "streaming"]

#: What the interceptors are given to lgov as: a plugin, or a policy.
Given = Literal["plugin", "policy"]

_ENDS_THE_RUN = frozenset(Point) - {Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL, Point.AGENT_SHUTDOWN}


class Blocks:
    """Keeps the decisions that end a run."""

    def __init__(self) -> None:
        self.found: list[Decision] = []

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        if isinstance(event, ObservedDecision) and event.decision.blocks and event.action.point in _ENDS_THE_RUN:
            self.found.append(event.decision)


class KitModel:
    """One real server for all vectors; each brings its own script."""

    def __init__(self) -> None:
        self._replies: Iterator[ScriptedReply] = iter(())
        self.server = ScriptedModelServer(lambda _body: next(self._replies))

    def play(self, scenario: Scenario) -> str:
        """Begins the script of ``scenario``; the base URL."""
        self._replies = iter(
            [
                ScriptedReply(
                    said.content,
                    tool_calls=[ScriptedCall(one["name"], one["args"], one["id"]) for one in said.tool_calls],
                    finish_reason=said.finish_reason,
                    headers={"connection": "close"},
                )
                for said in scenario.model_script
            ]
        )
        return self.server.base_url


class LgovHarness:
    """What the kit drives. A framework's harness says in `drive` how its agent is made and run."""

    name: ClassVar[str]
    #: Not declared: a host declaration document (lgov has its own settings), and judging a reply while it streams
    #: (lgov judges the whole reply). The kit skips the vectors for them.
    capabilities: ClassVar[set[Capability]] = {
        Capability.MODEL_CALLS,
        Capability.TOOL_CALLS,
        Capability.INT64_JSON,
        Capability.BIGINT_JSON,
    }
    tool_seam_host_error = "continue"
    given: Given = "plugin"

    def __init__(self, mode: Mode, model: KitModel) -> None:
        self.mode: Mode = mode
        self._model = model
        self.invoked: list[dict[str, Any]] = []
        self.records: list[InterceptionRecord] = []

    # ------------------------------------------------------------------ the kit's side

    def setup(
        self,
        scenario: Scenario,
        interceptors: list[Any],
        resolver: Any,
        mode: Any,
        composition: Any,
        identity_provider: str | None,
        redact_for_approval: list[str] | None = None,
    ) -> None:
        self.scenario = scenario
        self._heard = [one for one in interceptors if isinstance(one, RecordingInterceptor)]
        paths = list(redact_for_approval or ())
        self.policy = InterceptorPolicy(
            interceptors,
            resolver=resolver,
            mode=mode,
            composition=composition,
            identity_provider=_faulty() if identity_provider == "ctk-fault" else identity_provider,
            approval_redactor=(lambda context: redact_paths(context, paths)) if paths else None,
            tools=sorted(scenario.tools),
            on_record=self.records.append,
        )
        self.blocks = Blocks()
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        as_plugin = self.given == "plugin"
        self.governor = Governor(
            () if as_plugin else (self.policy,),
            plugins=[self.policy, self.blocks] if as_plugin else [self.blocks],
            manager=manager,
            timeout_s=10,
        )

    async def run(self) -> RunRecord:
        if self.mode == "sync":
            return await in_a_thread(self._run_sync)
        scope = RolloutScope(f"ro_{uuid.uuid4().hex}")
        try:
            async with self.governor.arollout(scope):
                return self._ended(await self.drive(self._model.play(self.scenario)))
        except PolicyDenied:
            return self._record(RunOutcome.BLOCKED, None)

    def _run_sync(self) -> RunRecord:
        scope = RolloutScope(f"ro_{uuid.uuid4().hex}")
        try:
            with self.governor.rollout(scope):
                return self._ended(self.drive_sync(self._model.play(self.scenario)))
        except PolicyDenied:
            return self._record(RunOutcome.BLOCKED, None)

    def teardown(self) -> None:
        if any(len(said.tool_calls) > 1 for said in self.scenario.model_script):
            # Calls made side by side are heard as threads happen to run; `sequence` says how they began. The kit reads
            # what was heard as a list, so it gets it in that order: one number twice is still found.
            for interceptor in self._heard:
                interceptor.recorded.sort(key=lambda context: context["sequence"])
        self.policy.close()
        self.governor.close()

    # ------------------------------------------------------------------ the framework's side

    async def drive(self, base_url: str) -> str:
        """Runs the agent to its end, asynchronously (`mode` says whether streamed), and returns its final text."""
        raise NotImplementedError

    def drive_sync(self, base_url: str) -> str:
        """Runs the agent to its end, synchronously, and returns its final text."""
        raise NotImplementedError

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """What a tool does when it runs."""
        value, _ = self.scenario.tools[name].invoke(dict(arguments))
        self.invoked.append({"name": name, "args": dict(arguments)})
        return value

    # ------------------------------------------------------------------ what came of it

    def _ended(self, final: str) -> RunRecord:
        """How the run ended, by what its caller got: where a denial ended it, the denial's words are the answer."""
        if not self.blocks.found:
            return self._record(RunOutcome.COMPLETED, final)
        words = {decision.denial_message() for decision in self.blocks.found}
        if final not in words:
            return self._record(RunOutcome.ERROR, final)  # it was denied, and yet went on
        return self._record(RunOutcome.BLOCKED, None)

    def _record(self, outcome: RunOutcome, final: str | None) -> RunRecord:
        # The end of the rollout is judged after this; the kit reads the lists when the run is over.
        return _LateRecord(outcome, final, self.invoked, self.records)


class _LateRecord(RunRecord):
    """A run's record that also holds what was recorded after the answer came."""

    def __init__(
        self, outcome: RunOutcome, final: str | None, invoked: list[dict[str, Any]], records: list[InterceptionRecord]
    ) -> None:
        super().__init__(outcome, final, invoked)
        self._records = records

    @property
    def identities(self) -> list[tuple[str | None, str | None]]:  # type: ignore[override]
        return [(one.input_identity, one.enforced_identity) for one in self._records]

    @identities.setter
    def identities(self, value: object) -> None:
        pass

    @property
    def records(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [one.to_wire() for one in self._records]

    @records.setter
    def records(self, value: object) -> None:
        pass


def _faulty() -> IdentityProvider:
    def fails(_context: Any) -> str:
        raise RuntimeError("the kit's provider fails")

    return IdentityProvider("ctk-fault", fails)


async def in_a_thread(function: Callable[[], Any]) -> Any:
    """``function`` in a thread that has no event loop, as a synchronous program is."""
    found: dict[str, Any] = {}

    def work() -> None:
        try:
            found["result"] = function()
        except BaseException as error:
            found["error"] = error

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.005)
    if "error" in found:
        raise found["error"]
    return found["result"]


# ---------------------------------------------------------------------- counting


@dataclass(frozen=True, slots=True)
class Report:
    """What a harness made of all vectors of the kit."""

    results: Sequence[VectorResult]

    @property
    def passed(self) -> int:
        return sum(one.status == "pass" for one in self.results)

    @property
    def failed(self) -> list[str]:
        return [f"{one.id} {one.title}: {one.failures}" for one in self.results if one.status == "fail"]

    @property
    def skipped(self) -> dict[str, int]:
        """Why vectors were skipped, and how many."""
        return dict(Counter(one.detail for one in self.results if one.status == "skip"))

    def __str__(self) -> str:
        reasons = "; ".join(f"{count} skipped: {why}" for why, count in sorted(self.skipped.items()))
        return f"{self.passed} passed, {len(self.failed)} failed, {reasons}"


def report_of(make: Callable[[Mode, KitModel], LgovHarness], mode: Mode, vectors: Sequence[dict[str, Any]]) -> Report:
    """Runs every vector against a fresh harness, each in an event loop of its own."""
    model = KitModel()
    with model.server:
        return Report([asyncio.run(run_vector(make(mode, model), vector)) for vector in vectors])
