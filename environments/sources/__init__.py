"""One reader per public form of a data set. Readers check what they read, and know nothing of tasks."""
