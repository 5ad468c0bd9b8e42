"""A scripted model server for tests: real HTTP, replies that the test wrote."""

from lgov_core.testing.scripted_reply import ScriptedCall, ScriptedReply, call, token_logprob
from lgov_core.testing.server import ScriptedModelServer, UnexpectedModelCall

__all__ = ["ScriptedCall", "ScriptedModelServer", "ScriptedReply", "UnexpectedModelCall", "call", "token_logprob"]
