"""`FlightRecorderEmitter`: the entries of a flight recorder as Agent Lightning spans."""

from lgov_core.rl_governance.emitter import FlightRecorderEmitter, create_emitter
from lgov_core.rl_governance.flight_recorder import LightningSpan

__all__ = ["FlightRecorderEmitter", "LightningSpan", "create_emitter"]
