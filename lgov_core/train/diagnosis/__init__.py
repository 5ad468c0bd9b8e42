"""Why a training does not learn, and whether it cheats: `examine` a run folder or a trace store for named findings."""

from lgov_core.train.diagnosis.checks import DiagnosisReport, examine
from lgov_core.train.diagnosis.training_checks import RunFinding

__all__ = ["DiagnosisReport", "RunFinding", "examine"]
