"""A program in a process of its own: the child's side, and what it gives up before it starts."""
