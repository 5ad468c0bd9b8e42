"""The digest of a policy set that was made in Python, where there is no document to hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from lgov_core.policies.rule import Rule
from lgov_core.types import Policy

#: Bound to the digest, so that it never equals one of a document.
_TAG: Final = "lgov policy set made in Python, 1"
_MAX_DEPTH: Final = 20


def digest_of(rules: Iterable[Rule], default: str, mode: str, name: str, version: int) -> str:
    """SHA-256, in hex, of what a set is made of.

    It covers the set's own settings and of each rule, in order: name, points, globs, condition, severity, the class of
    its policy and what that was made with. Equal digests therefore mean equally made sets. Not covered, because nothing
    can be read off it: the code of a policy (of a function only its name counts), the state of one that keeps count, and
    the options of a policy of your own that neither extends `BoundedPolicy` nor is a dataclass nor has a ``made_with``
    mapping.
    """
    content = {
        "tag": _TAG,
        "name": name,
        "version": version,
        "mode": mode,
        "default": default,
        "rules": [_rule(rule) for rule in rules],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "on": [point.value for point in rule.on],
        "tools": list(rule.tools),
        "agents": list(rule.agents),
        "severity": None if rule.severity is None else str(rule.severity),
        "when": None if rule.condition is None else _plain(rule.condition.source, 0),
        "policy": _policy(rule.policy),
    }


def _policy(policy: Policy) -> dict[str, Any]:
    made: dict[str, Any] = {"class": _name_of(type(policy)), "name": policy.name}
    digest = getattr(policy, "digest", None)
    if isinstance(digest, str):
        made["digest"] = digest
        return made
    options = getattr(policy, "made_with", None)
    if not isinstance(options, Mapping):
        options = _fields(policy) if is_dataclass(policy) else {}
    made["with"] = _plain(options, 0)
    return made


def _plain(value: Any, depth: int) -> Any:
    """``value`` in what JSON can say, the same for equal values, without addresses of objects."""
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return {f"{type(key).__name__} {key}": _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return {"set": sorted(json.dumps(_plain(item, depth + 1), sort_keys=True) for item in value)}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": _name_of(type(value)), "fields": _plain(_fields(value), depth + 1)}
    return {"object": _name_of(value if callable(value) and hasattr(value, "__qualname__") else type(value))}


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name, None) for field in fields(value)}


def _name_of(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"
