"""The trace store in PostgreSQL: `store.PostgresStore`. Needs the extra ``postgres``."""
