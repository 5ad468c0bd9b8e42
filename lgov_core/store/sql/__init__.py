"""The trace store on a SQL database: what SQLite and PostgreSQL share. `rollout_queue.RolloutQueue` is the entry point."""
