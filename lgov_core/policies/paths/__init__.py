"""The ``path`` policy: which files a tool may name."""
