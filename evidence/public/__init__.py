"""Tasks that nobody here made: sets of the package reasoning-gym, scored by its own functions."""
