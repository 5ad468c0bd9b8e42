"""The trace store in one SQLite file, or in memory: `store.SQLiteStore`."""
