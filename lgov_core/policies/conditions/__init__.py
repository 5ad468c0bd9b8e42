"""Rule conditions (``when:``): matchers, CEL, and the fields they may read."""
