"""Measurements of what Sextant promises to be fast at, beside the libraries that it is
compared with.
"""
