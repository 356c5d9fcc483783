"""Benchmarks made from a corpus: stages, checks, human review and release (`sextant build`), and
judgements by a model (`sextant judge`).

A distribution of its own over Sextant's core, which imports nothing of it.
"""
