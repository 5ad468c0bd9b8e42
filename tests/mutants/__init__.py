"""Mutants of the files between a model's reply and the permitted act (`tests.governor.act_path`): ``make mutants``."""
