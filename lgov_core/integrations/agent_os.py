"""Back end: the policy engine of agent-os-kernel 3.7, or of its successor agent-governance-toolkit-core 5."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from lgov_core.errors import PolicyError, suggest_name
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.options import PolicyOptions, Text, takes
from lgov_core.types import Action, Decision, Effect, Severity

INSTALL: Final = 'pip install "lgov[agent-os]" (3.7), or "lgov[agent-os-core]" (5), never both'
MAX_DEPTH: Final = 32

#: What documents may say and the engine passes over: its author would believe that it is enforced.
_NOT_ENFORCED: Final = {
    "tool_allowlist": "write a rule that uses tool",
    "network_allowlist": "write a rule that uses egress",
    "scope": "write tools: or agents: in the rule that uses agent_os",
    "sandbox_mounts": "lgov runs no sandbox",
}
_NOT_ENFORCED_DEFAULTS: Final = {
    "max_tokens": "write a rule that uses cost",
    "max_tool_calls": "write a rule that uses cost",
    "confidence_threshold": "leave it out",
}
_NEGATIVE: Final = frozenset({"ne", "not_in"})
_DENIES: Final = frozenset({"deny", "block"})


class _Unclear(ValueError):
    """Arguments that cannot be put under dotted names without one standing for another."""


class AgentOSOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of an `AgentOSPolicy`."""

    paths = obeyed = ("documents",)

    documents: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
    severity: Literal["low", "medium", "high", "critical"] = "high"
    name: Text = "agent_os"


class AgentOSPolicy(BoundedPolicy):
    """Evaluates the rules of agent-os policy documents.

    ``documents`` are paths of YAML or JSON files, or documents as mappings. Of their rules, by priority, the first that
    matches decides: allow, audit (a warn here), deny or block. When none matches, the policy has no opinion, whatever the
    documents' ``defaults`` say, because the engine's versions differ in them. ``severity`` is that of its denials.

    Fields of a condition: ``tool_name``, ``agent_id``, ``point``, ``kind``, ``framework``, ``session_id``,
    ``rollout_id``, ``text``, and ``args.NAME`` (``args.a.b`` for what is nested) for the arguments; an argument that has
    the name of no other field may also be named without ``args.``. A rule that denies by ``ne`` or ``not_in`` also denies
    when its field is missing, which the engine takes for no match.

    A document with something that the engine does not enforce (``tool_allowlist``, ``scope``, budgets, unknown keys, no rules
    at all) is a `PolicyError`, as is a missing engine. An error in the engine denies. May be called from
    several threads at once. Fails closed.
    """

    permits = True
    bounded = False  # conditions may hold any regular expression

    @takes(AgentOSOptions)
    def __init__(self, options: AgentOSOptions) -> None:
        self.name = name = options.name
        self.severity = Severity(options.severity)
        documents = options.documents
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the successor warns of its own old name
                engine: Any = importlib.import_module("agent_os.policies")
        except ImportError as error:
            raise PolicyError(f"{name}: the agent-os engine cannot be imported: {error}", hint=INSTALL) from error
        listed = [documents] if isinstance(documents, str | Mapping) else list(documents)
        parsed = [_document(engine, name, document) for document in listed]
        if not any(document.rules for document in parsed):
            raise PolicyError(f"{name}: documents hold no rules", hint="an empty set would have no opinion on anything")
        self._evaluator = engine.PolicyEvaluator(policies=parsed)
        self._needed = tuple(
            (rule.condition.field, rule.name)
            for document in parsed
            for rule in document.rules
            if rule.action.value in _DENIES and rule.condition.operator.value in _NEGATIVE
        )

    def judge(self, action: Action) -> Decision | None:
        """The engine's verdict; None when no rule of it matches."""
        try:
            fields = _fields(action)
        except (_Unclear, RecursionError) as error:
            return self.deny("agent-os-arguments", f"The arguments cannot be judged: {error}.", self.severity)
        for field, rule in self._needed:
            if fields.get(field) is None:
                return self.deny(rule, f"{rule} needs {field}, which this call does not have.", self.severity)
        verdict = self._evaluator.evaluate(fields)
        if verdict.matched_rule is None:
            if verdict.audit_entry.get("error"):
                return self.deny("agent-os-error", "The policy engine failed on this call.", Severity.CRITICAL)
            return None
        if verdict.action in _DENIES or verdict.allowed is not True:
            return self.deny(verdict.matched_rule, str(verdict.reason), self.severity)
        if verdict.action == "audit":
            return Decision(Effect.WARN, policy=self.name, rule=verdict.matched_rule, reason=str(verdict.reason))
        return self.allow(verdict.matched_rule)


