"""Run, score, compare: the only place where judgements and search systems meet."""
