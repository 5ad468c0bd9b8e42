"""Reads spans written under other conventions (OpenInference, older GenAI names) as lgov's."""
