"""Recipes that `python -m evals.build run` follows, one per file."""
