"""Studies: a table of many systems on many tasks. The command is evals/study.py."""
