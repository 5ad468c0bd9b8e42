"""The audit record of a run: whether its chain is whole, who signed it, and its newest heads."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lgov_core.audit import AuditLog
from lgov_core.audit.verify import VerifyReport, in_words, verify
from lgov_core.errors import LgovError
from lgov_core.views.pages.background import Background

_HEADS: Final = 50
_SHOWN: Final = (
    *("problem", "first_bad", "entries", "writers", "erased", "heads_count"),
    *("signed", "unsigned", "key", "key_trusted", "anchored"),
)


class AuditState:
    """Verifies a record beside the answers. Callable from any thread. ``path`` None: there is none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._check: Background[tuple[VerifyReport, float]] = Background()

    def answer(self, *, again: bool = False) -> dict[str, Any]:
        """The state, ``checking`` until the check is done. ``again`` starts it anew."""
        path = self._path
        if path is None:
            return self._shown("absent", None)
        self._check.start(lambda: (verify(path), time.time()), again=again)
        check = self._check
        if check.state == "running":
            return self._shown("checking", None)
        if check.result is None:
            return self._shown("broken", None) | {"problem": str(check.error)}
        report, at = check.result
        return self._shown("ok" if report.ok else "broken", report) | {"checked_at": at, "heads": self._heads(path)}

    def _shown(self, state: str, report: VerifyReport | None) -> dict[str, Any]:
        fields = asdict(report or VerifyReport(False, 0))
        fields["heads_count"] = fields.pop("heads")
        return {
            "state": state,
            "place": None if self._path is None else str(self._path),
            "checked_at": None,
            "words": None if report is None else in_words(report),
            "heads": [],
            **{name: fields[name] for name in _SHOWN},
        }

    def _heads(self, path: Path) -> list[dict[str, Any]]:
        try:
            with AuditLog(path, signer=None) as log:
                return [
                    {
                        "number": head["number"],
                        "at": head["time_ns"] / 1e9,
                        "position": head["last"],
                        "key": head["key"],
                    }
                    for head in log.heads(_HEADS)
                ]
        except (LgovError, LookupError, TypeError):
            return []
