"""Files of other systems, read: a run in TREC's form, trajectories in ours and in ATIF. Judges nothing."""
