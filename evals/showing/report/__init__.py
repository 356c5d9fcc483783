"""What `python -m evals.report` is made of: groups of runs, their tables, their plots, and
how these are written.
"""
