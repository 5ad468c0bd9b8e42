"""The ``cost``, ``rate`` and ``loop`` policies, and the ledger they count in."""
