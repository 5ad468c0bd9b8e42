"""What policies blocked in a run, for its closing report: tool, rule, reason, audit entry, and the command that approves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lgov_core.types import Action, Decision

#: Kinds that are told apart; models choose names. Further ones are only counted.
MAX_KINDS: Final = 100


@dataclass(slots=True)
class Blocked:
    """Actions of one name that one rule blocked in the same way: ``count`` of them.

    ``effect`` is deny or escalate, with ``would-`` in front in shadow mode. ``decision_id`` is the audit entry of the last
    one, and ``approval`` the command that answers its request for approval.
    """

    effect: str
    point: str
    name: str
    policy: str
    rule: str
    reason: str
    decision_id: str | None
    approval: str
    count: int = 1

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two of them the same."""
        return self.effect, self.point, self.name, self.policy, self.rule, self.approval


class BlockedActions:
    """The actions that were blocked, by kind. A request for approval is taken out again once it is answered."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, ...], Blocked] = {}

    def __iter__(self) -> Iterator[Blocked]:
        return iter(list(self._kinds.values()))

    def add(self, action: Action, decision: Decision) -> None:
        """Takes note of a decision, if it blocks or would outside shadow mode."""
        for part in decision.parts or (decision,):
            if part.approval and not part.blocks:
                self._answered(part.approval)
        found = decision if decision.blocks else decision.unenforced
        if found is None or not found.blocks:
            return
        effect = found.effect.label if decision.blocks else f"would-{found.effect.label}"
        approval = next((one.approval for one in decision.parts or (decision,) if one.approval and one.blocks), "")
        what = (effect, action.point.value, action.name, found.policy, found.rule, found.reason)
        self.merge([Blocked(*what, decision.decision_id, approval)])

    def merge(self, others: Iterable[Blocked]) -> None:
        """Adds what another process blocked."""
        for one in others:
            known = self._kinds.get(one.key)
            if known is not None:
                known.count += one.count
                known.reason, known.decision_id = one.reason, one.decision_id
            elif len(self._kinds) < MAX_KINDS:
                self._kinds[one.key] = one

    def _answered(self, approval: str) -> None:
        for key in [key for key, one in self._kinds.items() if one.approval == approval]:
            self._kinds.pop(key, None)

    def as_json(self) -> list[dict[str, Any]]:
        """The kinds as JSON values."""
        return [asdict(one) for one in self]
