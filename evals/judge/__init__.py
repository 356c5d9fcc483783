"""The command that has a model judge what runs bring: `python -m evals.judge`.
evals/measuring/judging.py does it.
"""
