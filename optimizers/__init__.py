"""Compiles programs on the dev split with DSPy teleprompters. Nothing is here yet."""
