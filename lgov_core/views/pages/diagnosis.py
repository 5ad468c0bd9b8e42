"""The findings of `lgov doctor RUN` (`lgov_core.train.diagnosis`), as the page shows them."""

from __future__ import annotations

from typing import Any

from lgov_core.errors import LgovError
from lgov_core.train.diagnosis import Report, examine
from lgov_core.train.diagnosis.evidence import Evidence
from lgov_core.train.diagnosis.examine import examine_evidence
from lgov_core.views.pages.background import Background
from lgov_core.views.pages.open_source import OpenSource


class Diagnosis:
    """Examines a source beside the answers, and anew when it was written to. Callable from any thread."""

    def __init__(self, shown: OpenSource) -> None:
        self._shown = shown
        self._work: Background[Report] = Background()

    def answer(self) -> dict[str, Any]:
        """The findings, ``running`` until they are there."""
        source, work = self._shown.source, self._work
        place = source.store if source.metrics is None else str(source.folder)
        work.start(lambda: examine(place) if place else examine_evidence(source.place, Evidence()), self._written())
        report, error = work.result, work.error
        return {
            "state": work.state,
            "error": None if error is None else error.as_json(),
            "checked": [] if report is None else list(report.checked),
            "not_examined": {} if report is None else dict(report.not_examined),
            "findings": [
                {
                    "name": one.name,
                    "title": one.name.replace("-", " ").capitalize(),
                    "severity": one.severity.value,
                    "text": one.sentence,
                    "fix": one.advice,
                    "figures": dict(one.figures),
                    "rollouts": list(one.rollouts),
                }
                for one in (() if report is None else report.findings)
            ],
        }

    def _written(self) -> Any:
        """What changes when the source does."""
        source = self._shown.source
        try:
            marks = None if source.store is None else self._shown.store.pages.marks()
        except LgovError:
            marks = None
        return marks, None if source.metrics is None else source.metrics.stat().st_mtime_ns
