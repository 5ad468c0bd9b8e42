"""``lgov policy``."""
