"""The command that joins the shards of a run: `python -m evals.gather`."""
