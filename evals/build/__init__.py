"""Benchmarks made from a corpus: stages, checks, human review and release (`python -m evals.build`)."""
