"""agent-lightning 1.0's rollout, event and proxy routes, kept in the trace store."""
