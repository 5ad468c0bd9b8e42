"""The training loop: sampling, updates, checkpoints, metrics."""
