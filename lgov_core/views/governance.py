"""The page Governance: decisions over time, the list of those that did more than allow, and calls that wait for approval.

A call that waits is shown with exactly the text that an answer is bound to.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from lgov_core._util.json_text import canonical_json
from lgov_core._util.schema import Mistake, checked, read_yaml
from lgov_core.audit import AuditEntry, AuditLog
from lgov_core.errors import LgovError, PolicyError, StoreError
from lgov_core.places import DEFAULT_APPROVALS, policy_beside
from lgov_core.policies import ApprovalRequest, ApprovalRequests
from lgov_core.policies.approvals.answers import NotAllowedToAnswer
from lgov_core.policies.budgets.ledger import ModelPrice, Price, price_of
from lgov_core.policies.confinement import asking_options
from lgov_core.policies.loader import read_policy_file
from lgov_core.settings import Settings, load_settings
from lgov_core.store import RolloutQueue, open_store
from lgov_core.store.pages import ListedDecision, StorePages
from lgov_core.trace import semconv
from lgov_core.types import BLOCKING, Span
from lgov_core.views.attempt_builder import subject_of
from lgov_core.views.timeline import text_of

#: Bars over time, keys that are kept apart, and how many of them are shown, in series and in the table.
_BINS: Final = 60
_MOST_KEYS: Final = 2_000
_SERIES: Final = 50
_TABLE: Final = 200
OTHER: Final = "(other)"
#: What decisions can be counted by.
COLUMNS: Final = ("policy", "rule", "tool", "agent")


class _Key(NamedTuple):
    """The texts by which decisions are counted together."""

    policy: str
    rule: str
    tool: str
    agent: str
    effect: str
    would: str


def decision_counts(pages: StorePages, by: str) -> dict[str, Any]:
    """The decisions over time by a column (one of `COLUMNS`). Beyond 2,000 keys the rare ones are "(other)"."""
    counted = pages.decisions_over_time(_BINS)
    keys: dict[_Key, Counter[int]] = defaultdict(Counter)
    for kind, counts in counted.counts.items():
        keys[_Key(kind.policy, kind.rule, kind.tool, kind.agent, kind.effect, kind.would)].update(counts)
    if len(keys) > _MOST_KEYS:
        keys = _most_frequent(keys)
    totals = {key: counts.total() for key, counts in keys.items()}
    seconds = sorted({at for counts in keys.values() for at in counts})
    bins = list(range(seconds[0], seconds[-1] + counted.width_s, counted.width_s)) if seconds else []
    series: dict[str, dict[str, Any]] = {}
    effects, would = Counter[str](), Counter[str]()
    for key, counts in keys.items():
        effects[key.effect] += totals[key]
        if key.would:
            would[key.would] += totals[key]
        name = getattr(key, by)
        entry = series.setdefault(name, {"key": name, "total": 0, "blocked": 0, "would": 0, "values": {}})
        entry["total"] += totals[key]
        entry["blocked"] += totals[key] if key.effect in BLOCKING else 0
        entry["would"] += totals[key] if key.would in BLOCKING else 0
        values = entry["values"].setdefault(key.effect, [0] * len(bins))
        for at, count in counts.items():
            values[(at - bins[0]) // counted.width_s] += count
    rare = [key for key in keys if key.effect != "allow" or key.would]
    rare.sort(key=lambda key: (-totals[key], key))
    return {
        "decisions": effects.total(),
        "effects": dict(effects),
        "would": dict(would),
        "bins": {"at": bins, "width_s": counted.width_s},
        "series": sorted(series.values(), key=lambda entry: (-entry["total"], entry["key"]))[:_SERIES],
        "table": [{**key._asdict(), "count": totals[key]} for key in rare[:_TABLE]],
    }


def _most_frequent(keys: Mapping[_Key, Counter[int]]) -> dict[_Key, Counter[int]]:
    kept: dict[_Key, Counter[int]] = defaultdict(Counter)
    for rank, key in enumerate(sorted(keys, key=lambda key: (-keys[key].total(), key))):
        kept_key = key if rank < _MOST_KEYS else _Key(OTHER, OTHER, OTHER, OTHER, key.effect, key.would)
        kept[kept_key].update(keys[key])
    return kept


def decision_choices(pages: StorePages) -> dict[str, list[str]]:
    """The policies, rules and tools that decisions name, 200 of each at most."""
    kinds = pages.decision_kinds()
    names = {
        "rules": {kind.rule for kind in kinds},
        "tools": {kind.tool for kind in kinds},
        "policies": {kind.policy for kind in kinds if not kind.only_allows},
    }
    return {name: sorted(each - {""})[:_TABLE] for name, each in names.items()}


def decision_page(
    pages: StorePages, effect: str | None, columns: Mapping[str, str], before: int | None, limit: int
) -> dict[str, Any]:
    """At most ``limit`` decisions before the place ``before``; the cursor is such a place.

    ``effect`` is an effect, ``blocked`` or ``would``; None: all but allow. ``columns`` has values for `COLUMNS`.
    """
    listed = pages.decisions_before(before, limit + 1, effect, columns)
    items = listed[:limit]
    return {"items": list(map(_item, items)), "cursor": str(items[-1].seq) if len(listed) > limit else None}


def _item(decision: ListedDecision) -> dict[str, Any]:
    attributes: dict[str, Any] = json.loads(decision.attributes)

    def text(name: str) -> str:
        return str(attributes.get(name) or "")

    return {
        "rollout_id": decision.rollout_id,
        "attempt": decision.attempt,
        "at": decision.at,
        "point": text(semconv.POINT),
        "action": text(semconv.ACTION_NAME),
        "tool": text(semconv.ACTION_NAME),
        "agent": text(semconv.AGENT_NAME) or None,
        "effect": text(semconv.DECISION_EFFECT),
        "would": text(semconv.DECISION_WOULD),
        "blocks": text(semconv.DECISION_EFFECT) in BLOCKING,
        "policy": text(semconv.DECISION_POLICY),
        "rule": text(semconv.DECISION_RULE),
        "reason": text(semconv.DECISION_REASON),
        "about": text_of(subject_of(attributes)),
        "severity": text(semconv.DECISION_SEVERITY),
        "decision_id": text(semconv.DECISION_ID) or None,
        "tool_call_id": text(semconv.TOOL_CALL_ID) or None,
    }


class RecordAlone:
    """The decisions of an audit record that has no store beside it, as the spans of a store in memory.

    Callable from any thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._read = 0
        self.store: RolloutQueue = open_store("memory://")

    def read(self) -> None:
        """Adds to the store what was written since the last time. Raises `StoreError` and `AuditError`."""
        if not self._path.is_file():
            raise StoreError(f"the audit record {self._path} is gone", hint="it was moved or deleted; put it back")
        with self._lock, AuditLog(self._path, signer=None) as log:
            entries = log.entries(after=self._read)
            if entries:
                self.store.add_spans([_span(entry) for entry in entries if entry.kind == "decision"])
                self._read = entries[-1].position


