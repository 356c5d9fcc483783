"""Tables of comparisons, plots, and the report over many runs."""
