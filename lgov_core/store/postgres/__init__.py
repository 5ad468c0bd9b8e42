"""The trace store in PostgreSQL. Needs the extra ``postgres``."""
