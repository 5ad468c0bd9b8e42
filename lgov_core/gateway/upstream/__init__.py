"""Engines that pass calls on to another OpenAI-compatible server."""
