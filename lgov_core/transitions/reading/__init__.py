"""Reads a trace into model calls, rewards and conversations."""
