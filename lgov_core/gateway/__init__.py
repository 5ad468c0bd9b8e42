"""The training endpoint: OpenAI-compatible routes that attribute and record every model call.

Engines answer (`Engine`: the embedded one, an upstream one, or your own), `EndpointServer` serves them, `KeyRing`
issues keys that are bound to one attempt. The web server and the clients are imported when they are first used.
"""

from lgov_core.gateway.access import AdminKeyFile, KeyRing
from lgov_core.gateway.limits import Limits
from lgov_core.gateway.policy_gate import PolicyGate, open_gate
from lgov_core.gateway.protocol import ANY_MODEL, Engine, Gate, GateRefusal, GateReply, GateRequest
from lgov_core.gateway.server import EndpointServer
from lgov_core.wire.exchange import ChatRequest, Completion, StreamPiece, ToolCall

__all__ = [
    "ANY_MODEL",
    "AdminKeyFile",
    "ChatRequest",
    "Completion",
    "EndpointServer",
    "Engine",
    "Gate",
    "GateRefusal",
    "GateReply",
    "GateRequest",
    "KeyRing",
    "Limits",
    "PolicyGate",
    "StreamPiece",
    "ToolCall",
    "open_gate",
]
