"""Compiling programs and agents on dev: their prompts with DSPy's teleprompters, their parameters by search."""
