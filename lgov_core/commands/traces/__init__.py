"""``lgov traces``."""
