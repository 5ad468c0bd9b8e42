"""A scripted model server for tests: real HTTP, replies that the test wrote."""

from lgov_core.testing.server import (
    ScriptedCall,
    ScriptedModelServer,
    ScriptedReply,
    UnexpectedModelCall,
    call,
    token_logprob,
)

__all__ = ["ScriptedCall", "ScriptedModelServer", "ScriptedReply", "UnexpectedModelCall", "call", "token_logprob"]
