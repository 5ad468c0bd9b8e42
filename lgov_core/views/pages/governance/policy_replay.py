"""What another policy file would have decided about what is on record (`lgov_core.views.replay`), for the page."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, Final

from lgov_core.audit import AuditLog
from lgov_core.errors import PolicyError
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import dry_run, load_policy_file
from lgov_core.store import TraceStore
from lgov_core.views.pages.background import Background
from lgov_core.views.pages.sources import Source
from lgov_core.views.pages.texts import text_of
from lgov_core.views.replay import Change, Replay, from_audit, from_store, replay

_MOST_CHANGES: Final = 500
_COUNTS: Final = ("judged", "blocked_then", "blocked_now", "without_decision", "incomplete")


class PolicyReplay:
    """Replays policy files over one source, beside the answers: ``named``, and those in the run's folder."""

    def __init__(self, source: Source, named: tuple[Path, ...]) -> None:
        self._source = source
        self._named = named
        self._work: Background[Replay] = Background()

    def files(self) -> dict[str, Path]:
        """The policy files that may be replayed, by name."""
        folder = self._source.folder
        own = [] if folder is None else sorted([*folder.glob("*polic*.yaml"), *folder.glob("*polic*.yml")])
        return {path.name: path for path in reversed([*self._named, *own]) if path.is_file()}

    def answer(self, name: str, store: TraceStore, *, again: bool = False) -> dict[str, Any]:
        """The replay of the file ``name``. Raises `PolicyError` for one that is not offered."""
        path = self.files().get(name)
        if path is None:
            raise PolicyError(f"there is no policy file {name} to replay", hint="name it with --policy")
        self._work.start(lambda: self._replay(path, store), (path, path.stat().st_mtime_ns), again=again)
        work = self._work
        shown: dict[str, Any] = {"state": work.state, "policy": name, "error": None, "changed": 0, "changes": []}
        if work.error is not None:
            shown["error"] = {"code": work.error.code, "message": work.error.message, "hint": work.error.hint}
        found = work.result or Replay()
        shown |= {count: getattr(found, count) for count in _COUNTS}
        return shown | {
            "changed": len(found.changes),
            "changes": [_change(one) for one in found.changes[:_MOST_CHANGES]],
        }

    def _replay(self, path: Path, store: TraceStore) -> Replay:
        with dry_run():
            policies = load_policy_file(path)
        with closing(Governor(policies, manager=make_plugin_manager(builtin=(), third_party=False))) as governor:
            if self._source.audit is None:
                return replay(governor, from_store(store))
            with AuditLog(self._source.audit, signer=None) as log:
                return replay(governor, from_audit(log.entries()))


def _change(change: Change) -> dict[str, Any]:
    action, then, now = change.recorded.action, change.recorded, change.decision
    return {
        "rollout_id": action.rollout_id,
        "attempt": action.attempt,
        "call_id": action.call_id,
        "point": action.point.value,
        "name": action.name,
        "arguments": text_of(action.text if action.text is not None else dict(action.arguments)),
        "then": then.effect,
        "then_policy": then.policy,
        "then_rule": then.rule,
        "now": now.effect.label,
        "now_policy": now.policy,
        "now_rule": now.rule,
        "reason": now.reason if now.blocks else then.reason,
    }
