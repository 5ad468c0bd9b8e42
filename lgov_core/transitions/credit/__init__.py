"""Credit assignment: distributes rewards over the model calls of a rollout."""
