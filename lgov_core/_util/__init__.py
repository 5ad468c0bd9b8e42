"""Small helpers without a domain: files, SQLite connections, JSON, suggestions."""
