"""The same training on verl and Ray: lgov's rollouts, rewards and credit, verl's update on many GPUs.

Needs the extra ``verl`` (Python below 3.13); importing this package loads nothing of it. `VerlJob` says what to run,
`run_verl` runs it, and `lgov_core.integrations.verl.manager.GovernedRollouts` is what verl calls for rollouts.
"""

from lgov_core.integrations.verl.job import Host, VerlJob, VerlUpdate
from lgov_core.integrations.verl.run import VerlReport, run_verl

__all__ = ["Host", "VerlJob", "VerlReport", "VerlUpdate", "run_verl"]
