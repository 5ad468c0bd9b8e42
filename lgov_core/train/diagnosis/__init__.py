"""Why a training does not learn, and whether it cheats: `examine` a run folder or a trace store for named findings."""

from lgov_core.train.diagnosis.checks import DiagnosisReport, RunFinding, examine

__all__ = ["DiagnosisReport", "RunFinding", "examine"]
