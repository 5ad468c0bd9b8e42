"""``lgov audit``."""
