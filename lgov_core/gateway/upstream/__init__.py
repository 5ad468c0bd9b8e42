"""Engines that ask other servers: `UpstreamEngine` (OpenAI-compatible, one server or several), `TokenEngine` (token ids),
and `RegisteredModels`, whose servers come and go while the endpoint runs.
"""
