"""Benchmarks made from a corpus: stages, checks, human review and release (`sextant build`)."""

import sextant

sextant.use_full_name(__name__)
