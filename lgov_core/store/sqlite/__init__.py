"""The trace store in a SQLite file."""