def _document(engine: Any, name: str, document: str | Mapping[str, Any]) -> Any:
    where = f"{name}: documents: {document}" if isinstance(document, str) else f"{name}: documents"
    fields = _read(where, document) if isinstance(document, str) else document
    keys = engine.PolicyDocument.model_fields
    _only_known(where, fields, keys)
    for key, instead in _NOT_ENFORCED.items():
        if fields.get(key):
            raise PolicyError(f"{where}: the engine does not enforce {key}", hint=instead)
    defaults = fields.get("defaults") or {}
    for key, instead in _NOT_ENFORCED_DEFAULTS.items():
        if isinstance(defaults, Mapping) and key in defaults:
            raise PolicyError(f"{where}: the engine does not enforce defaults.{key}", hint=instead)
    rules: Any = fields.get("rules") or ()
    for rule in rules if isinstance(rules, list | tuple) else ():
        if isinstance(rule, Mapping):
            _only_known(where, rule, engine.PolicyRule.model_fields)
            if rule.get("dynamic_condition") is not None:
                raise PolicyError(f"{where}: dynamic_condition is not supported", hint="write a rule with when:")
    try:
        return engine.PolicyDocument.model_validate(dict(fields))
    except ValueError as error:  # pydantic's errors are ValueErrors
        raise PolicyError(f"{where} is not a policy document: {error}") from error


def _read(where: str, path: str) -> Mapping[str, Any]:
    import yaml

    try:
        fields = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))  # JSON is YAML
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PolicyError(f"{where} cannot be read: {error}", hint="give the path of a policy document") from error
    if not isinstance(fields, Mapping):
        raise PolicyError(f"{where} is not a policy document", hint="it must be a mapping with rules")
    return fields


def _only_known(where: str, fields: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    for key in fields:
        if key not in keys:
            raise PolicyError(f"{where}: there is no key {key!r}", hint=suggest_name(str(key), keys, "leave it out"))


def _fields(action: Action) -> dict[str, Any]:
    """The action as the flat mapping that the engine looks fields up in."""
    arguments = dict(_named(action.arguments, "", 0))
    own = {
        "tool_name": action.name,
        "action": action.name,
        "agent_id": action.agent,
        "point": action.point.value,
        "kind": action.kind,
        "framework": action.framework,
        "session_id": action.session_id,
        "rollout_id": action.rollout_id,
        "text": action.text,
    }
    # The model chooses the names of arguments: none of them may stand for what the action says of itself.
    plain = {name: value for name, value in arguments.items() if not name.startswith("args.")}
    return {**plain, **{f"args.{name}": value for name, value in arguments.items()}, **own}


def _named(value: Mapping[Any, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Every value in ``value`` under its dotted name, mappings themselves among them; lists are values."""
    if depth > MAX_DEPTH:
        raise _Unclear("they are nested too deep")
    for key, item in value.items():
        if not isinstance(key, str) or "." in key:
            raise _Unclear(f"the name {str(key)[:80]!r} holds a dot, or is not text")
        nested = isinstance(item, Mapping)
        yield prefix + key, dict(item) if nested else item
        if nested:
            yield from _named(item, f"{prefix}{key}.", depth + 1)