def _span(entry: AuditEntry) -> Span:
    verdict, at = entry.verdict, entry.time_ns / 1e9
    attributes = {
        semconv.AGENT_NAME: entry.agent,
        semconv.POINT: entry.point,
        semconv.ACTION_KIND: entry.action_kind,
        semconv.ACTION_NAME: entry.name,
        semconv.TOOL_CALL_ID: entry.call_id,
        semconv.DECISION_ID: entry.entry_id,
        semconv.DECISION_EFFECT: entry.effect,
        semconv.DECISION_POLICY: verdict["policy"],
        semconv.DECISION_RULE: verdict["rule"],
        semconv.DECISION_REASON: verdict["reason"],
        semconv.TOOL_ARGUMENTS: entry.arguments,
        semconv.DECISION_SEVERITY: verdict["severity"],
        semconv.DECISION_WOULD: verdict["effect"] if verdict["effect"] != entry.effect else None,
    }
    name = semconv.DECISION_SPAN_NAME
    return Span(name, entry.entry_id, at, at, semconv.said(attributes), entry.rollout_id, entry.attempt)


#: Of a request, what is shown as it is.
_SHOWN: Final = ("state", "asked_at", "until", "name", "digest", "answered_by", "answered_at", "reason")


class NoSuchRequest(PolicyError):
    """There is no approval request of that id."""

    code = "not_found"


class ChangedRequest(PolicyError):
    """The digest of an answer is not the request's: the person saw another text."""

    code = "changed"


