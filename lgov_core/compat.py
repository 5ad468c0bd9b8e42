"""Runs programs written for ``agent_os``, ``agent_lightning_gov`` and ``agentlightning`` without these packages."""

from lgov_core.rl_governance.compat import emit_reward, install
from lgov_core.rl_governance.emitter import FlightRecorderEmitter as FlightRecorderAdapter

__all__ = ["FlightRecorderAdapter", "emit_reward", "install"]
