"""Compiling programs and agents on dev: their prompts with DSPy's teleprompters, their parameters by search."""

import evals  # noqa: F401  # which refuses a `tools.py` of the user's that hides ours
