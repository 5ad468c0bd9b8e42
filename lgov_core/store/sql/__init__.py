"""The trace store on a SQL database: what SQLite and PostgreSQL share. `store.SqlStore` is the entry point."""
