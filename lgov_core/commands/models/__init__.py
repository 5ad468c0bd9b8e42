"""``lgov models``, and what is done with a checkpoint: ``lgov eval``, ``lgov export``, ``lgov promote``."""
