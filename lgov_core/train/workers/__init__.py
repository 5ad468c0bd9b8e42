"""Worker processes that run rollouts."""
