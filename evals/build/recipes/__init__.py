"""Recipes that `python -m evals.build run` follows, a file each."""
