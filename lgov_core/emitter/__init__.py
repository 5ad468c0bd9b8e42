"""`FlightRecorderEmitter`: audit entries as Agent Lightning spans."""

from lgov_core.emitter.emitter import FlightRecorderEmitter, create_emitter
from lgov_core.emitter.lightning_span import LightningSpan

__all__ = ["FlightRecorderEmitter", "LightningSpan", "create_emitter"]
