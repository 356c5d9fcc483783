"""What is asked of a model, and what its answer says: prompts, fields, repairs, the size of the window."""
