"""Verdicts of interceptors as a `Decision`. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from agent_hooks import Decision as TheirDecision
from agent_hooks import EnforcementMode, InterceptionRecord, Verdict

from lgov_core.governor.judging import fault
from lgov_core.integrations.agent_hooks.contexts import Unclear, replaced
from lgov_core.types import Action, Decision, Effect, Severity

_MAX_SLUG: Final = 200
_MAX_REASON: Final = 2000
#: Failures of the judgement itself: they are not the agent's doing.
_FAULTS: Final = {
    "host_error:interceptor_failed": "An interceptor failed",
    "host_error:interceptor_timeout": "An interceptor did not answer in time",
    "host_error:verdict_invalid": "An interceptor did not answer a verdict",
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


class Deciding:
    """Makes decisions in the name of the policy ``name``."""

    def __init__(self, name: str, mode: EnforcementMode) -> None:
        self._name = name
        self._observe_only = mode is EnforcementMode.EVALUATE_ONLY

    def of(
        self, action: Action, sent: Mapping[str, Any], context: Mapping[str, Any], record: InterceptionRecord
    ) -> Decision:
        """The decision on ``action``: ``sent`` is its context as it was, ``context`` as the interceptors left it."""
        verdict = record.verdict
        if self._observe_only:
            return self._observed(verdict)
        if verdict.decision is TheirDecision.DENY:
            return self._denied(verdict)
        try:
            arguments, text = replaced(action, sent, context)
        except Unclear as error:
            return self.unclear(error)
        warned = [self._named(Effect.WARN, one.reason, one.message) for one in verdict.warnings]
        if arguments is None and text is None:
            if not warned:
                return self._named(Effect.ALLOW, verdict.reason, verdict.message)
            first, parts = warned[0], tuple(warned) if len(warned) > 1 else ()
            return Decision(Effect.WARN, self._name, first.rule, first.reason, parts=parts)
        named = self._named(Effect.TRANSFORM, verdict.reason, verdict.message)
        changed = replace(named, arguments=arguments, text=text)
        return replace(changed, parts=(changed, *warned)) if warned else changed

    def _denied(self, verdict: Verdict) -> Decision:
        slug = verdict.reason or ""
        if slug in _FAULTS:
            detail = f" ({verdict.message[:_MAX_SLUG]})" if verdict.message else ""
            return fault(self._name, slug, f"{_FAULTS[slug]}{detail}")
        effect = Effect.ESCALATE if verdict.approval is not None else Effect.DENY
        return self._named(effect, slug, _OTHER_ERRORS.get(slug) or verdict.message, Severity.HIGH)

    def _observed(self, verdict: Verdict) -> Decision:
        if verdict.decision is TheirDecision.ALLOW:
            return self._named(Effect.ALLOW, verdict.reason, verdict.message)
        effect = Effect.TRANSFORM if verdict.decision is TheirDecision.TRANSFORM else Effect.DENY
        return self._shadowed(self._named(effect, verdict.reason, verdict.message))

    def _shadowed(self, would: Decision) -> Decision:
        reason = "The interceptors are in evaluate_only mode; nothing is blocked."
        parts = (would.changed(shadowed=True),)
        return Decision(Effect.ALLOW, self._name, "evaluate-only", reason, parts=parts, shadowed=True)

    def _named(
        self, effect: Effect, slug: str | None, message: str | None, severity: Severity = Severity.LOW
    ) -> Decision:
        reason = message or slug or f"The interceptors answer {effect.label}."
        return Decision(effect, self._name, (slug or effect.label)[:_MAX_SLUG], reason[:_MAX_REASON], severity)

    def unclear(self, error: Unclear) -> Decision:
        """The decision on what has no form in the contract, or in lgov."""
        reason = f"It cannot be judged: {error}."
        denied = Decision(Effect.DENY, self._name, "not-expressible", reason, Severity.HIGH)
        return self._shadowed(denied) if self._observe_only else denied
