"""Studies: many systems on many tasks as one table. The command is evals/study.py."""