class AnsweredRequest(PolicyError):
    """The request is not pending any more. ``item`` is what it became."""

    code = "answered"

    def __init__(self, message: str, item: dict[str, Any], *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.item = item


def list_approvals(files: Sequence[Path], *, everything: bool) -> list[dict[str, Any]]:
    """The requests in these files, oldest first; without ``everything`` those that wait. Raises `PolicyError`."""
    items: list[dict[str, Any]] = []
    for file in files:
        with closing(ApprovalRequests(file)) as requests:
            items += [
                _request_item(file, request) for request in (requests.all() if everything else requests.pending())
            ]
    return sorted(items, key=lambda item: item["asked_at"])


def answer_approval(
    files: Sequence[Path],
    request_id: str,
    answer: Literal["approve", "reject"],
    *,
    by: str,
    reason: str,
    digest: str,
) -> dict[str, Any]:
    """Answers one request; of several answers the first counts.

    ``by`` is a name, or the key of an approver. Raises `NoSuchRequest`, `ChangedRequest`, `AnsweredRequest`,
    `NotAllowedToAnswer`, and `PolicyError` where the file cannot be used.
    """
    for file in files:
        with closing(ApprovalRequests(file)) as requests:
            pending = next((request for request in requests.all() if request.request_id == request_id), None)
            if pending is None:
                continue
            if pending.digest != digest:
                raise ChangedRequest(
                    f"the answer to {request_id} is for another call than the one that waits", hint="look at it again"
                )
            try:
                if answer == "approve":
                    answered = requests.approve(request_id, by=by)
                else:
                    answered = requests.reject(request_id, by=by, reason=reason)
                record_answers(file)
                return _request_item(file, answered)
            except NotAllowedToAnswer:
                raise
            except PolicyError as error:
                now = next((request for request in requests.all() if request.request_id == request_id), None)
                if now is None or now.state == "pending":
                    raise
                raise AnsweredRequest(error.message, _request_item(file, now), hint=error.hint) from error
    raise NoSuchRequest(f"there is no approval request {request_id}", hint="it lapsed over a day ago, or never was")


def record_answers(file: Path) -> str:
    """Puts the answers in ``file`` on the record that the settings name, or says why it waits for the next governed program.

    A policy of the settings, or in this folder, has to ask in ``file``: an answer belongs to the record of the call.
    """
    from lgov_core.governance import Governance

    try:
        settings = load_settings()
        stores = asking_files(settings) or ([file] if settings.audit else [Path(DEFAULT_APPROVALS)])
        if file.absolute() not in (store.absolute() for store in stores):
            return f"what governs in this folder asks in {', '.join(map(str, stores))}"
        Governance.from_settings(settings).record_answers(file)
    except LgovError as error:
        return error.message
    return ""


def asking_files(settings: Settings) -> list[Path]:
    """The files of approval requests of the policy that a run in this folder is under. Raises `PolicyFileError`."""
    policy = settings.policy or policy_beside(Path())
    return [] if policy is None else approval_files(policy)


def _request_item(file: Path, request: ApprovalRequest) -> dict[str, Any]:
    return {
        **{name: getattr(request, name) for name in _SHOWN},
        **{name: request.content.get(name) for name in ("agent", "point", "kind")},
        **{name: getattr(request.inquiry, name) for name in ("rule", "question", "user_text", "approvers", "by")},
        "answers": [asdict(answer) for answer in request.answers],
        "requester": request.requester,
        "rollout_id": request.rollout_id,
        "waits_until": request.wait_ends if (request.waits_until or 0.0) > time.time() else None,
        "named": canonical_json(request.arguments),
        "id": request.request_id,
        "file": str(file),
        "arguments": dict(request.arguments),
        "bound": canonical_json(request.content),
    }


def approval_files(policy: Path) -> list[Path]:
    """The files of approval requests of a policy file, one for each ``store`` of its rules. Raises `PolicyFileError`."""
    asking = (options for rule in _rules_of(policy) if (options := asking_options(rule)) is not None)
    return list(dict.fromkeys(policy.parent / Path(options["store"]).expanduser() for options in asking))


def model_prices(policy: Path) -> Iterator[tuple[str, Price]]:
    """The prices of models (``prices`` of ``use: cost``) in a policy file, by name or glob. Raises `PolicyFileError`."""
    for rule in _rules_of(policy):
        options = rule.get("with")
        prices = options.get("prices") if rule["use"] == "cost" and isinstance(options, dict) else None
        for glob, written in prices.items() if isinstance(prices, dict) else ():
            with suppress(Mistake):
                yield str(glob), price_of(checked(written, cast(Any, ModelPrice)))


def _rules_of(policy: Path) -> Iterator[dict[Any, Any]]:
    """Each rule of a policy file, as it is written."""
    document, _ = read_yaml(read_policy_file(policy).decode("utf-8", "replace"), str(policy))
    unread: list[Any] = [document]
    while unread:
        value = unread.pop()
        if isinstance(value, dict):
            rule: dict[Any, Any] = value
            if "use" in rule:
                yield rule
            unread += rule.values()
        elif isinstance(value, list):
            unread += value
