"""The page of trajectories: its server, its data, and its export as a file."""
