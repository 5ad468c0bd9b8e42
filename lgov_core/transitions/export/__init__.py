"""Writes transitions in the formats of other trainers."""
