"""The ``tool`` policy: which tools exist, and the JSON schemas of their arguments."""
