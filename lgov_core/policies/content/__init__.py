"""The ``pii`` and ``secrets`` policies: patterns, checks, redaction."""
