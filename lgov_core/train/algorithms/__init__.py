"""Losses, advantages' use in them, and the policy update."""
