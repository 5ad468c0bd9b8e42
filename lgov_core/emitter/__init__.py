"""`FlightRecorderEmitter`: audit entries as Agent Lightning spans."""

from lgov_core.emitter.emitter import FlightRecorderEmitter, LightningSpan, create_emitter

__all__ = ["FlightRecorderEmitter", "LightningSpan", "create_emitter"]
