"""Attempts step by step for people to look at, on a terminal and in the window."""
