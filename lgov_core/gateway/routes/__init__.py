"""The endpoint's HTTP routes."""
