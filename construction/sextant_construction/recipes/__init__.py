"""Recipes that `sextant build run` follows, a file each."""
