"""Readers of the public forms of data sets. They check what they read, and know nothing of tasks."""
