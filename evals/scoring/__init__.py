"""Metrics, statistics and attribution, computed from the recorded outcomes of runs."""
