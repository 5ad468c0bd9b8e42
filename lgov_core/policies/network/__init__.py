"""Policies about addresses on the network: where a request may go, and a fetch that keeps to it."""
