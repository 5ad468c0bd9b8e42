"""Why a training does not learn, and whether it cheats: `examine` a run folder or a trace store for named findings."""

from lgov_core.views.findings.examine import examine
from lgov_core.views.findings.report import Report, RunFinding

__all__ = ["Report", "RunFinding", "examine"]
